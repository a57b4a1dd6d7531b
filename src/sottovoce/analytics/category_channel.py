"""One of a few categories through k-ary randomised response, sampled exactly.

The true category is kept with odds e^epsilon to 1 against each other one. What runs is an integer
table over 2^128, rounded within epsilon and checked in rational arithmetic; `kept` and `other` are
its own probabilities.

Reference: Warner 1965; Kairouz, Bonawitz and Ramage 2016 (k-ary).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.design.channel import IntegerTable, round_pure
from sottovoce.mechanisms.design.randomized_response import k_ary
from sottovoce.mechanisms.design.store import table_epsilon
from sottovoce.mechanisms.kernels.table import MAX_LEVELS, sample_table
from sottovoce.mechanisms.mechanism import LevelCodes, Sampling
from sottovoce.privacy.events import PureDp


@lru_cache(maxsize=64)
def _table(epsilon: float, levels: int) -> IntegerTable:
    return round_pure(k_ary(epsilon, levels), epsilon)


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryChannel:
    """Categories 0 ... levels - 1; two levels are binary randomised response."""

    epsilon: float
    levels: int

    def __post_init__(self) -> None:
        table_epsilon(self.epsilon)
        parameter_rules.integer("levels", self.levels, low=2, high=MAX_LEVELS)

    @property
    def table(self) -> IntegerTable:
        """The integer table that runs."""
        return _table(float(self.epsilon), self.levels)

    @property
    def kept(self) -> float:
        """P(code = category)."""
        return float(self.table.channel.rows[0, 0])

    @property
    def other(self) -> float:
        """P(code = any one other)."""
        return float(self.table.channel.rows[0, -1])

    @property
    def kind(self) -> str:
        return "generalized_rr"

    @property
    def sampling(self) -> Sampling:
        return "exact"

    @property
    def digest(self) -> str:
        return self.table.digest

    @property
    def event(self) -> PureDp:
        # No table exceeds epsilon: `round_pure` has checked every ratio of the integers.
        return PureDp(epsilon=float(self.epsilon), adjacency=Adjacency.REPLACE_ONE)

    @property
    def code_format(self) -> LevelCodes:
        return LevelCodes(levels=self.levels)

    def answer(self, categories: NDArray[np.int64], keystream: Keystream) -> NDArray[np.uint8]:
        """A code for each category, each by itself."""
        knots = self.table.knots  # an input on a knot has exactly the knot's row
        return sample_table(knots[categories], self.table, keystream)
