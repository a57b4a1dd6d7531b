"""Accuracy by round over seeds: means, intervals, and the rounds needed to reach a target."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sottovoce.core.statistics import mean_and_half_width

NOT_REACHED = "not reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurve:
    """The accuracies of all seeds, at the rounds that every seed evaluated."""

    accuracies: Mapping[int, Sequence[float]]

    @classmethod
    def of(cls, results: Iterable[Mapping[str, Any]]) -> "LearningCurve":
        """Return the curve of several trials; it is empty if one of them kept no curve."""
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
        """Student's 95% intervals, clipped to [0, 1]; the value itself if there is one seed."""
        found = []
        for seeds in self.accuracies.values():
            mean, half = mean_and_half_width(seeds) if len(seeds) > 1 else (seeds[0], 0.0)
            found.append((max(0.0, mean - half), min(1.0, mean + half)))
        return found

    def rounds_to(self, target: float) -> int | None:
        """Return the first evaluated round whose mean is at least `target`, or None."""
        reached = (n for n, mean in zip(self.rounds, self.means, strict=True) if mean >= target)
        return next(reached, None)
