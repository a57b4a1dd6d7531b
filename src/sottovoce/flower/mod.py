"""A client mod for a Flower app of yours: what it trains leaves as private bits, or not at all.

    app = ClientApp(mods=[private_mod])

The first of the mods: those after it, and the app, see the model as they always did. Of the app's
reply nothing leaves but the sealed message; arrays, metrics and configs stay. Messages other than
`train` are refused, for what an app answers to them is private data in the clear.
"""

import contextlib
from logging import ERROR, WARNING

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from sottovoce.core.domains import Vector
from sottovoce.core.errors import (
    BudgetExhaustedError,
    DeploymentError,
    LedgerLostError,
    ParameterError,
    PolicyError,
    SottovoceError,
)
from sottovoce.core.randomness import SystemRandomness
from sottovoce.deployment.audit_log import OrderName
from sottovoce.deployment.policy import Policy
from sottovoce.deployment.site import Site
from sottovoce.flower.announcement import (
    NAME,
    NUM_EXAMPLES,
    PLAN,
    RECORD,
    SEALED,
    Announcement,
    asked_of,
    read_announcement,
    run_name,
)
from sottovoce.flower.client import NO_LEDGER, NO_SITE, NoSiteError, site_of
from sottovoce.flower.model_arrays import Layout

_LEGACY_RECORD = "fitins.parameters"


def private_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer a `train` message with what the site's policy allows, privatised and charged."""
    try:
        content = _answer(message, context, call_next)
    except (PolicyError, BudgetExhaustedError) as error:
        # Public: it follows from the request, the site's file and its ledger, never from the data.
        if _note(message, context, str(error)):
            log(WARNING, "sottovoce: refused, nothing was sent: %s", error)
        return _error(message, ErrorCode.MOD_FAILED_PRECONDITION, f"refused: {error}")
    except NoSiteError as error:
        log(WARNING, "sottovoce: nothing was sent: %s", error)
        return _error(message, ErrorCode.MOD_FAILED_PRECONDITION, f"refused: {NO_SITE}")
    except LedgerLostError as error:
        log(ERROR, "sottovoce: nothing was sent: %s", error)
        return _error(message, ErrorCode.MOD_FAILED_PRECONDITION, f"refused: {NO_LEDGER}")
    except Exception:
        # Whatever it says may be about the data.
        log(ERROR, "sottovoce: failed, nothing was sent", exc_info=True)
        reason = "failed: the node's log says why"
        _note(message, context, reason)
        return _error(message, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
    return Message(RecordDict({RECORD: content}), reply_to=message)


def _note(message: Message, context: Context, reason: str) -> bool:
    """Write a refusal to the site's audit log; False if it is one of too many to be listed."""
    with contextlib.suppress(SottovoceError):
        name = OrderName(run=run_name(message.metadata.run_id))
        return site_of(context).note_refusal(reason, name)
    return True


def _error(message: Message, code: int, reason: str) -> Message:
    return Message(Error(code, f"sottovoce: {reason}. Nothing was sent."), reply_to=message)


def _answer(message: Message, context: Context, call_next: ClientAppCallable) -> ConfigRecord:
    site = site_of(context)
    record = _own_record(message)
    if PLAN not in record:  # before it plans the server asks who is there
        return ConfigRecord({NAME: site.name})
    announcement = read_announcement(record)
    if announcement.num_examples and not _counts_are_public(site):
        raise PolicyError(
            "the number of examples is asked for in the clear; 'public_counts' is false"
        )
    asked = asked_of(announcement, run_name(message.metadata.run_id))
    public: dict[str, int] = {}

    def train() -> list[Vector]:
        update, reply = _trained(message, context, call_next, announcement)
        if announcement.num_examples:
            public[NUM_EXAMPLES] = _num_examples(reply)
        return [update]

    number = announcement.round
    (sealed,) = site.answer(asked, SystemRandomness(), train, keep_from=number)
    return ConfigRecord({SEALED: sealed, **public})


def _counts_are_public(site: Site) -> bool:
    return isinstance(site.policy, Policy) and site.policy.public_counts


def _own_record(message: Message) -> ConfigRecord:
    """Take our record out of the message: the app sees what it would see without us."""
    category = message.metadata.message_type.split(".")[0]
    if category != MessageType.TRAIN:
        raise PolicyError(
            f"a reply to a message of type '{category}' is private data in the clear; evaluate "
            "at the server (evaluate_fn)"
        )
    if _LEGACY_RECORD in message.content.array_records:
        raise PolicyError(
            "the server runs a strategy of Flower's legacy API; use one from "
            "flwr.serverapp.strategy, wrapped in PrivateStrategy"
        )
    record = message.content.config_records.get(RECORD)
    if record is None:
        raise PolicyError(
            "the message has no plan; wrap the server's strategy in "
            "sottovoce.flower.PrivateStrategy"
        )
    del message.content[RECORD]
    return record


def _trained(
    message: Message, context: Context, call_next: ClientAppCallable, announcement: Announcement
) -> tuple[Vector, Message]:
    """What the app's training changes in the model, and its reply, which stays here."""
    (sent,) = message.content.array_records.values()
    layout = Layout.of(sent)
    if layout.digest() != announcement.layout:
        raise PolicyError("the model is not the one that the plan is for")
    before = layout.vector(sent)
    try:
        reply = call_next(message, context)
    except SottovoceError as error:
        # An app may raise what it likes: ours are the only refusals that may be told.
        raise RuntimeError("the app failed") from error
    except KeyError as error:
        if error.args == (_LEGACY_RECORD,):  # Flower's own, before any data were looked at
            raise PolicyError(
                "the app is a client of Flower's legacy API (NumPyClient, Client); write it with "
                "@app.train()"
            ) from None
        raise
    if reply.has_error():
        raise DeploymentError(f"the app answered with an error: {reply.error.reason}")
    if len(reply.content.array_records) != 1:
        raise ParameterError("the app must answer with one ArrayRecord: the model it has trained")
    (trained,) = reply.content.array_records.values()
    with np.errstate(invalid="ignore", over="ignore"):  # what diverged the site sends as zero
        update = layout.vector(trained) - before
    if unchanged := layout.unchanged(update):
        # To the node's log alone: what training changes, or does not, is about the data.
        log(
            WARNING,
            "sottovoce: training left %s as it was, and noise will move it all the same; if it is "
            "frozen (requires_grad=False), leave it out of the ArrayRecords of server and client",
            ", ".join(f"'{name}'" for name in unchanged),
        )
    return update, reply


def _num_examples(reply: Message) -> int:
    for metrics in reply.content.metric_records.values():
        count = metrics.get(NUM_EXAMPLES)
        if isinstance(count, int) and count > 0:
            return count
    raise ParameterError(f"the app's metrics have no positive whole '{NUM_EXAMPLES}'")
