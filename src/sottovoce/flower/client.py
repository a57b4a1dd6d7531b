"""A site's replies to Flower messages: its name, a private message, or a refusal.

The site of a node is determined by the node's own configuration, never by the run's: `site` in the
node's config names the site's file, or else the environment variable SOTTOVOCE_SITE does. Simulated
nodes share both; there '{partition-id}' in the path stands for the node's own partition.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from sottovoce.core import printable_text
from sottovoce.core.errors import (
    BudgetExhaustedError,
    ConfigError,
    DeploymentError,
    LedgerLostError,
    PolicyError,
    RolledBackError,
    SottovoceError,
    WireError,
)
from sottovoce.deployment.audit_log import OrderName
from sottovoce.deployment.exchanges import Exchanges
from sottovoce.deployment.masked_answers import opening_of_question
from sottovoce.deployment.masked_orders import STEP, Step, read_step, step_blobs
from sottovoce.deployment.masked_site import opening_of_order
from sottovoce.deployment.orders import (
    TALLY,
    Blobs,
    Order,
    QuestionRequest,
    read_order,
    read_question_request,
    refusal_blobs,
    reply_blobs,
)
from sottovoce.deployment.site import Site, read_site
from sottovoce.deployment.site_answers import Values, answer, own_columns
from sottovoce.deployment.site_witness import check_witnessed, statement_part
from sottovoce.flower.node_client import answer_announced
from sottovoce.flower.node_messages import (
    ACTION,
    ConfirmationRequest,
    ReportRequest,
    read_request,
)
from sottovoce.flower.records import from_records, to_records
from sottovoce.protocol.secure.announcement import Announcement

SITE_KEY = "site"
SITE_VARIABLE = "SOTTOVOCE_SITE"
_PARTITION = "partition-id"
# Sent to the server; what is wrong with the site's files is only logged for its owner.
NO_SITE = "this node has no site with a readable policy; see its log"

NO_LEDGER = "this site's ledger is missing, replaced or out of date; see its log"


class NoSiteError(DeploymentError):
    """A site's file that is missing or not valid; the text is for the site's owner only."""


def site_of(context: Context) -> Site:
    """Return the site of a node, or raise NoSiteError; without a site nothing is answered."""
    path = context.node_config.get(SITE_KEY) or os.environ.get(SITE_VARIABLE)
    if not path:
        raise NoSiteError(
            "this node has no site, and without a policy nothing is answered; start it with "
            f"'sottovoce deploy node', or name the site's file in the node's config ('{SITE_KEY}') "
            f"or in the environment variable {SITE_VARIABLE}"
        )
    partition = str(context.node_config.get(_PARTITION, ""))
    try:
        return read_site(Path(str(path).replace(f"{{{_PARTITION}}}", partition)))
    except SottovoceError as error:
        raise NoSiteError(str(error)) from None


_LOG = printable_text.logger()
# Errors whose text follows from the order, the policy and the ledger alone, so it is public.
_PUBLIC = (PolicyError, BudgetExhaustedError, WireError, ConfigError, RolledBackError)

Compute = Callable[[Order, Site], list[bytes]]
SiteOf = Callable[[Context], Site]
ColumnsOf = Callable[[Site], Mapping[str, Values]]
Handler = Callable[[Message, Context], Message]
Request = Order | Step | QuestionRequest | ReportRequest | ConfirmationRequest
Read = Callable[[Blobs], Request]


def make_order_handler(compute: Compute, site_of: SiteOf = site_of) -> Handler:
    """Return a message handler that answers orders with the messages that `compute` returns.

    An order is the server's request to train one round; `compute` trains, charges and encodes.
    An order that opens an attempt at a secure sum, and the steps after it, are answered by this
    process as long as it runs. An answer, and a refusal of an order that could be read, tell in how
    many rounds of the run the site was charged and state how far its ledger has come, unless the
    ledger is lost. A site whose ledger is older than the order's receipt refuses.
    """
    exchanges = Exchanges()

    def reply(message: Message, site: Site) -> dict[str, bytes]:
        order = _read_order_or_step(from_records(message.content))
        try:
            check_witnessed(site, order.receipt)
            blobs = answered(order, site)
        except _PUBLIC as error:
            _note(site, error, _name_of(order))
            blobs = refusal_blobs(str(error), site.rounds_charged(order.run))
        return {**blobs, **statement_part(site)}

    def answered(order: Order | Step, site: Site) -> dict[str, bytes]:
        match order:
            case Step():
                return step_blobs(exchanges.step(order, site))
            case Order(attempt=0):
                return reply_blobs(compute(order, site), site.rounds_charged(order.run))
            case Order():
                return step_blobs(exchanges.begin(opening_of_order(order, site), site))

    return _guarded(reply, site_of, _read_order_or_step)


def _read_order_or_step(blobs: Blobs) -> Order | Step:
    return read_step(blobs) if STEP in blobs else read_order(blobs)


def _guarded(
    reply: Callable[[Message, Site], dict[str, bytes]], site_of: SiteOf, read: Read
) -> Handler:
    """Return a handler that sends what `reply` returns, or a refusal with a public reason."""

    def answer(message: Message, context: Context) -> Message:
        site = None
        try:
            site = site_of(context)
            return Message(to_records(reply(message, site)), reply_to=message)
        except NoSiteError as error:
            _LOG.warning("%s", error)
            return refusal(message, PolicyError(NO_SITE))
        except _PUBLIC as error:
            return refusal(message, error, site, _name_in(message, read))
        except LedgerLostError as error:
            _LOG.error("%s", error)
            return refusal(message, PolicyError(NO_LEDGER), site, _name_in(message, read))
        except Exception:
            # The exception may depend on the data, so only the log gets it.
            _LOG.exception("an answer failed; nothing was sent")
            failed = SottovoceError("the site failed; see its log")
            return refusal(message, failed, site, _name_in(message, read))

    return answer


def make_question_handler(columns_of: ColumnsOf, site_of: SiteOf = site_of) -> Handler:
    """Return a message handler that answers private questions within the site's policy.

    Register it with `app.query()` of a `ClientApp`. It charges the site's ledger before it answers.
    A question may open an attempt at a secure sum, in which the site masks its counts; its steps
    are answered by this process as long as it runs.
    To an empty query it replies with the site's name, for federations whose nodes have no keys.

    Args:
        columns_of: Returns the site's columns that may be asked about, each with a function that
            yields the column's values in batches for a given question.
        site_of: Returns the site of a node; by default the site that the node's configuration
            names.

    Returns:
        The handler. Errors that may depend on the data go to the site's log; the server only learns
        that the site failed.

    Examples:
        The client app:

            client_app = ClientApp()
            client_app.query()(make_question_handler(lambda site: {"age": read_ages}))
    """
    exchanges = Exchanges()

    def reply(message: Message, site: Site) -> dict[str, bytes]:
        blobs = from_records(message.content)
        if not blobs:
            return {"name": site.name.encode()}
        inquiry = _read_question_or_step(blobs)
        try:
            check_witnessed(site, inquiry.receipt)
            blobs = answered(inquiry, site)
        except _PUBLIC as error:
            _note(site, error, _name_of(inquiry))
            blobs = refusal_blobs(str(error))
        return {**blobs, **statement_part(site)}

    def answered(inquiry: QuestionRequest | Step, site: Site) -> dict[str, bytes]:
        match inquiry:
            case Step():
                return step_blobs(exchanges.step(inquiry, site))
            case QuestionRequest(attempt=0):
                return {TALLY: answer(inquiry, site, columns_of(site))}
            case QuestionRequest():
                opening = opening_of_question(inquiry, site, columns_of(site))
                return step_blobs(exchanges.begin(opening, site))

    return _guarded(reply, site_of, _read_question_or_step)


def _read_question_or_step(blobs: Blobs) -> QuestionRequest | Step:
    return read_step(blobs) if STEP in blobs else read_question_request(blobs)


def make_relay_handler(site_of: SiteOf = site_of) -> Handler:
    """Return a message handler that answers announcements of a relay's collector.

    The site must be enrolled with the relay's operators. Its report is sealed to the relay. A
    refusal tells the reason, as that of an order does.
    """

    def reply(message: Message, site: Site) -> dict[str, bytes]:
        request = read_request(from_records(message.content))
        try:
            blobs = answer_announced(request, site).blobs()
        except _PUBLIC as error:
            _note(site, error, _name_in(message, read_request))
            blobs = refusal_blobs(str(error))
        return {**blobs, **statement_part(site)}

    return _guarded(reply, site_of, read_request)


def client_app(compute: Compute, site_of: SiteOf = site_of) -> ClientApp:
    """Return a ClientApp that answers orders, questions about columns, and a relay's collector."""
    app = ClientApp()
    app.train()(make_order_handler(compute, site_of))
    app.query()(make_question_handler(own_columns, site_of))
    app.query(ACTION)(make_relay_handler(site_of))
    return app


def refusal(
    message: Message,
    error: SottovoceError,
    site: Site | None = None,
    name: OrderName | None = None,
) -> Message:
    """Return an error reply whose reason is the text of `error`, which must be public.

    The refusal is written to the site's audit log, if it has one, and to the node's log, unless
    there are too many to list.
    """
    _note(site, error, name or OrderName())
    code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    return Message(Error(code=code, reason=str(error)), reply_to=message)


def _note(site: Site | None, error: SottovoceError, name: OrderName) -> None:
    """Log a refusal, unless the audit log has too many of them to list it."""
    if site is None or site.note_refusal(str(error), name):
        _LOG.warning("refused, and nothing was sent: %s", error)


def _name_in(message: Message, read: Read) -> OrderName:
    """Return the name of the order in a message, as far as it can be read."""
    try:
        return _name_of(read(from_records(message.content)))
    except WireError:
        return OrderName()


def _name_of(order: Request) -> OrderName:
    if isinstance(order, ReportRequest | ConfirmationRequest):
        asked = Announcement.read(order.announced).attempt
        return OrderName(run=asked.run, round=asked.round)
    kind = order.mechanism.get("kind") if isinstance(order, Order) else None
    return OrderName(
        run=order.run, round=order.round, mechanism=kind if isinstance(kind, str) else None
    )
