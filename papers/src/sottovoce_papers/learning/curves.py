"""Accuracy by round over seeds: means, intervals, and when a target is reached."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.core.statistics import mean_and_half_width

NOT_REACHED = "not reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurve:
    """The accuracies of all seeds after each round that every one of them evaluated."""

    accuracies: Mapping[int, Sequence[float]]

    @classmethod
    def of(cls, results: Iterable[Mapping[str, Any]]) -> "LearningCurve":
        """From what trials returned; empty where one of them kept no curve."""
        curves = [
            {row["round"]: float(row["accuracy"]) for row in result.get("curve", [])}
            for result in results
        ]
        shared = set.intersection(*(set(curve) for curve in curves)) if curves else set()
        return cls(accuracies={n: [curve[n] for curve in curves] for n in sorted(shared)})

    @property
    def rounds(self) -> list[int]:
        return list(self.accuracies)

    @property
    def means(self) -> list[float]:
        return [statistics.fmean(seeds) for seeds in self.accuracies.values()]

    @property
    def intervals(self) -> list[tuple[float, float]]:
        """Student's 95% intervals, cut at 0 and 1; of one seed its own value."""
        found = []
        for seeds in self.accuracies.values():
            mean, half = mean_and_half_width(seeds) if len(seeds) > 1 else (seeds[0], 0.0)
            found.append((max(0.0, mean - half), min(1.0, mean + half)))
        return found

    def rounds_to(self, target: float) -> int | None:
        """The first evaluated round after which the mean is at least `target`; None if none is."""
        reached = (n for n, mean in zip(self.rounds, self.means, strict=True) if mean >= target)
        return next(reached, None)
