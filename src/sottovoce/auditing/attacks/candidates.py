"""Whose membership is guessed, and which shadow model trains on whom.

    candidates   as many members as non-members of the target; the attacker knows them all.
    known        the target's other records: granted to the attacker, as differential privacy grants
                 everything but one record, so shadow models are as large as their target.

Shadows come in pairs: one trains on a random half of the candidates, the other on the other half.
So every candidate is in exactly half of them, and each shadow has half of the candidates.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.errors import DataError, ParameterError

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]

FEWEST_SHADOWS = 4  # two with each candidate, two without: a spread needs two
_SCORES_PER_ALARM = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Rows of a pool in which the members come first; `is_member` says who is one."""

    rows: Rows
    is_member: Mask
    known: Rows

    def __len__(self) -> int:
        return len(self.rows)


def choose(
    num_members: int, num_non_members: int, wanted: int, generator: np.random.Generator
) -> Candidates:
    """`wanted` candidates at random, half of them members, of a pool with the members first."""
    each = wanted // 2
    most = 2 * min(num_members, num_non_members)
    if wanted % 2 or not 2 <= wanted <= most:
        raise ParameterError(
            f"candidates must be an even number from 2 to {most}, got {wanted}: half of them are "
            f"members, of which there are {num_members}, and half of the {num_non_members} others"
        )
    members = np.sort(generator.choice(num_members, each, replace=False))
    others = num_members + np.sort(generator.choice(num_non_members, each, replace=False))
    return Candidates(
        rows=np.concatenate([members, others]),
        is_member=np.arange(wanted) < each,
        known=np.setdiff1d(np.arange(num_members), members),
    )


def design(num_shadows: int, num_candidates: int, generator: np.random.Generator) -> Mask:
    """(shadows, candidates): who trains on whom."""
    parameter_rules.integer(
        "shadows", num_shadows, low=FEWEST_SHADOWS, high=2**16, remedy="take more shadow models"
    )
    if num_shadows % 2:
        raise ParameterError(
            f"shadows must be an even number, got {num_shadows}: every candidate is in half of them"
        )
    masks = np.zeros((num_shadows, num_candidates), dtype=bool)
    for first in range(0, num_shadows, 2):
        half = generator.permutation(num_candidates)[: num_candidates // 2]
        masks[first, half] = True
        masks[first + 1] = ~masks[first]
    return masks


def check_enough(num_shadows: int, num_candidates: int, fpr: float) -> None:
    """Shadows without a candidate must give enough scores to place the attacker's threshold."""
    have = num_shadows // 2 * num_candidates
    needed = int(np.ceil(_SCORES_PER_ALARM / fpr - 1e-9))
    if have < needed:
        raise DataError(
            f"too few shadow models for the false-positive rate {fpr:g}: {num_shadows} of them "
            f"give {have} scores of records that they never saw, and {needed} are needed; take "
            f"{2 * -(-needed // num_candidates)} shadows or more candidates, or ask for a larger "
            "rate"
        )
