"""Arrays that a program has at hand: the same as in an npz file, without the file."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sottovoce.core.errors import DataError
from sottovoce.learning import in_memory
from sottovoce.learning.datasets.dataset import Array, Dataset
from sottovoce.learning.datasets.own import dataset_of
from sottovoce.learning.datasets.register import Request, register

PREFIX = "memory:"  # as it is registered below
_REMEDY = "correct what is given as data"


@register(
    "memory:",
    placeholder="LABEL",
    summary="arrays of a Python program, given to sottovoce.simulate(..., data=...)",
)
def arrays_in_memory(request: Request) -> Dataset:
    """The arrays that are lent under the label, as `npz:` would read them."""
    part = in_memory.find("data", request.argument)
    if part is None:
        raise DataError(
            f"the data '{request.name}' are arrays of the Python program that made the run, and "
            "this one does not have them; give them to sottovoce.simulate(..., data=...) again, or "
            "save them with numpy.savez and name 'npz:PATH' in the spec"
        )
    return dataset_of(request, part.value, where="the data in memory", remedy=_REMEDY)


def named(given: object) -> dict[str, Array]:
    """(x, y), (x_train, y_train, x_test, y_test), or a mapping with the names of `npz:`."""
    if isinstance(given, Mapping):
        return {str(name): _array(str(name), values) for name, values in given.items()}
    names = {2: ("x", "y"), 4: ("x_train", "y_train", "x_test", "y_test")}
    if not isinstance(given, tuple | list) or len(given) not in names:
        size = f" of {len(given)}" if isinstance(given, tuple | list) else ""
        raise DataError(
            "data must be (x, y), (x_train, y_train, x_test, y_test) or a dictionary of arrays "
            f"with such names, got {type(given).__name__}{size}; {_REMEDY}"
        )
    return {
        name: _array(name, values) for name, values in zip(names[len(given)], given, strict=True)
    }


def _array(name: str, values: Any) -> Array:
    if hasattr(values, "detach"):  # a tensor, on whatever device
        values = values.detach().cpu()
    try:
        array: Array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise DataError(f"'{name}' cannot be read as an array: {error}; {_REMEDY}") from None
    return array
