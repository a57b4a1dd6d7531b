import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.errors import ParameterError
from sottovoce.learning.partitioners import DirichletByLabel, Iid, Partition, split

LABELS = np.repeat(np.arange(10), 50)


@given(clients=st.integers(1, 20), seed=st.integers(0, 100))
@pytest.mark.parametrize("partition", [Iid(), DirichletByLabel(alpha=5.0)])
def test_every_sample_goes_to_exactly_one_client(
    partition: Partition, clients: int, seed: int
) -> None:
    parts = split(partition, LABELS, clients, np.random.default_rng(seed))
    assert len(parts) == clients
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(LABELS)))


def test_iid_parts_differ_by_at_most_one_sample() -> None:
    sizes = {len(part) for part in split(Iid(), LABELS, 7, np.random.default_rng(0))}
    assert sizes == {71, 72}


def test_a_small_alpha_concentrates_labels() -> None:
    def distinct_labels(alpha: float) -> float:
        parts = split(DirichletByLabel(alpha=alpha), LABELS, 5, np.random.default_rng(3))
        return float(np.mean([len(set(LABELS[part])) for part in parts]))

    assert distinct_labels(0.2) < distinct_labels(100.0)


def test_an_empty_client_is_an_error_with_a_remedy() -> None:
    with pytest.raises(ParameterError, match=r"got no samples.*fewer clients or a larger alpha"):
        split(DirichletByLabel(alpha=0.01), LABELS, 50, np.random.default_rng(0))
    with pytest.raises(ParameterError, match="clients must be an integer from 1 to 500"):
        split(Iid(), LABELS, 501, np.random.default_rng(0))
