"""Learning rates chosen on held-out training data, with seeds that are used for nothing else."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sottovoce_papers.experiment import Cell
from sottovoce_papers.grid_files import RATE, SEED
from sottovoce_papers.sweep import Key, TrialResult

FIRST_TUNING_SEED = 1_000_001  # Final seeds count from 1 and stay far below.

Group = tuple[tuple[str, Cell], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedRate:
    """The chosen learning rate of one group; None if every rate failed.

    `accuracy` is its mean on held-out data, None if there was only one rate. If `at_edge`, the rate
    is the least or the largest of the grid, and a wider grid might do better.
    """

    rate: Cell
    accuracy: float | None
    at_edge: bool


def group_of(key: Key) -> Group:
    """Return the key without rate and seed: the cell for which a rate is chosen."""
    return tuple((name, value) for name, value in key.items() if name not in (RATE, SEED))


def choose_rates(results: Sequence[TrialResult]) -> dict[Group, TunedRate]:
    """Return the best rate of each group; a rate that failed with any seed is excluded.

    Only rates with the most seeds compete. Ties go to the lower rate.
    """
    return {group: _best(rates) for group, rates in _by_group(results).items()}


def promising_rates(results: Sequence[TrialResult]) -> dict[Group, frozenset[Cell]]:
    """Return the best rate of each group and those next to it, which further seeds shall decide.

    With no usable rate there are none.
    """
    return {group: _near_best(rates) for group, rates in _by_group(results).items()}


def _near_best(accuracies: Mapping[float, Sequence[float | None]]) -> frozenset[Cell]:
    best, ordered = _best(accuracies).rate, sorted(accuracies)
    if best is None:
        return frozenset()
    place = ordered.index(float(best))
    return frozenset(ordered[max(0, place - 1) : place + 2])


def _by_group(results: Sequence[TrialResult]) -> dict[Group, dict[float, list[float | None]]]:
    groups: dict[Group, dict[float, list[float | None]]] = {}
    for result in results:
        rate = result.key[RATE]
        assert isinstance(rate, int | float)
        accuracy = None if result.result is None else float(result.result["accuracy"])
        groups.setdefault(group_of(result.key), {}).setdefault(rate, []).append(accuracy)
    return groups


def _best(accuracies: Mapping[float, Sequence[float | None]]) -> TunedRate:
    most = max(map(len, accuracies.values()))
    means = {
        rate: statistics.fmean(whole)
        for rate, found in accuracies.items()
        if len(whole := [value for value in found if value is not None]) == most
    }
    if not means:
        return TunedRate(rate=None, accuracy=None, at_edge=False)
    rate = min(means, key=lambda rate: (-means[rate], rate))
    edge = len(accuracies) > 1 and rate in (min(accuracies), max(accuracies))
    return TunedRate(rate=rate, accuracy=means[rate], at_edge=edge)
