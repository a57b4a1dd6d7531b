"""A model as one vector, and back: names, shapes, types and values."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from sottovoce.core.errors import ParameterError
from sottovoce.flower.model_arrays import ModelLayout


def a_record(**arrays: np.ndarray) -> ArrayRecord:
    return ArrayRecord({name: Array(values) for name, values in arrays.items()})


MODEL = {
    "z": np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32),
    "count": np.array(7),
    "a": np.array(0.5),
    "empty": np.zeros((0, 3), dtype=np.float16),
}


def test_the_vector_follows_the_records_order_and_leaves_whole_numbers_out() -> None:
    layout = ModelLayout.of(a_record(**MODEL))
    assert layout.dimension == 5
    assert layout.vector(a_record(**MODEL)).tolist() == [1.0, 2.0, 3.0, 4.0, 0.5]
    # What comes back may be in another order: names decide.
    backwards = dict(reversed(MODEL.items()))
    assert layout.vector(a_record(**backwards)).tolist() == [1.0, 2.0, 3.0, 4.0, 0.5]
    assert ModelLayout.of(a_record(**backwards)).digest() != layout.digest()


def test_an_update_moves_floats_only_and_keeps_every_type() -> None:
    record = a_record(**MODEL)
    moved = ModelLayout.of(record).moved(record, np.arange(5.0))
    assert ModelLayout.of(moved) == ModelLayout.of(record)
    assert moved["z"].numpy().tolist() == [[1.0, 3.0], [5.0, 7.0]]
    assert moved["a"].numpy().tolist() == 4.5
    assert moved["count"].numpy().tolist() == 7


def test_averages_of_whole_numbers_are_whole_again() -> None:
    layout = ModelLayout.of(a_record(**MODEL))
    averaged = {name: values.astype(np.float64) for name, values in MODEL.items()}
    averaged["count"] = np.array(7 * (1 / 3 + 1 / 3 + 1 / 3) - 1e-12)
    typed = layout.typed(a_record(**averaged))
    assert ModelLayout.of(typed) == layout
    assert typed["count"].numpy().tolist() == 7


def test_other_names_or_shapes_are_an_error() -> None:
    layout = ModelLayout.of(a_record(**MODEL))
    with pytest.raises(ParameterError, match="return arrays with the same names"):
        layout.vector(a_record(z=MODEL["z"]))
    with pytest.raises(ParameterError, match="'z' has shape"):
        layout.vector(a_record(**{**MODEL, "z": MODEL["z"].ravel()}))
    with pytest.raises(ParameterError, match="nothing to privatize"):
        ModelLayout.of(a_record(trees=np.zeros(3, dtype=np.uint8)))
