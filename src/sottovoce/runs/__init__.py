"""Run specs: read, check, build, run into a folder, resume, and log to trackers.

    result = run(load(Path("mine.toml")), Path("runs/mine"))

`sottovoce.simulate` does the same and returns the run as an object; `open_run` reads a run folder.
The package imports `federated`, `analytics` and the packages below them, and never Flower.
"""

from typing import TYPE_CHECKING

from sottovoce.core.faces import export_lazily

if TYPE_CHECKING:
    from sottovoce.runs.backends import RunBackend as RunBackend
    from sottovoce.runs.backends import register_backend as register_backend
    from sottovoce.runs.checked import CheckResult as CheckResult
    from sottovoce.runs.checked import ClientCost as ClientCost
    from sottovoce.runs.folder import RunFolder as RunFolder
    from sottovoce.runs.loading import load as load
    from sottovoce.runs.loading import parse as parse
    from sottovoce.runs.opened import Run as Run
    from sottovoce.runs.opened import open_run as open_run
    from sottovoce.runs.runner import run as run
    from sottovoce.runs.spec import PrivacySpec as PrivacySpec
    from sottovoce.runs.spec import RunSpec as RunSpec
    from sottovoce.runs.spec import RuntimeSpec as RuntimeSpec

export_lazily(
    __name__,
    {
        "backends": ["RunBackend", "register_backend"],
        "checked": ["CheckResult", "ClientCost"],
        "folder": ["RunFolder"],
        "loading": ["load", "parse"],
        "opened": ["Run", "open_run"],
        "runner": ["run"],
        "spec": ["PrivacySpec", "RunSpec", "RuntimeSpec"],
    },
)
