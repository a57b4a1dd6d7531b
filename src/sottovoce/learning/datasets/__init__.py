"""Datasets as plain arrays: well-known ones from files, and the user's own.

    data = datasets.load("mnist", generator, data_dir="~/data", download=True)

Every loader scales by public constants only, so that loading spends no privacy.
"""

from pathlib import Path

import numpy as np

from sottovoce.learning.datasets.dataset import (
    Dataset,
    some_owners,
    subset,
    with_training_rows,
    with_validation,
)
from sottovoce.learning.datasets.register import (
    DataFile,
    Entry,
    OnBytes,
    Request,
    absent,
    data_folder,
    downloads,
    entries,
    fetch,
    find,
    first_found,
)
from sottovoce.learning.datasets.tables import CsvOptions

__all__ = [
    "CsvOptions",
    "Dataset",
    "Entry",
    "check_here",
    "data_folder",
    "entries",
    "fetch",
    "files_to_fetch",
    "load",
    "some_owners",
    "subset",
    "where_found",
    "with_training_rows",
    "with_validation",
]


def load(
    name: str,
    generator: np.random.Generator,
    *,
    data_dir: Path | str | None = None,
    download: bool = False,
    csv: CsvOptions | None = None,
    on_bytes: OnBytes | None = None,
) -> Dataset:
    """The dataset called `name`; `generator` draws the test split if there is no official one.

    Files are looked for in `data_folder(data_dir)`. What is not there is downloaded if `download`
    allows it and its source publishes a digest; otherwise the error says what to do. `csv` is for
    the datasets 'csv:PATH'.
    """
    entry, argument = find(name)
    folder = data_folder(data_dir)
    sources = entry.sources_of(argument)
    found = first_found(sources, folder)
    if found is None and download:
        for file in downloads(sources):
            fetch(file, folder, on_bytes=on_bytes)
        found = first_found(sources, folder)
    if found is None and sources:
        raise absent(name, sources, folder, entry.remedy)
    request = Request(
        name=name,
        argument=argument,
        paths=tuple(found or ()),
        folder=folder,
        generator=generator,
        csv=csv or CsvOptions(),
    )
    return entry.loader(request)


def check_here(name: str, data_dir: Path | str | None = None) -> None:
    """Refuse a dataset whose files are not on this machine; download nothing."""
    entry, argument = find(name)
    folder, sources = data_folder(data_dir), entry.sources_of(argument)
    if sources and first_found(sources, folder) is None:
        raise absent(name, sources, folder, entry.remedy)


def files_to_fetch(name: str, data_dir: Path | str | None = None) -> tuple[DataFile, ...]:
    """The files that `fetch` can bring for a dataset; none if it needs none or has them elsewhere.

    A dataset that is absent and offers no verified download is an error that says where to get it.
    """
    entry, argument = find(name)
    sources, folder = entry.sources_of(argument), data_folder(data_dir)
    files = downloads(sources)
    if sources and not files and first_found(sources, folder) is None:
        raise absent(name, sources, folder, entry.remedy)
    return files


def where_found(name: str, data_dir: Path | str | None = None) -> list[Path] | None:
    """The files of a dataset in the data folder: none if it needs none, None if any is absent."""
    entry, argument = find(name)
    sources = entry.sources_of(argument)
    return first_found(sources, data_folder(data_dir)) if sources else []
