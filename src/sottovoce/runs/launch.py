"""Run a spec wherever its `runtime.backend` says."""

from pathlib import Path
from typing import Any, assert_never

from sottovoce.core.errors import ConfigError
from sottovoce.runs.runner import OnResume, OnRound, run
from sottovoce.runs.spec import RunSpec


def launch(
    spec: RunSpec,
    folder: Path,
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    on_resume: OnResume | None = None,
) -> dict[str, Any]:
    """Run `spec` to its end in `folder`, on this machine."""
    match spec.runtime.backend:
        case "fast":
            return run(spec, folder, resume=resume, on_round=on_round, on_resume=on_resume)
        case "flower-sim":
            from sottovoce.flower.remote import run_in_flower_simulation  # an extra

            return run_in_flower_simulation(
                spec, folder, resume=resume, on_round=on_round, on_resume=on_resume
            )
        case "flower":
            raise ConfigError(
                "runtime.backend = 'flower' runs on a federation: use 'sottovoce deploy run "
                "FEDERATION SPEC', or set runtime.backend to 'fast' or 'flower-sim'"
            )
        case _:
            assert_never(spec.runtime.backend)
