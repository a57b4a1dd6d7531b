"""Data sets without files: the digits that come with scikit-learn, and Gaussian blobs of any size.

Blobs are for timing and first trials, where the data do not matter.
"""

import gzip
import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.errors import ParameterError
from sottovoce.learning.datasets.dataset import Dataset, with_random_test_part
from sottovoce.learning.datasets.register import LoadRequest, register

_SHAPE = re.compile(r"^([1-9]\d{0,8})x([1-9]\d{0,8})x([1-9]\d{0,5})$")
_MOST_VALUES = 10**9


@register(
    "blobs:",
    summary="made-up points around random class centers, for timing",
    placeholder="ROWSxFEATURESxCLASSES",
)
def blobs(request: LoadRequest) -> Dataset:
    """Draw x = (class center + noise)/sqrt(features), both standard normal; hold out a fifth.

    The argument is ROWSxFEATURESxCLASSES. Each row gets a uniformly random class. ParameterError is
    raised for another form, and for fewer than 5 rows or 2 classes or more than 1e9 values.
    """
    found = _SHAPE.match(request.argument)
    rows, features, classes = (int(part) for part in found.groups()) if found else (0, 0, 0)
    if not 0 < rows * features <= _MOST_VALUES or classes < 2 or rows < 5:
        raise ParameterError(
            f"'blobs:{request.argument}' must be blobs:ROWSxFEATURESxCLASSES with at least 5 rows, "
            f"2 classes and at most {_MOST_VALUES:.0e} values (rows times features), for example "
            "blobs:10000x100x10"
        )
    generator = request.generator
    centers = generator.standard_normal((classes, features), dtype=np.float32)
    labels = generator.integers(classes, size=rows)
    points = generator.standard_normal((rows, features), dtype=np.float32)
    points += centers[labels]
    points /= np.float32(np.sqrt(features))
    return with_random_test_part(
        request.name,
        points,
        labels,
        generator,
        num_classes=classes,
        note="Made-up points: their accuracy means nothing.",
    )


_THICK = -0.195  # About half of the digits exceed this mean brightness.


@register("digits", summary="8x8 handwritten digits, 10 classes, bundled with scikit-learn")
def digits(request: LoadRequest) -> Dataset:
    """Load scikit-learn's 8x8 digits, with pixels 0..16 mapped to [-1/2, 1/2]; hold out a fifth.

    The attribute `thick` is whether a digit was drawn with much ink. It is a target for attribute
    inference if no other data are available.
    """
    pixels, classes = _read_digits()
    features = (pixels / 16.0 - 0.5).astype(np.float32)
    labels = classes.astype(np.int64)
    return with_random_test_part(
        "digits",
        features,
        labels,
        request.generator,
        num_classes=10,
        attributes={"thick": (features.mean(axis=1) > _THICK).astype(np.int64)},
        note="Optical recognition of handwritten digits, Alpaydin and Kaynak 1998, CC BY 4.0.",
    )


def _read_digits() -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Return pixels and classes, from scikit-learn's file: importing it takes a second or more."""
    package = importlib.util.find_spec("sklearn")
    file = Path((package and package.origin) or "").parent / "datasets" / "data" / "digits.csv.gz"
    if package is None or not file.is_file():
        from sklearn.datasets import load_digits

        bundle = load_digits()
        return bundle.data, bundle.target
    with gzip.open(file, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",")
    return table[:, :-1], table[:, -1]
