"""Data sets as plain arrays: well-known ones from files, and the user's own.

    data = datasets.load("mnist", generator, data_dir="~/data", download=True)

The loaders here scale by public constants only, so loading spends no privacy budget.
"""

from sottovoce.learning.datasets.dataset import (
    Dataset,
    sample_owners,
    subset,
    with_float_features,
    with_label_rows,
    with_training_rows,
    with_validation,
)
from sottovoce.learning.datasets.register import (
    CsvOptions,
    DatasetEntry,
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
    "DatasetEntry",
    "check_here",
    "data_folder",
    "entries",
    "fetch",
    "files_to_fetch",
    "load",
    "sample_owners",
    "subset",
    "where_found",
    "with_float_features",
    "with_label_rows",
    "with_training_rows",
    "with_validation",
]
