"""The public names of a package, each imported when it is first used.

    if TYPE_CHECKING:  # for type checkers and editors
        from sottovoce.ledger.records import Budget as Budget

    export_lazily(__name__, {"records": ["Budget"]})  # for Python

A package cannot export a name that is also the name of one of its modules: importing the module
would replace the exported name.
"""

import importlib
import sys

TYPE_CHECKING = False  # The module `typing` would take a third of the package's import time.
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

# For each imported package: the module that defines each exported name.
DEFINING_MODULES: dict[str, dict[str, str]] = {}

# Public names of version 0.1 by their new names. `from package import old` says which one it is.
RENAMED = {
    "BitwiseRandomisedResponse": "BitwiseRandomizedResponse",
    "GeneralisedRandomisedResponse": "GeneralizedRandomizedResponse",
    "Knob": "CalibratedParameter",
    "privacy_spent": "spend",
}


def export_lazily(package: str, homes: "Mapping[str, Sequence[str]]") -> None:
    """Make `package` export names of its modules without importing these modules yet.

    Sets `__all__`, `__getattr__` and `__dir__` of the package (PEP 562).

    Args:
        package: The full name of the package, whose `__init__.py` calls this.
        homes: The exported names by the module, relative to the package, that defines them. The
            first use of a name imports its module; if that needs an optional package that is
            missing, ModuleNotFoundError names the command that installs it.
    """
    module = sys.modules[package]
    home_of = {name: home for home, names in homes.items() for name in names}
    DEFINING_MODULES[package] = {name: f"{package}.{home}" for name, home in home_of.items()}

    def find(name: str) -> "Any":
        if RENAMED.get(name) in home_of and _is_imported():
            raise ImportError(f"'{name}' is '{RENAMED[name]}' since version 0.2.0; import that")
        if name not in home_of:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        try:
            home = importlib.import_module(f"{package}.{home_of[name]}")
        except ModuleNotFoundError as error:
            raise _missing(f"{package}.{name}", error) from error
        value = getattr(home, name)
        setattr(module, name, value)
        return value

    names = sorted([*home_of, *(["__version__"] if hasattr(module, "__version__") else [])])
    module.__dict__.update(__all__=names, __getattr__=find, __dir__=lambda: sorted(names))


def _is_imported() -> bool:
    """Return whether `from package import name` asks for a name, and not `getattr` or `hasattr`."""
    import dis

    frame = sys._getframe(2)  # The caller of the package's `__getattr__`, or importlib for it.
    while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    done = [one for one in dis.get_instructions(frame.f_code) if one.offset <= frame.f_lasti]
    return bool(done) and done[-1].opname in ("IMPORT_FROM", "IMPORT_NAME")


def _missing(name: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Add the command that installs the missing package, if it is an optional one."""
    from sottovoce.core import extras
    from sottovoce.core.errors import UnknownNameError

    try:
        package = extras.find(error.name or "")
    except UnknownNameError:
        return error
    text = f"{name} needs the package {package.distribution}; install it: {package.install}"
    return ModuleNotFoundError(text, name=error.name, path=error.path)
