"""The face of a package: the names that it offers, each loaded when it is first asked for.

    if TYPE_CHECKING:  # what type checkers and editors read
        from sottovoce.ledger.records import Budget as Budget

    show(__name__, {"records": ["Budget"]})  # what Python reads

A face may not use the name of a module of its own package: whoever imports that module would put it
in the place of the name.

What needs an optional package says what it is for, and how to get it.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.core.errors import UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class Optional:
    """A package by the name under which it is imported; `extra` is None where none brings it."""

    module: str
    distribution: str
    extra: str | None
    purpose: str

    @property
    def install(self) -> str:
        wanted = f"'sottovoce[{self.extra}]'" if self.extra else self.distribution
        return f"pip install {wanted}"


CORE = ("numpy", "scipy", "cryptography", "pydantic", "typer", "rich")
OPTIONAL = (
    Optional(module="torch", distribution="torch", extra="learn", purpose="training models"),
    Optional(
        module="sklearn", distribution="scikit-learn", extra="learn", purpose="the bundled digits"
    ),
    Optional(
        module="safetensors", distribution="safetensors", extra="learn", purpose="exported models"
    ),
    Optional(module="flwr", distribution="flwr", extra="flower", purpose="several machines"),
    Optional(module="jinja2", distribution="jinja2", extra="report", purpose="reports as pages"),
    Optional(
        module="tensorboard",
        distribution="tensorboard",
        extra="tensorboard",
        purpose="curves in TensorBoard",
    ),
    Optional(
        module="mlflow", distribution="mlflow-skinny", extra="mlflow", purpose="runs in MLflow"
    ),
    Optional(module="pandas", distribution="pandas", extra=None, purpose="data frames"),
    Optional(module="triton", distribution="triton", extra=None, purpose="kernels on NVIDIA GPUs"),
)
# What else an extra brings: the first of these that is missing is what a person hears of.
_ALONG = {
    **dict.fromkeys(("httpx", "starlette", "uvicorn"), "flwr"),
    **dict.fromkeys(("sqlalchemy", "alembic"), "mlflow"),
}


def find(module: str) -> Optional:
    """The optional package that brings a module; UnknownNameError for what is none."""
    name = module.split(".")[0]
    for one in OPTIONAL:
        if one.module == _ALONG.get(name, name):
            return one
    raise UnknownNameError.among("optional package", name, [one.module for one in OPTIONAL])


def show(package: str, homes: Mapping[str, Sequence[str]]) -> None:
    """Make `package` offer the names in `homes`, by the module inside it that defines them.

    Set `__all__`, `__getattr__` and `__dir__` of the package (PEP 562), and import nothing.
    """
    module = sys.modules[package]
    home_of = {name: home for home, names in homes.items() for name in names}

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
    pass
    from sottovoce.core.errors import UnknownNameError

    try:
        package = find(error.name or "")
    except UnknownNameError:
        return error
    text = f"{name} needs the package {package.distribution}: {package.install}"
    return ModuleNotFoundError(text, name=error.name, path=error.path)
