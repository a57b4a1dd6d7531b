"""What a site makes of Flower's messages: a name, private bits, or a refusal. Nothing else.

Which site a node is: its own configuration says so, never the run's.

`site` in the node's config names the site's file, or else the environment variable SOTTOVOCE_SITE.
Simulated nodes share both: there '{partition-id}' stands for the node's own.
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
from sottovoce.deployment.orders import (
    TALLY,
    Blobs,
    Inquiry,
    Order,
    read_inquiry,
    read_order,
    refusal_blobs,
    reply_blobs,
)
from sottovoce.deployment.site import Site, read_site
from sottovoce.deployment.site_answers import Values, answer, own_columns
from sottovoce.deployment.site_witness import check_witnessed, statement_part
from sottovoce.flower.records import from_records, to_records

SITE_KEY = "site"
SITE_VARIABLE = "SOTTOVOCE_SITE"
_PARTITION = "partition-id"
# What a server hears: what is wrong with the site's files is for its owner.
NO_SITE = "this node has no site whose policy can be read; its log says more"

NO_LEDGER = "this site's ledger is not in order; its log says more"


class NoSiteError(DeploymentError):
    """The site's file is for its owner: what is wrong with it is said here only."""


def site_of(context: Context) -> Site:
    """The site that a node is; without one nothing is answered."""
    path = context.node_config.get(SITE_KEY) or os.environ.get(SITE_VARIABLE)
    if not path:
        raise NoSiteError(
            "this node has no site, and without a policy nothing is answered: start it with "
            f"'sottovoce deploy node', or name the site's file in the node's config ('{SITE_KEY}') "
            f"or in {SITE_VARIABLE}"
        )
    partition = str(context.node_config.get(_PARTITION, ""))
    try:
        return read_site(Path(str(path).replace(f"{{{_PARTITION}}}", partition)))
    except SottovoceError as error:
        raise NoSiteError(str(error)) from None


_LOG = printable_text.logger()
# Reasons that follow from the order, the policy and the ledger alone.
_PUBLIC = (PolicyError, BudgetExhaustedError, WireError, ConfigError, RolledBackError)

Compute = Callable[[Order, Site], list[bytes]]
SiteOf = Callable[[Context], Site]
ColumnsOf = Callable[[Site], Mapping[str, Values]]
Answer = Callable[[Message, Context], Message]
Read = Callable[[Blobs], Order | Inquiry]


def answering(compute: Compute, site_of: SiteOf = site_of) -> Answer:
    """A site's answers to orders, which `compute` turns into sealed messages.

    An answer and a refusal both say in how many rounds of the run the site was charged, and how
    far its ledger has come. A ledger older than the order's receipt answers nothing.
    """

    def reply(message: Message, site: Site) -> dict[str, bytes]:
        order = read_order(from_records(message.content))
        try:
            check_witnessed(site, order.receipt)
            messages = compute(order, site)
        except _PUBLIC as error:
            _note(site, error, _name_of(order))
            blobs = refusal_blobs(str(error), site.rounds_charged(order.run))
        else:
            blobs = reply_blobs(messages, site.rounds_charged(order.run))
        return {**blobs, **statement_part(site)}

    return _guarded(reply, site_of, read_order)


def _guarded(
    reply: Callable[[Message, Site], dict[str, bytes]], site_of: SiteOf, read: Read
) -> Answer:
    """What `reply` says, or a refusal whose reason is public."""

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
            # What went wrong may tell about the data: it stays here.
            _LOG.exception("an answer failed; nothing was sent")
            failed = SottovoceError("the site failed; see its log")
            return refusal(message, failed, site, _name_in(message, read))

    return answer


def answering_questions(columns_of: ColumnsOf, site_of: SiteOf = site_of) -> Answer:
    """A site's answers to inquiries; and its name, for federations whose nodes have no keys."""

    def reply(message: Message, site: Site) -> dict[str, bytes]:
        blobs = from_records(message.content)
        if not blobs:
            return {"name": site.name.encode()}
        inquiry = read_inquiry(blobs)
        try:
            check_witnessed(site, inquiry.receipt)
            blobs = {TALLY: answer(inquiry, site, columns_of(site))}
        except _PUBLIC as error:
            _note(site, error, _name_of(inquiry))
            blobs = refusal_blobs(str(error))
        return {**blobs, **statement_part(site)}

    return _guarded(reply, site_of, read_inquiry)


def client_app(compute: Compute, site_of: SiteOf = site_of) -> ClientApp:
    """Answers to orders, and to inquiries about what the site's file names, as a Flower app."""
    app = ClientApp()
    app.train()(answering(compute, site_of))
    app.query()(answering_questions(own_columns, site_of))
    return app


def refusal(
    message: Message,
    error: SottovoceError,
    site: Site | None = None,
    name: OrderName | None = None,
) -> Message:
    """An error reply; its reason is public."""
    _note(site, error, name or OrderName())
    code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    return Message(Error(code=code, reason=str(error)), reply_to=message)


def _note(site: Site | None, error: SottovoceError, name: OrderName) -> None:
    """Log a refusal; those that come too often for the audit log are not in this log either."""
    if site is None or site.note_refusal(str(error), name):
        _LOG.warning("refused, and nothing was sent: %s", error)


def _name_in(message: Message, read: Read) -> OrderName:
    """Which order it is, as far as that can be read."""
    try:
        return _name_of(read(from_records(message.content)))
    except WireError:
        return OrderName()


def _name_of(order: Order | Inquiry) -> OrderName:
    kind = order.mechanism.get("kind") if isinstance(order, Order) else None
    return OrderName(
        run=order.run, round=order.round, mechanism=kind if isinstance(kind, str) else None
    )
