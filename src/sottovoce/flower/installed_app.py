"""A Flower app that a site has installed: it trains, and the site's own mod stands before it.

A mod inside an app is there if the app's author wants it to be. Here the site puts it around the
app, so nothing leaves but what `private_mod` lets out, whatever the app does.
"""

import importlib
from functools import lru_cache

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from sottovoce.core.errors import PolicyError
from sottovoce.deployment.orders import ORDER
from sottovoce.flower.client import Answer, SiteOf
from sottovoce.flower.mod import private_mod
from sottovoce.flower.records import RECORD


def with_installed_app(ours: Answer, site_of: SiteOf) -> Answer:
    """Our own answers to orders; to whatever else, those of the site's app, if it names one."""

    def answer(message: Message, context: Context) -> Message:
        record = message.content.config_records.get(RECORD)
        order = record is not None and ORDER in record
        if order or message.metadata.message_type == "query":
            return ours(message, context)  # without a site it refuses, and says so
        app = site_of(context).app
        if app is None:
            return ours(message, context)
        return private_mod(message, context, _installed(app))

    return answer


@lru_cache(maxsize=1)
def _installed(reference: str) -> ClientApp:
    module, _, attribute = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise PolicyError(f"the site's app '{reference}' cannot be loaded: {error}") from None
    if not isinstance(found, ClientApp):
        raise PolicyError(f"the site's app '{reference}' is no ClientApp")
    if private_mod in found._mods:
        raise PolicyError(f"the site's app '{reference}' has private_mod already; take it out")
    return found
