"""What a server can check about a sum of bits whose terms stay hidden.

Behind masks a site can add any integer to any coordinate. A bit of a client with logit z is 1 with
probability 1/(1 + e^-z), so honest bits are nearly fair coins and the energy of their sum is known
well: E = sum_j (s_j - n/2)^2 has the mean n d/4 and the standard deviation n sqrt(d/8) if all
logits are 0. Where logits are not, each client moves the sum by at most S/4 in L2 norm, S the
largest norm of its logits; n clients that agree add n^2 S^2/16.

Not covered: an error of the size of honest noise, since the test is blind to what is within it.
Over all coordinates the largest hidden error has about the L2 norm that a single message of a
client without masks may have. Concentrated on few coordinates it would be larger than a single
client's effect; `clamp_sums` bounds it there by what all clients together could do, and 3 sqrt(n).
Nor does it cover who did it, and a dishonest site can void every round: the site stays unknown and
the round is lost. Whether a round is voided depends on its sum only. Never search for the site with
the same codes in other sums: that would reveal them.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.errors import AbandonedError

_AT_ONCE = 2**20


def energy(sums: NDArray[np.integer[Any]], clients: int) -> float:
    """Return sum_j (s_j - n/2)^2, the energy of sums of n bits."""
    quadrupled: int = 0  # an integer, so that nothing is rounded
    for start in range(0, len(sums), _AT_ONCE):
        doubled = 2 * sums[start : start + _AT_ONCE].astype(np.int64) - clients
        quadrupled += int(doubled @ doubled)
    return float(quadrupled / 4)


def energy_limit(*, dimension: int, clients: int, logit_norm: float) -> float:
    """Return the energy that sums of honest bits exceed with a probability of at most 3e-8.

    d n/4 + n^2 S^2/16 + 6 n sqrt(d/8) + 9 n + 1.5 n^1.5 S

    Args:
        dimension: Number of coordinates d.
        clients: Number of clients n.
        logit_norm: S, the largest L2 norm of a client's logits.

    Returns:
        The limit.
    """
    parameter_rules.integer("dimension", dimension, low=1, high=2**40)
    parameter_rules.integer("clients", clients, low=1, high=2**31)
    parameter_rules.positive("logit_norm", logit_norm)
    limit: float = (
        dimension * clients / 4.0
        + (clients * logit_norm) ** 2 / 16.0
        + 6.0 * clients * math.sqrt(dimension / 8.0)
        + 9.0 * clients
        + 1.5 * clients**1.5 * logit_norm
    )
    return limit


def check_energy(sums: NDArray[np.integer[Any]], clients: int, logit_norm: float) -> None:
    """Raise AbandonedError if sums of bits have more energy than those of honest clients.

    Args:
        sums: The sum of each coordinate.
        clients: Number of clients in it.
        logit_norm: The largest L2 norm of a client's logits.

    Raises:
        AbandonedError: Some client has sent something else than bits; it cannot be told which.
    """
    limit = energy_limit(dimension=len(sums), clients=clients, logit_norm=logit_norm)
    found = energy(sums, clients)
    if found > limit:
        raise AbandonedError(
            f"the sums have the energy {found:.6g}, above the {limit:.6g} of honest clients, so "
            "some site has sent no bits; it cannot be told which. The round is lost"
        )


def clamp_sums(
    sums: NDArray[np.integer[Any]], clients: int, logit_bound: float
) -> NDArray[np.int64]:
    """Return sums of bits, clamped to n/2 +- (n tanh(Z/2)/2 + 3 sqrt(n)), rounded outward.

    Args:
        sums: The sum of each coordinate.
        clients: Number of clients n.
        logit_bound: Z, the largest absolute logit.

    Returns:
        The clamped sums.

    Examples:
        >>> clamp_sums(np.array([50, 100], dtype=np.uint8), clients=100, logit_bound=0.05).tolist()
        [50, 82]
    """
    parameter_rules.integer("clients", clients, low=1, high=2**31)
    parameter_rules.positive("logit_bound", logit_bound)
    reach = clients * math.tanh(logit_bound / 2.0) / 2.0 + 3.0 * math.sqrt(clients)
    low, high = math.floor(clients / 2.0 - reach), math.ceil(clients / 2.0 + reach)
    return np.clip(sums.astype(np.int64), low, high)
