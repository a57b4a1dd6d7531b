"""Arrays from map-style `torch.utils.data.Dataset` objects, for all data or for each client."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.errors import DataError
from sottovoce.core.printable_text import client_name

Arrays = dict[str, NDArray[Any]]


def arrays_and_clients(given: object) -> tuple[Arrays, tuple[str, ...]] | None:
    """Return the arrays in Dataset objects, and the names of clients; None if there are none.

    Args:
        given: A Dataset, a tuple (train, test) of two, a list of one Dataset for each client, a
            dictionary of them by the name of the client, or (list or dictionary, test).

    Returns:
        Arrays with the names of `npz:` data sets, and the names of the clients in the order of
        their numbers if each has its own Dataset, otherwise ().

    Raises:
        DataError: An object is not map-style, its items are not (x, y), or they differ in shape.
    """
    train, test = given, None
    if isinstance(given, tuple) and len(given) == 2 and _is_dataset(given[1]):
        train, test = given
    endings = ("_train", "_test") if test is not None else ("", "")
    own = _by_client(train)
    if own:
        parts = {name: _read(one, f"the Dataset of '{name}'") for name, one in own.items()}
        x, y = (_joined([part[i] for part in parts.values()]) for i in (0, 1))
        sizes = [len(part[1]) for part in parts.values()]
        owner = np.repeat(np.array(list(parts)), sizes)
        found = {f"x{endings[0]}": x, f"y{endings[0]}": y, f"owner{endings[0]}": owner}
    elif _is_dataset(train):
        x, y = _read(train, "the Dataset")
        found = {f"x{endings[0]}": x, f"y{endings[0]}": y}
    elif test is not None:
        raise DataError(
            "data must be Dataset objects for training and for the test, got "
            f"{type(train).__name__} for training; give (train, test)"
        )
    else:
        return None
    if test is not None:
        found |= dict(zip(("x_test", "y_test"), _read(test, "the test Dataset"), strict=True))
    return found, tuple(sorted(own))


def _is_dataset(value: object) -> bool:
    # torch takes a while to import, and a program that has a Dataset has imported it.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.utils.data.Dataset)


def _by_client(given: object) -> dict[str, Any]:
    """Return the Dataset of each client by name; empty if `given` is something else."""
    if isinstance(given, Mapping) and given and all(map(_is_dataset, given.values())):
        return {str(name): one for name, one in given.items()}
    if isinstance(given, list) and given and all(map(_is_dataset, given)):
        return {client_name(number): one for number, one in enumerate(given)}
    return {}


def _read(dataset: Any, what: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return features and labels of all items, with the types that they have."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"{what} is not map-style (it has no length or no items by number); read it into a "
            "list of (x, y) and give torch.utils.data.TensorDataset(x, y)"
        )
    tensors = getattr(dataset, "tensors", None)
    if isinstance(tensors, tuple) and len(tensors) == 2:
        return _array(tensors[0], what), _array(tensors[1], what)
    if not len(dataset):
        raise DataError(f"{what} has no items; leave it out")
    items = [dataset[number] for number in range(len(dataset))]
    for number, item in enumerate(items):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(
                f"item {number} of {what} must be a pair (x, y), got {type(item).__name__}; return "
                "the features and the label"
            )
    x, y = ([_array(item[place], what) for item in items] for place in (0, 1))
    return _stacked(x, f"the features in {what}"), _stacked(y, f"the labels in {what}")


def _array(value: Any, what: str) -> NDArray[Any]:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # numpy has no such numbers.
            value = value.float()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"{what} has an item of type {type(value).__name__}, not numbers; give it a transform "
            "that returns tensors, such as torchvision's ToTensor()"
        )
    return array


def _stacked(rows: Sequence[NDArray[Any]], what: str) -> NDArray[Any]:
    for number, row in enumerate(rows):
        if row.shape != rows[0].shape:
            raise DataError(
                f"{what} have different shapes: {rows[0].shape} in item 0 and {row.shape} in item "
                f"{number}; give all of them the same shape"
            )
    return np.stack(rows)


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    shapes = sorted({part.shape[1:] for part in parts})
    if len(shapes) > 1:
        raise DataError(
            f"the items of clients have different shapes: {shapes[0]} and {shapes[1]}; give all "
            "of them the same shape"
        )
    return np.concatenate(parts)
