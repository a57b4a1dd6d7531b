"""A Flower client mod that turns the model which an app trains into a private message.

    app = ClientApp(mods=[private_mod])

It must be the first mod: the later mods and the app receive the model as usual. Arrays, metrics and
configs of the app's reply do not leave the client, only the private message does, and the number of
examples if the site's policy declares it public. Messages of other types than `train` are refused,
because an app's replies to them would be private data in the clear.
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
    RoundAnnouncement,
    build_request,
    read_announcement,
    run_name,
)
from sottovoce.flower.client import NO_LEDGER, NO_SITE, NoSiteError, site_of
from sottovoce.flower.model_arrays import ModelLayout

_LEGACY_RECORD = "fitins.parameters"


def private_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer a `train` message with a private message that the site's policy allows.

    The mod reads the plan that `PrivateStrategy` has put into the message and checks it against the
    site's policy and budget. If these do not allow it, the app is not called. Otherwise the app
    trains; then the site's ledger is charged, and only after that the clipped update is randomized
    and encoded. The app's own reply never leaves the client, except for its number of examples if
    the plan asks for it and the site's policy declares it public (`public_counts`).

    The site's file (see `sottovoce deploy join`) is named by `site` in the node's config or by the
    environment variable `SOTTOVOCE_SITE`.

    Args:
        message: The message of the server.
        context: The context of the node.
        call_next: The next mod or the app.

    Returns:
        A reply with the private message, with the site's name if the server asks for it, or an
        error reply. It never raises: refusals follow from public data and are sent with their
        reason; other errors may depend on the data, so they go to the node's log and the server
        only learns that the client failed.

    Examples:
        The client app:

            app = ClientApp(mods=[private_mod])

            @app.train()
            def train(message: Message, context: Context) -> Message:
                model = Net()
                model.load_state_dict(message.content["arrays"].to_torch_state_dict())
                fit(model)
                arrays = ArrayRecord(model.state_dict())
                return Message(RecordDict({"arrays": arrays}), reply_to=message)
    """
    try:
        content = _answer(message, context, call_next)
    except (PolicyError, BudgetExhaustedError) as error:
        # The reason is public: it follows from the request, the policy and the ledger alone.
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
        # The exception may depend on the data, so only the log gets it.
        log(ERROR, "sottovoce: failed, nothing was sent", exc_info=True)
        reason = "failed: the node's log says why"
        _note(message, context, reason)
        return _error(message, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
    return Message(RecordDict({RECORD: content}), reply_to=message)


def _note(message: Message, context: Context, reason: str) -> bool:
    """Record a refusal in the site's audit log; return False if there are too many to list."""
    with contextlib.suppress(SottovoceError):
        name = OrderName(run=run_name(message.metadata.run_id))
        return site_of(context).note_refusal(reason, name)
    return True


def _error(message: Message, code: int, reason: str) -> Message:
    return Message(Error(code, f"sottovoce: {reason}. Nothing was sent."), reply_to=message)


def _answer(message: Message, context: Context, call_next: ClientAppCallable) -> ConfigRecord:
    site = site_of(context)
    record = _own_record(message)
    if PLAN not in record:  # The server asks for names before it plans a round.
        return ConfigRecord({NAME: site.name})
    announcement = read_announcement(record)
    if announcement.num_examples and not _counts_are_public(site):
        raise PolicyError(
            "the server asks for the number of examples, which this site's policy keeps private "
            "('public_counts' is false); set public-num-examples = false in the run config"
        )
    asked = build_request(announcement, run_name(message.metadata.run_id))
    public: dict[str, int] = {}

    def train() -> list[Vector]:
        update, reply = _train(message, context, call_next, announcement)
        if announcement.num_examples:
            public[NUM_EXAMPLES] = _num_examples(reply)
        return [update]

    number = announcement.round
    (sealed,) = site.answer(asked, SystemRandomness(), train, keep_from=number)
    return ConfigRecord({SEALED: sealed, **public})


def _counts_are_public(site: Site) -> bool:
    return isinstance(site.policy, Policy) and site.policy.public_counts


def _own_record(message: Message) -> ConfigRecord:
    """Remove and return our record, so that the app receives its usual message."""
    category = message.metadata.message_type.split(".")[0]
    if category != MessageType.TRAIN:
        raise PolicyError(
            f"a site answers only messages of type 'train': the reply to type '{category}' would "
            "be private data in the clear; to evaluate at the server, use evaluate_fn"
        )
    if _LEGACY_RECORD in message.content.array_records:
        raise PolicyError(
            "the server runs a strategy of Flower's legacy API; use one from "
            "flwr.serverapp.strategy, wrapped in PrivateStrategy"
        )
    record = message.content.config_records.get(RECORD)
    if record is None:
        raise PolicyError(
            "the message has no plan; use sottovoce.flower.PrivateStrategy around the server's "
            "strategy"
        )
    del message.content[RECORD]
    return record


def _train(
    message: Message,
    context: Context,
    call_next: ClientAppCallable,
    announcement: RoundAnnouncement,
) -> tuple[Vector, Message]:
    """Return what the app's training changes in the model, and the app's reply."""
    (sent,) = message.content.array_records.values()
    layout = ModelLayout.of(sent)
    if layout.digest() != announcement.layout:
        raise PolicyError(
            "the model in the message has other arrays than the plan announces; send the model as "
            "PrivateStrategy does"
        )
    before = layout.vector(sent)
    try:
        reply = call_next(message, context)
    except SottovoceError as error:
        # An app could raise our error classes with private text: only our own refusals are public.
        raise RuntimeError("the app failed") from error
    except KeyError as error:
        if error.args == (_LEGACY_RECORD,):  # Raised by Flower before any data are read.
            raise PolicyError(
                "the app is a client of Flower's legacy API (NumPyClient, Client); write it with "
                "@app.train()"
            ) from None
        raise
    if reply.has_error():
        raise DeploymentError(
            f"the app replied with an error: {reply.error.reason}; correct the app"
        )
    if (count := len(reply.content.array_records)) != 1:
        raise ParameterError(
            f"the app must reply with exactly one ArrayRecord, the trained model, got {count}; put "
            "all arrays of the model, and no others, into one ArrayRecord"
        )
    (trained,) = reply.content.array_records.values()
    # The site sends zero for an update that is not finite.
    with np.errstate(invalid="ignore", over="ignore"):
        update = layout.vector(trained) - before
    if unchanged := layout.unchanged(update):
        # Only to the node's log: which arrays training changes may depend on the data.
        log(
            WARNING,
            "sottovoce: training did not change %s, but the noise will; if it is frozen "
            "(requires_grad=False), leave it out of the ArrayRecords of server and client",
            ", ".join(f"'{name}'" for name in unchanged),
        )
    return update, reply


def _num_examples(reply: Message) -> int:
    for metrics in reply.content.metric_records.values():
        count = metrics.get(NUM_EXAMPLES)
        if isinstance(count, int) and count > 0:
            return count
    raise ParameterError(
        f"the app's metrics have no positive integer '{NUM_EXAMPLES}'; return it in a MetricRecord"
    )
