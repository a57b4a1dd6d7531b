"""The register of backends, which `runtime.backend` of a spec names.

    @register_backend("cluster")
    def run_on_cluster(spec, folder, *, resume=False, on_round=None, on_resume=None): ...

A backend runs a spec to its end in a folder and returns the result, as `runner.run` does. A backend
that reaches clients on other machines calls `runner.run` with its own `make_backend`, so that
folder, ledger and result are the same as those of any run. List its module in `BACKENDS` below, or
register it under the entry point group `sottovoce.backends` (see `core.registry`); nothing else
changes. Every backend except "fast" has its specs checked as for a federation of machines
(`runs.resolve`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sottovoce.core.plugin_returns import ReturnCondition, with_checked_results
from sottovoce.core.registry import Register
from sottovoce.runs.spec import RunSpec

if TYPE_CHECKING:
    from sottovoce.runs.runner import OnResume, OnRound


class RunBackend(Protocol):
    """A function that runs a spec to its end in a run folder and returns the result."""

    def __call__(
        self,
        spec: RunSpec,
        folder: Path,
        *,
        resume: bool = False,
        on_round: "OnRound | None" = None,
        on_resume: "OnResume | None" = None,
    ) -> dict[str, Any]:
        """Run a spec to its end, or continue it.

        Args:
            spec: What to run.
            folder: The run folder; new or empty, unless the run is resumed.
            resume: Continue the interrupted run in `folder` from its last checkpoint.
            on_round: Called with the metrics of each finished round.
            on_resume: Called with a sentence that says where a resumed run continues.

        Returns:
            The content of result.json, as `runner.run` returns it.
        """


B = TypeVar("B", bound=Callable[..., dict[str, Any]])

BACKENDS: Register[RunBackend] = Register(
    "backend",
    places={
        "fast": "sottovoce.runs.runner",
        "flower": "sottovoce.runs.runner",
        "relay": "sottovoce.runs.runner",
        "flower-sim": "sottovoce.flower.remote",
    },
)


_RESULT = ReturnCondition(
    what="the result of the run, a dictionary as sottovoce.runs.run returns it",
    fits=lambda value: isinstance(value, dict) and "warnings" in value and "clients" in value,
)


def register_backend(name: str) -> Callable[[B], B]:
    """Return a decorator that registers a function (see `RunBackend`) as a backend of runs.

    Args:
        name: The value of `runtime.backend` that selects it.

    Returns:
        The decorator, which returns its function unchanged.

    Raises:
        PluginError: When the decorator is applied: another module has registered the name.
    """

    def enter(backend: B) -> B:
        BACKENDS.enter(
            name, with_checked_results(BACKENDS, name, backend, _RESULT), module=backend.__module__
        )
        return backend

    return enter
