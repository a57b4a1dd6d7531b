"""Adapters to Flower: apps, mod, strategy, link, node, gate.

    app = ClientApp(mods=[private_mod])  # in your client app
    strategy = PrivateStrategy(FedAvg(), context)  # in your server app

The only package that imports flwr, which the extra `flower` brings; beside it, deployment and
below.
"""

import os
from typing import TYPE_CHECKING

from sottovoce.core.faces import show

# Read by Flower when it is imported: a tool for privacy tells nobody that it runs, unless asked to.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

if TYPE_CHECKING:
    from sottovoce.flower.asking import ask_on_grid as ask_on_grid
    from sottovoce.flower.client import answering_questions as answering_questions
    from sottovoce.flower.mod import private_mod as private_mod
    from sottovoce.flower.strategy import PrivateStrategy as PrivateStrategy

show(
    __name__,
    {
        "asking": ["ask_on_grid"],
        "client": ["answering_questions"],
        "mod": ["private_mod"],
        "strategy": ["PrivateStrategy"],
    },
)
