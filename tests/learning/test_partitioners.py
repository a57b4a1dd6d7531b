import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.core.errors import ParameterError
from sottovoce.learning.partition import (
    ByOwner,
    DirichletByLabel,
    Iid,
    OneSample,
    Partition,
    Shards,
    split,
)

LABELS = np.repeat(np.arange(10), 50)


@given(clients=st.integers(1, 20), seed=st.integers(0, 100))
@pytest.mark.parametrize(
    "partition", [Iid(), DirichletByLabel(alpha=5.0), Shards(shards_per_client=3)]
)
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
    with pytest.raises(ParameterError, match=r"got no samples.*fewer clients.*a larger alpha"):
        split(DirichletByLabel(alpha=0.01), LABELS, 50, np.random.default_rng(0))
    message = "clients must be an integer from 1 to 500, got 501; there are 500 training samples"
    with pytest.raises(ParameterError, match=message):
        split(Iid(), LABELS, 501, np.random.default_rng(0))
    with pytest.raises(ParameterError, match="there are 1,600 training samples for the clients"):
        split(Iid(), np.zeros(1600, np.int64), 5000, np.random.default_rng(0))


def test_shards_give_each_client_few_labels() -> None:
    """Two shards of ten samples, sorted by label, touch at most two labels each."""
    parts = split(Shards(shards_per_client=2), LABELS, 25, np.random.default_rng(0))
    assert all(len(part) == 20 for part in parts)
    assert max(len(set(LABELS[part])) for part in parts) == 2
    assert min(len(set(LABELS[part])) for part in parts) == 1
    with pytest.raises(ParameterError, match="need 600 samples, but there are 500"):
        split(Shards(shards_per_client=2), LABELS, 300, np.random.default_rng(0))


def test_owners_keep_what_is_theirs() -> None:
    owners = np.random.default_rng(0).integers(0, 40, len(LABELS)) * 7
    parts = split(ByOwner(), LABELS, None, np.random.default_rng(0), owners=owners)
    assert len(parts) == len(np.unique(owners))
    for owner, part in zip(np.unique(owners), parts, strict=True):
        np.testing.assert_array_equal(part, np.flatnonzero(owners == owner))
    again = split(ByOwner(), LABELS, len(parts), np.random.default_rng(0), owners=owners)
    assert len(again) == len(parts)
    with pytest.raises(ParameterError, match=r"clients is 3, but .*by_owner.* 40 owners"):
        split(ByOwner(), LABELS, 3, np.random.default_rng(0), owners=owners)
    remedies = r"use a dataset with owners.*data\.csv\.owner_column.*the array 'owner'"
    with pytest.raises(ParameterError, match=remedies):
        split(ByOwner(), LABELS, None, np.random.default_rng(0))
    with pytest.raises(ParameterError, match=r"each of the 500 samples, got shape \(499"):
        split(ByOwner(), LABELS, None, np.random.default_rng(0), owners=owners[1:])


def test_one_sample_a_client() -> None:
    parts = split(OneSample(), np.zeros(60_000, np.int64), None, np.random.default_rng(0))
    assert len(parts) == 60_000
    assert parts[0].shape == (1,)
    np.testing.assert_array_equal(np.concatenate(parts), np.arange(60_000))
    with pytest.raises(ParameterError, match=r"clients is 10, but .*one_sample.* 500 samples"):
        split(OneSample(), LABELS, 10, np.random.default_rng(0))


@pytest.mark.parametrize("partition", [DirichletByLabel(alpha=1.0), Shards(shards_per_client=2)])
def test_numbers_to_predict_have_no_classes_to_go_by(partition: Partition) -> None:
    targets = np.zeros((500, 1), np.float32)
    with pytest.raises(ParameterError, match=r"needs class labels.*use 'iid', 'by_owner'"):
        split(partition, targets, 5, np.random.default_rng(0))
    assert len(split(Iid(), targets, 5, np.random.default_rng(0))) == 5
    assert len(split(OneSample(), targets, None, np.random.default_rng(0))) == 500


def test_a_partition_that_does_not_settle_the_clients_asks_for_them() -> None:
    with pytest.raises(ParameterError, match="needs the number of clients"):
        split(Iid(), LABELS, None, np.random.default_rng(0))
    with pytest.raises(ParameterError, match="shards_per_client must be an integer from 1"):
        Shards(shards_per_client=0)
