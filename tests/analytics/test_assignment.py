"""Public draws: the same for everybody who asks, even, and independent of batches."""

import numpy as np
import pytest

from sottovoce.analytics.assignment import assign_choices, secret_numbers, stream_of
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import SeededRandomness


def test_a_person_gets_the_same_whatever_the_batch() -> None:
    whole = assign_choices(7, "row", 0, 1000, 13)
    parts = [assign_choices(7, "row", first, 100, 13) for first in range(0, 1000, 100)]
    assert np.array_equal(whole, np.concatenate(parts))


def test_the_draw_is_fixed_for_all_versions() -> None:
    assert assign_choices(0, "level", 0, 8, 5).tolist() == [3, 2, 1, 1, 3, 0, 1, 4]


@pytest.mark.parametrize("choices", [2, 5, 128])
def test_every_choice_is_as_likely(choices: int) -> None:
    people = 200_000
    counts = np.bincount(assign_choices(3, "row", 10**9, people, choices), minlength=choices)
    expected = people / choices
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi_square - (choices - 1)) < 5.0 * np.sqrt(2.0 * (choices - 1))


def test_two_draws_and_two_seeds_are_unlike() -> None:
    first = assign_choices(3, "row", 0, 10_000, 2)
    for other in (assign_choices(3, "level", 0, 10_000, 2), assign_choices(4, "row", 0, 10_000, 2)):
        assert abs(float((first == other).mean()) - 0.5) < 0.03


def test_odd_numbers_are_refused() -> None:
    for seed, first in ((-1, 0), (2**63, 0), (1, -1)):
        with pytest.raises(ParameterError):
            assign_choices(seed, "row", first, 1, 2)


def test_people_with_numbers_of_their_own_get_what_people_in_a_row_with_them_get() -> None:
    in_a_row = assign_choices(7, "row", 40, 5, 13)
    numbers = np.array([44, 40, 42], dtype=np.uint64)
    assert assign_choices(7, "row", numbers, 3, 13).tolist() == in_a_row[[4, 0, 2]].tolist()
    with pytest.raises(ParameterError, match="the numbers of 4 people, got 3"):
        assign_choices(7, "row", numbers, 4, 13)


def test_secret_numbers_differ_from_draw_to_draw_and_choose_evenly() -> None:
    first, second = secret_numbers(200_000), secret_numbers(200_000)
    assert not np.intersect1d(first, second).size > 10
    counts = np.bincount(assign_choices(3, "row", first, 200_000, 16), minlength=16)
    assert np.abs(counts - 12_500).max() < 6.0 * np.sqrt(12_500)


def test_a_seed_never_stands_in_for_secret_numbers() -> None:
    with pytest.raises(ParameterError, match="operating system"):
        stream_of(SeededRandomness(1), "row", secret_numbers(2))
