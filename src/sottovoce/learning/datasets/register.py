"""The register of datasets: one decorator on a loader.

    @register("foo", summary="...", sources=(Source(files=(DataFile(path="foo.npz"),)),))
    def foo(request: Request) -> Dataset: ...

Drop the file into `datasets/`, or name its module under the entry point group `sottovoce.datasets`
(see `core.registry`); nothing else changes. A name that ends in a colon, such as `npz:`, takes
what follows it as an argument.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.core.plugin_returns import held, instance
from sottovoce.core.registry import Register
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


DATASETS: Register[Entry] = Register("dataset", package="sottovoce.learning.datasets")
_RETURNS = instance(Dataset, "a sottovoce.learning.Dataset")


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
        entry = Entry(
            name=name,
            summary=summary,
            placeholder=placeholder,
            loader=held(DATASETS, name, loader, _RETURNS),
            sources_of=sources if callable(sources) else lambda _: fixed,
            remedy=remedy,
        )
        DATASETS.enter(name, entry, module=loader.__module__)
        return loader

    return enter


def entries() -> tuple[Entry, ...]:
    """Every registered dataset that works, by name."""
    return tuple(DATASETS.every().values())


def find(name: str) -> tuple[Entry, str]:
    """The dataset called `name`, and the argument after its colon; or an error with the nearest."""
    head, colon, argument = name.partition(":")
    if head + colon not in DATASETS.names():
        known = [entry.name + entry.placeholder for entry in entries()]
        if DATASETS.is_in_papers(head + colon):
            raise DATASETS.unknown(head + colon)
        raise UnknownNameError.among("dataset", name, known)
    entry = DATASETS.find(head + colon)
    if entry.takes_argument and not argument:
        raise ParameterError(
            f"dataset '{name}' needs {entry.placeholder} after the colon, as in "
            f"'{entry.name}{entry.placeholder}'"
        )
    return entry, argument
