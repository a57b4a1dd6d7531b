"""Data sets as plain arrays: well-known ones from files, and the user's own.

    data = datasets.load("mnist", generator, data_dir="~/data", download=True)

Every loader scales by public constants only, so loading spends no privacy budget.
"""

from sottovoce.learning.datasets.dataset import (
    Dataset,
    some_owners,
    subset,
    with_training_rows,
    with_validation,
)
from sottovoce.learning.datasets.register import (
    CsvOptions,
    Entry,
    check_here,
    data_folder,
    entries,
    fetch,
    files_to_fetch,
    load,
    where_found,
)

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
