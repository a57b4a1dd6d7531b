import numpy as np
import pytest

from sottovoce.errors import UnknownNameError
from sottovoce.learning import datasets


def test_digits_are_scaled_by_public_constants_and_split_without_overlap() -> None:
    data = datasets.load("digits", np.random.default_rng(0))
    assert len(data.train_labels) + len(data.test_labels) == 1797
    assert data.train_features.min() == -0.5
    assert data.train_features.max() == 0.5
    # Every pixel is a multiple of 1/16: nothing was centred or scaled by the data itself.
    assert np.all((data.train_features + 0.5) * 16 == np.round((data.train_features + 0.5) * 16))


def test_an_unknown_dataset_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'digits'"):
        datasets.load("digit", np.random.default_rng(0))
