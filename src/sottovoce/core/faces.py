"""The face of a package: the names that it offers, each loaded when it is first asked for.

    if TYPE_CHECKING:  # what type checkers and editors read
        from sottovoce.ledger.records import Budget as Budget

    show(__name__, {"records": ["Budget"]})  # what Python reads

A face may not use the name of a module of its own package: whoever imports that module would put it
in the place of the name.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

# The modules of the names that packages offer, as far as these are imported.
HOMES: dict[str, dict[str, str]] = {}


def show(package: str, homes: Mapping[str, Sequence[str]]) -> None:
    """Make `package` offer the names in `homes`, by the module inside it that defines them.

    Set `__all__`, `__getattr__` and `__dir__` of the package (PEP 562), and import nothing.
    """
    module = sys.modules[package]
    home_of = {name: home for home, names in homes.items() for name in names}
    HOMES[package] = {name: f"{package}.{home}" for name, home in home_of.items()}

    def find(name: str) -> Any:
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


def _missing(name: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error with the command that installs an optional package, if it is one."""
    from sottovoce.core import extras
    from sottovoce.core.errors import UnknownNameError

    try:
        package = extras.find(error.name or "")
    except UnknownNameError:
        return error
    text = f"{name} needs the package {package.distribution}: {package.install}"
    return ModuleNotFoundError(text, name=error.name, path=error.path)
