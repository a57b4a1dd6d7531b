"""`sottovoce.app.server:app`, the ServerApp: a spec, a run folder, and the nodes that are there.

Its run configuration: `spec` (TOML or JSON), `out` (run folder), `resume`, and `sites`, the file
federation.toml of the operator, beside whom the public keys lie; empty where nodes have none.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

from sottovoce.config.loading import parse, parse_text
from sottovoce.deployment.grid_post import Grid
from sottovoce.deployment.machines.federation import Federation
from sottovoce.deployment.machines.link import traffic_of
from sottovoce.deployment.server import RunConfig, server_app
from sottovoce.errors import ConfigError
from sottovoce.experiments.remote import run_on_grid


def serve(grid: Grid, config: RunConfig) -> None:
    """Run what the configuration says, into its folder."""
    for key in ("spec", "out"):
        if not config.get(key):
            raise ConfigError(f"the run configuration lacks '{key}'; use 'sottovoce deploy run'")
    spec = parse(_table(str(config["spec"])), "the run's spec")
    runtime = spec.runtime.model_copy(update={"backend": "flower"})
    known: dict[str, Any] = {"name_of_key": {}}
    if config.get("sites"):
        federation = Federation.read(Path(str(config["sites"])).parent)
        known = {
            "name_of_key": federation.sites_by_key(),
            "traffic": partial(traffic_of, federation),
        }
    run_on_grid(
        spec.model_copy(update={"runtime": runtime}),
        Path(str(config["out"])),
        grid,
        resume=bool(config.get("resume", False)),
        **known,
    )


def _table(text: str) -> dict[str, Any]:
    """The spec as people write it, or as 'sottovoce deploy run' does."""
    if text.startswith("{"):
        found: dict[str, Any] = json.loads(text)
        return found
    return parse_text(text, "the run's spec")


app = server_app(serve)
