"""Tallies of codes on the server: counts or moments, whose size does not depend on the people.

Tallies of different people are added. They are functions of the codes alone, so they reveal no more
than the codes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.mechanisms.mechanism import level_indices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CodeCounts:
    """The counts of codes: counts[g, j] is the number of times that group g sent code j.

    A group are the people with the same sub-question; there may be only one group.
    """

    counts: NDArray[np.int64]

    @classmethod
    def of(
        cls, codes: ArrayLike, levels: int, groups: NDArray[np.int64] | None = None, num: int = 1
    ) -> "CodeCounts":
        """Count codes; `groups` says which of `num` sub-questions each one answers.

        Without `groups` all answer the first. Raise DomainError unless the codes are integers from
        0 to levels - 1.
        """
        indices = level_indices(codes, levels)
        flat = indices if groups is None else groups * levels + indices
        counts = np.bincount(flat.ravel(), minlength=num * levels)
        return cls(counts=counts.reshape(num, levels))

    @property
    def people(self) -> int:
        """The number of people."""
        return int(self.counts.sum())

    def __add__(self, other: "CodeCounts") -> "CodeCounts":
        _check_alike(self.counts.shape, other.counts.shape)
        return CodeCounts(counts=self.counts + other.counts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """The moments of decoded codes: a row per group of their number, sum and sum of squares.

    A group are the people with the same sub-question; there may be only one group.
    """

    sums: Vector

    @classmethod
    def of(
        cls, decoded: Vector, groups: NDArray[np.int64] | None = None, num: int = 1
    ) -> "Moments":
        """Compute the moments; `groups` says which of `num` sub-questions each number answers.

        Without `groups` all answer the first. Raise DomainError if a number is not finite.
        """
        if not np.isfinite(decoded).all():
            raise DomainError("codes must decode to finite numbers; discard the others")
        of_group = np.zeros(len(decoded), dtype=np.int64) if groups is None else groups
        columns = [
            np.bincount(of_group, weights=decoded**power, minlength=num) for power in (0, 1, 2)
        ]
        return cls(sums=np.stack(columns, axis=1))

    @property
    def people(self) -> int:
        """The number of people."""
        return round(float(self.sums[:, 0].sum()))

    def __add__(self, other: "Moments") -> "Moments":
        _check_alike(self.sums.shape, other.sums.shape)
        return Moments(sums=self.sums + other.sums)


Tally = CodeCounts | Moments


def add_tallies(first: Tally, second: Tally) -> Tally:
    """Return the sum of two tallies of one question, which are not changed.

    Raise ParameterError if they are of different kinds or shapes.
    """
    if isinstance(first, CodeCounts) and isinstance(second, CodeCounts):
        return first + second
    if isinstance(first, Moments) and isinstance(second, Moments):
        return first + second
    raise ParameterError(
        "these are tallies of different questions; add only tallies of the same question"
    )


def _check_alike(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    if first != second:
        raise ParameterError(
            f"tallies of shapes {first} and {second} are of different questions; add only tallies "
            "of the same question"
        )
