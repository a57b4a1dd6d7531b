"""The true statistics behind an estimate, to measure its error; printing them is not private."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from sottovoce.analytics.histogram import HistogramQuestion
from sottovoce.analytics.places import PlacesQuestion, degrees
from sottovoce.analytics.quantiles import QuantilesQuestion
from sottovoce.analytics.question import Question
from sottovoce.analytics.values import numbers
from sottovoce.analytics.variance import VarianceQuestion
from sottovoce.core.errors import ParameterError


def true_numbers(asked: Question, batches: Iterable[Any]) -> list[float]:
    """Return the true statistics of the clipped values, in the order of the estimate's numbers.

    A histogram has shares, a location kilometers east and north and then latitude and longitude.
    Raise ParameterError for a question of an unknown kind without bounds. Quantiles need all
    values at once, eight bytes per person; the others need a few sums.
    """
    match asked:
        case HistogramQuestion():
            counts = sum(np.bincount(asked.indices(b), minlength=asked.num_bins) for b in batches)
            total = np.asarray(counts, dtype=np.float64)
            return [float(share) for share in total / total.sum()]
        case QuantilesQuestion():
            values = np.concatenate([numbers(batch) for batch in batches])
            clipped = np.clip(values, asked.lower, asked.upper)
            levels = list(asked.quantiles)
            return [float(v) for v in np.quantile(clipped, levels, method="inverted_cdf")]
        case PlacesQuestion():
            east, north = _mean_place(asked, batches)
            return [east, north, *asked.area.degrees_of(east, north)]
        case _:
            return [_moment(asked, batches)]


def true_label(asked: Question) -> str:
    """Return what `true_numbers` are, in words: statistics of values clipped to the bounds."""
    match asked:
        case HistogramQuestion(categories=tuple()):
            return "share of the people in each category"
        case HistogramQuestion():
            what = "share in each bin of the values"
        case PlacesQuestion():
            return "mean of the places, those off the map moved to its edge"
        case QuantilesQuestion():
            what = "quantiles of the values"
        case _:
            what = f"{asked.kind} of the values"
    lower, upper = asked.lower, asked.upper  # type: ignore[attr-defined]
    return f"{what} clipped to [{lower:g}, {upper:g}]"


def _mean_place(asked: PlacesQuestion, batches: Iterable[Any]) -> tuple[float, float]:
    people, total = 0, np.zeros(2)
    for batch in batches:
        rows = degrees(batch)
        total = total + asked.area.places(rows[:, 0], rows[:, 1]).sum(axis=0)
        people += len(rows)
    return float(total[0] / people), float(total[1] / people)


def _moment(asked: Any, batches: Iterable[Any]) -> float:
    """Return the mean, or the variance, of the people at hand."""
    if not hasattr(asked, "lower"):
        raise ParameterError(
            f"the true value of a question about the {asked.kind} cannot be computed; leave out "
            "--show-true"
        )
    middle, people, first, second = (asked.lower + asked.upper) / 2.0, 0, 0.0, 0.0
    for batch in batches:
        centered = np.clip(numbers(batch), asked.lower, asked.upper) - middle
        people += len(centered)
        first += float(centered.sum())
        second += float(centered @ centered)
    mean = first / people
    if isinstance(asked, VarianceQuestion):
        return second / people - mean**2
    return float(middle + mean)
