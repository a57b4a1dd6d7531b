"""Adapters to Flower: a client mod, a strategy, apps, and the processes of a deployed federation.

    app = ClientApp(mods=[private_mod])  # in your client app
    strategy = PrivateStrategy(FedAvg(), context)  # in your server app

This is the only package that imports `flwr`, which the extra `flower` installs. It also imports
`sottovoce.deployment` and the packages below it.
"""

import os
from typing import TYPE_CHECKING

from sottovoce.core.faces import export_lazily

# Flower reads these when it is imported. A privacy tool sends no telemetry unless asked to.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

if TYPE_CHECKING:
    from sottovoce.flower.asking import ask_on_grid as ask_on_grid
    from sottovoce.flower.client import make_question_handler as make_question_handler
    from sottovoce.flower.mod import private_mod as private_mod
    from sottovoce.flower.strategy import PrivateStrategy as PrivateStrategy

export_lazily(
    __name__,
    {
        "asking": ["ask_on_grid"],
        "client": ["make_question_handler"],
        "mod": ["private_mod"],
        "strategy": ["PrivateStrategy"],
    },
)
