"""The register of backends: what `runtime.backend` names, one decorator on a function.

    @register_backend("cluster")
    def run_on_cluster(spec, folder, *, resume=False, on_round=None, on_resume=None): ...

It runs a spec to its end in a folder and returns the result, as `runner.run` does; one that reaches
clients elsewhere calls `runner.run` with a `backend_of` of its own, so that folder, ledger and
result stay those of any run. Name its module in `BACKENDS` below, or under the entry point group
`backends` (see `core.registry`); nothing else changes. A spec is checked as for a
federation of machines (`runs.resolve`) whatever backend it names but "fast".
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sottovoce.core.plugin_returns import Returns, held
from sottovoce.core.registry import Register
from sottovoce.runs.spec import RunSpec

if TYPE_CHECKING:
    from sottovoce.runs.runner import OnResume, OnRound


class Backend(Protocol):
    """Runs a spec to its end in a folder and returns the result."""

    def __call__(
        self,
        spec: RunSpec,
        folder: Path,
        *,
        resume: bool = False,
        on_round: "OnRound | None" = None,
        on_resume: "OnResume | None" = None,
    ) -> dict[str, Any]:
        """Run `spec`, or continue it from its last checkpoint where `resume` is true."""


B = TypeVar("B", bound=Callable[..., dict[str, Any]])

BACKENDS: Register[Backend] = Register(
    "backend",
    places={
        "fast": "sottovoce.runs.runner",
        "flower": "sottovoce.runs.runner",
        "flower-sim": "sottovoce.flower.remote",
    },
)


_RESULT = Returns(
    what="the result of the run, a dictionary as sottovoce.runs.run returns it",
    fits=lambda value: isinstance(value, dict) and "warnings" in value and "clients" in value,
)


def register_backend(name: str) -> Callable[[B], B]:
    """Decorator that enters a backend."""

    def enter(backend: B) -> B:
        BACKENDS.enter(name, held(BACKENDS, name, backend, _RESULT), module=backend.__module__)
        return backend

    return enter
