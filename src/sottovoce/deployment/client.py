"""What a site makes of Flower's messages: a name, sealed messages, or a refusal. Nothing else."""

import logging
from collections.abc import Callable

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from sottovoce.deployment.node_site import NO_SITE, NoSiteError, site_of
from sottovoce.deployment.orders import Order, read_order, reply_blobs
from sottovoce.deployment.records import from_records, to_records
from sottovoce.deployment.site import Site
from sottovoce.errors import (
    BudgetExhaustedError,
    ConfigError,
    PolicyError,
    SottovoceError,
    WireError,
)

_LOG = logging.getLogger("sottovoce")
# Reasons that follow from the order, the policy and the ledger alone.
_PUBLIC = (PolicyError, BudgetExhaustedError, WireError, ConfigError)

Compute = Callable[[Order, Site], list[bytes]]
SiteOf = Callable[[Context], Site]
Answer = Callable[[Message, Context], Message]


def answering(compute: Compute, site_of: SiteOf = site_of) -> Answer:
    """A site's answers to orders, which `compute` turns into sealed messages."""

    def answer(message: Message, context: Context) -> Message:
        try:
            order = read_order(from_records(message.content))
            return Message(
                to_records(reply_blobs(compute(order, site_of(context)))), reply_to=message
            )
        except NoSiteError as error:
            _LOG.warning("%s", error)
            return refusal(message, PolicyError(NO_SITE))
        except _PUBLIC as error:
            return refusal(message, error)
        except Exception:
            # What went wrong may tell about the data: it stays here.
            _LOG.exception("a round failed; nothing was sent")
            return refusal(message, SottovoceError("the site failed; see its log"))

    return answer


def telling_name(site_of: SiteOf = site_of) -> Answer:
    """Who a node says it is, for federations whose nodes have no keys."""

    def answer(message: Message, context: Context) -> Message:
        try:
            return Message(to_records({"name": site_of(context).name.encode()}), reply_to=message)
        except NoSiteError as error:
            _LOG.warning("%s", error)
            return refusal(message, PolicyError(NO_SITE))
        except _PUBLIC as error:
            return refusal(message, error)

    return answer


def client_app(compute: Compute, site_of: SiteOf = site_of) -> ClientApp:
    """The two answers as a Flower app."""
    app = ClientApp()
    app.train()(answering(compute, site_of))
    app.query()(telling_name(site_of))
    return app


def refusal(message: Message, error: SottovoceError) -> Message:
    """An error reply; its reason is public."""
    _LOG.warning("refused, and nothing was sent: %s", error)
    code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    return Message(Error(code=code, reason=str(error)), reply_to=message)
