"""Run a spec wherever its `runtime.backend` says."""

from pathlib import Path
from typing import Any

from sottovoce.core.errors import ConfigError
from sottovoce.runs.backends import BACKENDS, register_backend
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
    """Run `spec` to its end in `folder`, on the backend that it names."""
    backend = BACKENDS.find(spec.runtime.backend)
    return backend(spec, folder, resume=resume, on_round=on_round, on_resume=on_resume)


@register_backend("fast")
def _in_this_process(
    spec: RunSpec,
    folder: Path,
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    on_resume: OnResume | None = None,
) -> dict[str, Any]:
    return run(spec, folder, resume=resume, on_round=on_round, on_resume=on_resume)


@register_backend("flower")
def _on_machines(*_: Any, **__: Any) -> dict[str, Any]:
    raise ConfigError(
        "runtime.backend = 'flower' runs on a federation: use 'sottovoce deploy run FEDERATION "
        "SPEC', or set runtime.backend to 'fast' or 'flower-sim'"
    )
