"""The register of datasets: one decorator on a loader, found by walking the package.

    @register("foo", summary="...", sources=(Source(files=(DataFile(path="foo.npz"),)),))
    def foo(request: Request) -> Dataset: ...

Drop the file into `datasets/`; nothing else changes. A name that ends in a colon, such as `npz:`,
takes what follows it as an argument.
"""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

import sottovoce.learning.datasets
from sottovoce.errors import ParameterError, UnknownNameError
from sottovoce.learning.datasets.dataset import Dataset
from sottovoce.learning.datasets.sources import Source
from sottovoce.learning.datasets.tables import CsvOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a loader is given: its files, in the order of the source, and how to split them.

    `argument` is what follows the colon in the dataset's name, if that takes one.
    """

    name: str
    argument: str
    paths: tuple[Path, ...]
    folder: Path
    generator: np.random.Generator
    csv: CsvOptions


Loader = Callable[[Request], Dataset]
SourcesOf = Callable[[str], tuple[Source, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One registered dataset. `placeholder` stands for its argument in lists: NAME, PATH."""

    name: str
    summary: str
    placeholder: str
    loader: Loader
    sources_of: SourcesOf
    remedy: str

    @property
    def takes_argument(self) -> bool:
        return self.name.endswith(":")


_REGISTER: dict[str, Entry] = {}


def register(
    name: str,
    *,
    summary: str,
    sources: Sequence[Source] | SourcesOf = (),
    placeholder: str = "",
    remedy: str = "",
) -> Callable[[Loader], Loader]:
    """Decorator that enters a loader; no `sources` means that it needs no file of the data folder.

    `remedy` says where to get the files if they cannot be downloaded.
    """
    fixed = () if callable(sources) else tuple(sources)

    def enter(loader: Loader) -> Loader:
        known = _REGISTER.get(name)
        if known is not None and known.loader.__qualname__ != loader.__qualname__:
            raise ParameterError(f"two datasets claim the name '{name}'; rename one")
        _REGISTER[name] = Entry(
            name=name,
            summary=summary,
            placeholder=placeholder,
            loader=loader,
            sources_of=sources if callable(sources) else lambda _: fixed,
            remedy=remedy,
        )
        return loader

    return enter


@cache
def _discover() -> None:
    for module in pkgutil.iter_modules(sottovoce.learning.datasets.__path__):
        importlib.import_module(f"sottovoce.learning.datasets.{module.name}")


def entries() -> tuple[Entry, ...]:
    """Every registered dataset, by name."""
    _discover()
    return tuple(_REGISTER[name] for name in sorted(_REGISTER))


def find(name: str) -> tuple[Entry, str]:
    """The dataset called `name`, and the argument after its colon; or an error with the nearest."""
    _discover()
    head, colon, argument = name.partition(":")
    entry = _REGISTER.get(head + colon)
    if entry is None:
        known = [entry.name + entry.placeholder for entry in entries()]
        raise UnknownNameError.among("dataset", name, known)
    if entry.takes_argument and not argument:
        raise ParameterError(
            f"dataset '{name}' needs {entry.placeholder} after the colon, as in "
            f"'{entry.name}{entry.placeholder}'"
        )
    return entry, argument
