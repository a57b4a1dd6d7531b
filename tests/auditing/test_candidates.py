import numpy as np
import pytest

from sottovoce.auditing.attacks.context import (
    check_enough_shadows,
    choose_candidates,
    draw_training_masks,
)
from sottovoce.core.errors import DataError, ParameterError


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_half_of_the_candidates_are_members_and_the_rest_is_known() -> None:
    chosen = choose_candidates(30, 20, 16, rng())
    assert (chosen.rows[chosen.is_member] < 30).all()
    assert (chosen.rows[~chosen.is_member] >= 30).all()
    assert chosen.is_member.sum() == 8
    members = np.concatenate([chosen.known, chosen.rows[chosen.is_member]])
    np.testing.assert_array_equal(np.sort(members), np.arange(30))


def test_every_candidate_is_in_exactly_half_of_the_shadows_and_of_each_pair() -> None:
    masks = draw_training_masks(8, 101, rng())
    assert (masks.sum(axis=0) == 4).all()
    np.testing.assert_array_equal(masks[0::2], ~masks[1::2])
    assert set(masks.sum(axis=1)) == {50, 51}
    assert not np.array_equal(masks[0], masks[2])


@pytest.mark.parametrize("wanted", [0, 3, 42])
def test_more_candidates_than_there_are_are_refused(wanted: int) -> None:
    with pytest.raises(ParameterError, match="even number from 2 to 40"):
        choose_candidates(30, 20, wanted, rng())


@pytest.mark.parametrize(("shadows", "rule"), [(2, "4 to"), (7, "even number")])
def test_too_few_or_odd_shadows_are_refused(shadows: int, rule: str) -> None:
    with pytest.raises(ParameterError, match=rule):
        draw_training_masks(shadows, 10, rng())


def test_a_rate_needs_enough_scores_of_shadows() -> None:
    check_enough_shadows(10, 200, 0.01)
    with pytest.raises(
        DataError, match=r"too few shadow models .*0.01.* 800 scores.*1000.* at least 10"
    ):
        check_enough_shadows(8, 200, 0.01)
