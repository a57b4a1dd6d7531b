"""What a pairwise sum gives, and the checks that it must pass before anything of it is used."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.errors import AbandonedError, ParameterError
from sottovoce.mechanisms.packing import UnsignedCodes
from sottovoce.protocol.secure import energy

Sums: TypeAlias = UnsignedCodes | NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SummedRound:
    """The sums of a round.

    Attributes:
        vectors: The sum of each uplink.
        survivors: Names of the sites whose vectors are in it, sorted.
    """

    vectors: list[Sums]
    survivors: tuple[str, ...]


def check_range(sums: NDArray[np.integer[Any]], *, least: int, largest: int) -> None:
    """Raise AbandonedError unless all sums are within the range of sums of honest codes."""
    if int(sums.min()) < least or int(sums.max()) > largest:
        raise AbandonedError(
            f"a sum is outside {least} to {largest}, so some site has sent no codes; it cannot be "
            "told which. The round is lost"
        )


def check_one_bit(
    sums: Sums, *, levels: int, clients: int, norm: float | None, bound: float | None
) -> Sums:
    """Check the energy of sums of bits and clamp them, as far as the bounds of logits are given.

    Raises:
        AbandonedError: The sums have more energy than those of honest clients.
        ParameterError: The codes have more than one bit.
    """
    if norm is None and bound is None:
        return sums
    if levels != 2:
        raise ParameterError(
            "the energy test is for codes of one bit; leave logit_norm and logit_bound out"
        )
    if norm is not None:
        energy.check_energy(sums, clients=clients, logit_norm=norm)
    return sums if bound is None else energy.clamp_sums(sums, clients=clients, logit_bound=bound)


def missing_secrets(missing: Sequence[str], disputes: Sequence[tuple[str, str]]) -> AbandonedError:
    """Return the error for secrets that the answers do not give."""
    return AbandonedError(
        f"not all masks can be removed: secrets of {', '.join(missing)} are missing"
        + "".join(
            f"; '{dealer}' has dealt, or '{answerer}' answered, a wrong share"
            for dealer, answerer in disputes
        )
        + "; wait for more answers, or begin a new attempt"
    )
