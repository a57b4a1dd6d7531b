"""The ServerApp `sottovoce.flower.app_server:app`, which runs a spec or asks a question.

Its run configuration has either `spec` (TOML or JSON) with `resume` and `allow_code`, `question`
(JSON) with `about`, `deadline_seconds`, `minimum_sites` and `confidence`, and for a secure sum
`channel`, `minimum_clients`, `colluders` and `delta`, or `relay` and `ann` for an announcement that
is passed on. It also has `out`, the output folder, and `sites`, the operator's federation.toml,
whose folder holds the sites' public keys; `sites` is empty where nodes have no keys.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sottovoce.analytics.question import from_json
from sottovoce.core import bounded_json
from sottovoce.core.errors import ConfigError
from sottovoce.deployment.machines.federation import Federation
from sottovoce.deployment.machines.trust_files import ROSTER_NAME, read_roster
from sottovoce.deployment.machines.witness_store import WitnessStore
from sottovoce.deployment.masked_asking import SumTerms
from sottovoce.flower.asking import ask_on_grid
from sottovoce.flower.grid_post import count_no_traffic
from sottovoce.flower.link import traffic_of
from sottovoce.flower.pauses import patch_flower_grid_polling
from sottovoce.flower.relay_server import RELAY_KEY, serve_announcement
from sottovoce.flower.remote import run_on_grid, with_flower_backend
from sottovoce.protocol.secure.roster import Roster
from sottovoce.runs.loading import check_code_allowed, parse, parse_text

RunConfig = Mapping[str, object]


def server_app(serve: Callable[[Grid, RunConfig], None]) -> ServerApp:
    """Return a ServerApp that calls `serve` with the grid and the run configuration.

    At its start the app logs Sottovoce's messages from INFO on and shortens Flower's polling.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        logging.getLogger("sottovoce").setLevel(logging.INFO)
        patch_flower_grid_polling()
        serve(grid, context.run_config)

    return app


def serve(grid: Grid, config: RunConfig) -> None:
    """Run the spec, or ask the question, of the run configuration; write results to its `out`.

    Raises ConfigError if the configuration lacks a key, or lists sites without any key.
    """
    task = next((name for name in (RELAY_KEY, "question") if config.get(name)), "spec")
    for key in (task, "out"):
        if not config.get(key):
            raise ConfigError(
                f"the run configuration lacks '{key}'; use 'sottovoce deploy run' for a spec or "
                "'sottovoce deploy ask' for a question, which set it"
            )
    federation = Federation.read(Path(str(config["sites"])).parent) if config.get("sites") else None
    if federation and not federation.sites_by_key():
        # Without keys, nodes could claim any name.
        raise ConfigError(
            f"no site of {config['sites']} has a key, so no site can be asked; add their keys: "
            f"sottovoce deploy certificates {federation.folder} --add NAME node.pub"
        )
    if task == RELAY_KEY:
        assert federation is not None, "a relay's bridge names the sites"
        serve_announcement(grid, config, federation)
    elif task == "question":
        _ask(grid, config, federation)
    else:
        _train(grid, config, federation)


def _train(grid: Grid, config: RunConfig, federation: Federation | None) -> None:
    spec = parse(_table(str(config["spec"])), "the run's spec")
    # The operator allows code with --allow-code of 'sottovoce deploy run'.
    check_code_allowed(
        spec,
        allow_code=config.get("allow_code") is True,
        how="--allow-code ('allow_code' of the run configuration)",
    )
    run_on_grid(
        with_flower_backend(spec),
        Path(str(config["out"])),
        grid,
        resume=bool(config.get("resume", False)),
        name_of_key=federation.sites_by_key() if federation else {},
        traffic=partial(traffic_of, federation) if federation else count_no_traffic,
        witness=WitnessStore(federation) if federation else None,
        roster=_roster(federation),
    )


def _roster(federation: Federation | None) -> Roster | None:
    """Return the roster of the federation's sites; None if it has none."""
    path = federation.folder / ROSTER_NAME if federation else None
    return read_roster(path) if path and path.is_file() else None


def _ask(grid: Grid, config: RunConfig, federation: Federation | None) -> None:
    ask_on_grid(
        grid,
        from_json(str(config["question"])),
        about=str(config.get("about", "")),
        folder=Path(str(config["out"])),
        name_of_key=federation.sites_by_key() if federation else {},
        sites=federation.sites if federation else (),
        deadline_seconds=float(str(config.get("deadline_seconds", 600.0))),
        minimum_sites=int(str(config.get("minimum_sites", 1))),
        confidence=float(str(config.get("confidence", 0.95))),
        secure_sum=_sum_terms(config, federation),
        witness=WitnessStore(federation) if federation else None,
    )


def _sum_terms(config: RunConfig, federation: Federation | None) -> SumTerms | None:
    """Return the terms of a question whose sites reveal only a sum; None for a plain question.

    Raises ConfigError if there is no roster.
    """
    if config.get("channel", "direct") != "secure_sum":
        return None
    roster = _roster(federation)
    if roster is None:
        raise ConfigError(
            "a secure sum needs a roster of the sites' keys; make one with 'sottovoce deploy "
            "roster', and let every site pin it"
        )
    return SumTerms(
        roster=roster,
        # 0 stands for the least number that the number of sites allows.
        minimum_clients=int(str(config.get("minimum_clients", 0))) or None,
        colluders=int(str(config.get("colluders", 1))),
        delta=float(str(config.get("delta", 1e-6))),
    )


def _table(text: str) -> dict[str, Any]:
    """Return the spec in TOML, as people write it, or in JSON, as `deploy run` writes it."""
    if text.startswith("{"):
        try:
            found: dict[str, Any] = bounded_json.loads(text.encode(errors="replace"))
        except bounded_json.JsonError as error:
            raise ConfigError(f"the run's spec {error}; use 'sottovoce deploy run'") from None
        return found
    return parse_text(text, "the run's spec")


app = server_app(serve)
