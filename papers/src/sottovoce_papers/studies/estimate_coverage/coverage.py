"""The coverage of intervals of `sottovoce estimate`: how often they contain the true value.

A case is a question, a law of values on [0, 1] and a number of people. Each repetition draws new
people from the law, makes their codes with the question's own mechanism, and checks whether each
interval contains the value of the law. For locations, each coordinate follows the law on a map of
ten kilometers.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import special

from sottovoce.analytics.estimates import question_for, takes_people
from sottovoce.analytics.places import KILOMETERS_PER_DEGREE
from sottovoce.analytics.question import Question
from sottovoce.core import statistics
from sottovoce.core.domains import Vector
from sottovoce.core.randomness import SeededRandomness


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """A law on [0, 1]: point masses and beta laws, with weights that sum to 1."""

    name: str
    atoms: tuple[tuple[float, float], ...] = ()  # (weight, value)
    betas: tuple[tuple[float, float, float], ...] = ()  # (weight, a, b)

    def draw(self, generator: np.random.Generator, people: int) -> Vector:
        """Return values of so many people."""
        weights = [weight for weight, *_ in (*self.atoms, *self.betas)]
        part = np.searchsorted(np.cumsum(weights)[:-1], generator.random(people), side="right")
        values = np.empty(people)
        for number, (_, place) in enumerate(self.atoms):
            values[part == number] = place
        for number, (_, a, b) in enumerate(self.betas, start=len(self.atoms)):
            mask = part == number
            values[mask] = generator.beta(a, b, size=int(mask.sum()))
        return values

    def share(self, low: float, high: float) -> float:
        """Return P(low <= x < high); x = 1 is included if high = 1."""
        inside = [w for w, x in self.atoms if low <= x < high or x == high == 1.0]
        smooth = [
            w * float(special.betainc(a, b, high) - special.betainc(a, b, low))
            for w, a, b in self.betas
        ]
        return math.fsum([*inside, *smooth])

    @property
    def mean(self) -> float:
        return math.fsum(
            [w * x for w, x in self.atoms] + [w * a / (a + b) for w, a, b in self.betas]
        )

    @property
    def variance(self) -> float:
        squares = [w * x**2 for w, x in self.atoms]
        squares += [w * a * (a + 1) / ((a + b) * (a + b + 1)) for w, a, b in self.betas]
        return math.fsum(squares) - self.mean**2

    def quantile(self, q: float) -> float:
        """Return the least x with P(values <= x) >= q."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2.0
            upto = self.share(0.0, middle) + math.fsum(w for w, x in self.atoms if x == middle)
            low, high = (low, middle) if upto >= q else (middle, high)
        places = [x for _, x in self.atoms if abs(x - high) < 1e-12]
        return places[0] if places else high


LAWS = (
    Mixture(name="uniform", betas=((1.0, 1.0, 1.0),)),
    Mixture(name="skewed", betas=((1.0, 1.0, 9.0),)),
    Mixture(name="bimodal", betas=((0.5, 8.0, 24.0), (0.5, 14.0, 6.0))),
    Mixture(name="two points", atoms=((0.7, 0.2), (0.3, 0.8))),
    Mixture(name="half zeros", atoms=((0.5, 0.0),), betas=((0.5, 2.0, 5.0),)),
    Mixture(name="constant", atoms=((1.0, 0.37),)),
    Mixture(name="constant at the end", atoms=((1.0, 0.0),)),
)


_SIDE_KM = 10.0
_MAP = {"centre": (0.0, 0.0), "side_km": _SIDE_KM}


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageCase:
    """What is measured: a statistic with its options, a law and a number of people."""

    statistic: str
    law: Mixture
    people: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def question(self, public_seed: int) -> Question:
        """Return the question of the case."""
        if self.statistic == "location":
            return question_for("location", **{**_MAP, **self.options})
        options = {"lower": 0.0, "upper": 1.0, **self.options}
        if takes_people(self.statistic):
            options["people"] = self.people
        return question_for(self.statistic, public_seed=public_seed, **options)

    def values(self, generator: np.random.Generator) -> Vector:
        """Return new values of all people; for locations, their coordinates in degrees."""
        if self.statistic != "location":
            return self.law.draw(generator, self.people)
        kilometers = [_SIDE_KM * (self.law.draw(generator, self.people) - 0.5) for _ in range(2)]
        return np.column_stack(kilometers)[:, ::-1] / KILOMETERS_PER_DEGREE

    def truths(self, asked: Question) -> list[float]:
        """Return the values of the law in the order of the estimate's numbers."""
        match self.statistic:
            case "mean":
                return [self.law.mean]
            case "variance":
                return [self.law.variance]
            case "location":
                middle = _SIDE_KM * (self.law.mean - 0.5)
                degrees = middle / KILOMETERS_PER_DEGREE
                return [middle, middle, degrees, degrees]
            case "quantiles":
                return [self.law.quantile(q) for q in asked.quantiles]  # type: ignore[attr-defined]
            case _:
                edges = asked.edges()  # type: ignore[attr-defined]
                return [self.law.share(a, b) for a, b in itertools.pairwise(edges)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """How many intervals contained the truth, and their mean width."""

    label: str
    hits: int
    repetitions: int
    width: float
    noted: int  # Repetitions whose interval came with a caveat.

    @property
    def coverage(self) -> float:
        return self.hits / self.repetitions

    def interval(self) -> tuple[float, float]:
        """Return the 95% interval of the coverage itself."""
        return statistics.two_sided_bounds(self.hits, self.repetitions, 0.95)


def measure_coverage(case: CoverageCase, repetitions: int, seed: int = 1) -> list[Covered]:
    """Return one result per number of the estimate; none if the estimate gives no interval."""
    source = SeededRandomness(seed)
    label = f"{case.statistic} {case.law.name} {case.people} {dict(case.options)!r}"
    generator = source.generator("values", label)
    seeds = generator.integers(2**62, size=repetitions)
    first = case.question(0)
    truths = np.array(case.truths(first))
    hits, widths = np.zeros(len(truths), dtype=np.int64), np.zeros(len(truths))
    noted, names = np.zeros(len(truths), dtype=np.int64), [""] * len(truths)
    for number in seeds:
        asked = _reseeded(first, int(number))
        values = case.values(generator)
        codes = asked.answer(values, SeededRandomness(int(number)))
        found = asked.estimate(asked.tally(codes))
        names = [one.label for one in found.numbers]
        intervals = [one.interval for one in found.numbers]
        if any(ends is None for ends in intervals):
            return []
        ends = np.array(intervals, dtype=np.float64)
        hits += (ends[:, 0] <= truths) & (truths <= ends[:, 1])
        widths += ends[:, 1] - ends[:, 0]
        noted += np.array([one.caveat is not None for one in found.numbers], dtype=np.int64)
    return [
        Covered(
            label=name,
            hits=int(hit),
            repetitions=repetitions,
            width=float(width) / repetitions,
            noted=int(note),
        )
        for name, hit, width, note in zip(names, hits, widths, noted, strict=True)
    ]


def _reseeded(asked: Question, public_seed: int) -> Question:
    """Return the same question with another public seed, if it has one."""
    if not hasattr(asked, "public_seed"):
        return asked
    again: Question = dataclasses.replace(asked, public_seed=public_seed)  # type: ignore[type-var]
    return again
