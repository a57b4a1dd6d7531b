"""The import paths of version 0.1: each raises an ImportError that names the new path.

`moved.json` maps the modules of version 0.1 to their new places. It is read only when an import
fails; no old path can still be imported. A name that a package exports should be imported from the
package, not from the module that defines it, so the message names the package.
"""

import importlib
import sys

from sottovoce.core.faces import DEFINING_MODULES

TYPE_CHECKING = False  # The module `typing` would take a third of the package's import time.
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import FrameType, ModuleType

SINCE = "0.2.0"


def new_path(old: str) -> str | None:
    """Return where a module of version 0.1 is now, or None if the table has no entry for it.

    `old` is its full name, with or without "sottovoce.". Several new places are joined by " and ".
    """
    import json  # These are imported here because only failing imports need them.
    from importlib.resources import files

    moved = json.loads((files("sottovoce.core") / "moved.json").read_text(encoding="utf-8"))
    found: str | None = moved.get(old.removeprefix("sottovoce."))
    return found


def _asked_for(fullname: str) -> str:
    """Return the full module name of the import statement, which imports its parents first."""
    frame: FrameType | None = sys._getframe(1)
    longest = fullname
    while frame is not None:
        name = frame.f_locals.get("name")
        if frame.f_code.co_filename.startswith("<frozen importlib") and isinstance(name, str):
            longest = name if name.startswith(f"{longest}.") else longest
        frame = frame.f_back
    return longest


def _names_asked_for() -> tuple[str, ...]:
    """Return the names in `from old import names`; none for another kind of import."""
    import dis

    frame: FrameType | None = sys._getframe(1)
    inside = (__file__, "<frozen importlib")
    while frame is not None and frame.f_code.co_filename.startswith(inside):
        frame = frame.f_back
    if frame is None:
        return ()
    done = [one for one in dis.get_instructions(frame.f_code) if one.offset <= frame.f_lasti]
    if len(done) < 2 or done[-1].opname != "IMPORT_NAME":
        return ()
    names = done[-2].argval
    return names if isinstance(names, tuple) else ()


def _public_imports(new: str, asked: tuple[str, ...]) -> tuple[list[str], bool]:
    """Return import statements for public names of a new place, and whether they cover `asked`.

    Args:
        new: A module or a package.
        asked: The names to import. If none of them is public, a module gives all its public names.
    """
    top = ".".join(new.split(".")[:2])
    if top.startswith("sottovoce."):
        importlib.import_module(
            top
        )  # This only fills DEFINING_MODULES; no module of the package is loaded.
    found: dict[str, str] = {}
    for package in dict.fromkeys(("sottovoce", top)):
        for name, home in DEFINING_MODULES.get(package, {}).items():
            if f"{home}.".startswith(f"{new}."):
                found.setdefault(name, package)
    wanted = [name for name in asked if name in found]
    if not wanted and new == top:
        return [], False  # A list of all names of a package would be too long to help.
    lines = [
        f"from {package} import {', '.join(names)}"
        for package in ("sottovoce", top)
        if (names := [name for name in wanted or sorted(found) if found[name] == package])
    ]
    return list(dict.fromkeys(lines)), bool(asked) and len(wanted) == len(asked)


def _told(asked: str, new: str) -> str:
    imports, all_public = [], True
    for place in new.split(" and "):
        lines, public = _public_imports(place, _names_asked_for())
        imports += lines
        all_public = all_public and public
    how = " and ".join(f"'{one}'" for one in imports)
    if all_public:
        return f"'{asked}' was moved in version {SINCE}; change the import to {how}"
    public_names = f"; its public names are imported by {how}" if imports else ""
    return f"'{asked}' is '{new}' since version {SINCE}; change the import{public_names}"


class _OldPaths:
    """A finder that comes last, so it is asked only for modules that no other finder knows."""

    def find_spec(
        self,
        fullname: str,
        path: "Sequence[str] | None",  # noqa: ARG002
        target: "ModuleType | None" = None,  # noqa: ARG002
    ) -> "ModuleSpec | None":
        """Raise an ImportError with the new path for a module that has moved."""
        if not fullname.startswith("sottovoce."):
            return None
        asked = _asked_for(fullname)
        new = new_path(asked) or new_path(fullname)
        if new is None:
            return None
        raise ImportError(_told(asked, new), name=fullname)


def explain_moved_imports() -> None:
    """Make imports of version 0.1's module paths raise an ImportError with the new path.

    This adds a finder to `sys.meta_path`, once, however often it is called.
    """
    if not any(isinstance(finder, _OldPaths) for finder in sys.meta_path):
        sys.meta_path.append(_OldPaths())
