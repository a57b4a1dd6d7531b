"""`sottovoce.app.server:app`, the ServerApp: a spec, a run folder, and the nodes that are there.

Its run configuration: `spec` (TOML text), `out` (run folder), `resume`, and `sites`, the operator's
federation.toml with the sites' public keys; empty where nodes have none.
"""

from pathlib import Path

from sottovoce.config.loading import parse, parse_text
from sottovoce.deployment.federation import Federation
from sottovoce.deployment.grid_post import Grid
from sottovoce.deployment.server import RunConfig, server_app
from sottovoce.errors import ConfigError
from sottovoce.experiments.remote import run_on_grid


def serve(grid: Grid, config: RunConfig) -> None:
    """Run what the configuration says, into its folder."""
    for key in ("spec", "out"):
        if not config.get(key):
            raise ConfigError(f"the run configuration lacks '{key}'; use 'sottovoce deploy run'")
    spec = parse(parse_text(str(config["spec"]), "the run's spec"), "the run's spec")
    runtime = spec.runtime.model_copy(update={"backend": "flower"})
    sites = str(config.get("sites") or "")
    run_on_grid(
        spec.model_copy(update={"runtime": runtime}),
        Path(str(config["out"])),
        grid,
        name_of_key=Federation.read(Path(sites).parent).sites_by_key() if sites else {},
        resume=bool(config.get("resume", False)),
    )


app = server_app(serve)
