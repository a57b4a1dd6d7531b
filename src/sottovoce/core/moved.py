"""Old import paths: an ImportError that names the new one.

`moved.json` lists the modules of version 0.1 that are elsewhere now. It is read only when an import
fails, and no old path works.
"""

import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.resources import files
from types import FrameType, ModuleType

SINCE = "0.2.0"


def new_path(old: str) -> str | None:
    """Return where a module of version 0.1 is now, or None if it is unknown."""
    moved = json.loads((files("sottovoce.core") / "moved.json").read_text(encoding="utf-8"))
    found: str | None = moved.get(old.removeprefix("sottovoce."))
    return found


def _asked_for(fullname: str) -> str:
    """Return the whole name in an import statement, whose packages are looked for first."""
    frame: FrameType | None = sys._getframe(1)
    longest = fullname
    while frame is not None:
        name = frame.f_locals.get("name")
        if frame.f_code.co_filename.startswith("<frozen importlib") and isinstance(name, str):
            longest = name if name.startswith(f"{longest}.") else longest
        frame = frame.f_back
    return longest


class _OldPaths(MetaPathFinder):
    """Asked last, for names that no other finder knows."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if not fullname.startswith("sottovoce."):
            return None
        asked = _asked_for(fullname)
        new = new_path(asked) or new_path(fullname)
        if new is None:
            return None
        raise ImportError(
            f"'{asked}' is '{new}' since version {SINCE}: change the import", name=fullname
        )


def name_new_paths() -> None:
    """Make imports of old paths say what the new one is."""
    if not any(isinstance(finder, _OldPaths) for finder in sys.meta_path):
        sys.meta_path.append(_OldPaths())
