"""The automatic logit bound of clamped bits, chosen from public values only.

A clamp costs no privacy of a message, and behind a secure sum a smaller one is cheaper: more of the
other clients' bits are fair coins. But a clamp that is reached biases the mean. A random rotation
of an update of norm C has coordinates whose mean square is C^2/d. The automatic bound is the logit
of three times its root, C/sqrt(d), or of the whole norm in one coordinate if that is less. Some .3%
of the coordinates of a rotated update of full norm are then clamped; without rotation give a bound.
Of bounds between 2 and 6 times C/sqrt(d) this one has about the least error of a sum, for 100 to
10,000 coordinates and clients.

It depends on the dimension, the noise multiplier, the records of a mean and the trials of a
coordinate: all of them are public and fixed before any data are seen. The clip norm cancels,
because the noise is in units of it. The number of clients changes what a sum hides, not which
logits occur, and is not used.
"""

import math
from typing import Any

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Domain, L2Ball, require_l2_ball
from sottovoce.mechanisms.registry import Parameters
from sottovoce.privacy.events import OneBit

MAX_LOGIT_BOUND = 100.0
# By this fraction a clipped vector may be longer than the radius, and logits differ by rounding.
ROUNDING = 2.0**-26
_REACH = 3.0  # In root mean squares of the logits of a rotated update of full norm.


def automatic_logit_bound(domain: Domain, given: Parameters) -> float:
    """Return a small logit bound that clamps few coordinates of a rotated update.

    Args:
        domain: The L2 ball that updates are clipped to.
        given: The other parameters: `noise_multiplier` and, if there are any, `trials`.

    Returns:
        min(1, 3/sqrt(d)) times the largest logit that an update can have, at most 100.
    """
    ball = require_l2_ball(domain)
    noise_multiplier = parameter_rules.noise_multiplier(given["noise_multiplier"])
    largest = 2.0 * ball.records / (noise_multiplier * math.sqrt(given.get("trials", 1)))
    return min(MAX_LOGIT_BOUND, largest * min(1.0, _REACH / math.sqrt(ball.dimension)))


def check_logit_bound(value: Any) -> float:
    """Return the logit bound; raise ParameterError unless it lies above 0 and is at most 100."""
    return parameter_rules.positive(
        "logit_bound",
        value,
        at_most=MAX_LOGIT_BOUND,
        remedy="use 'gauss_hermite' with levels = 2 for bits without a clamp",
    )


def largest_logit_norm(
    ball: L2Ball, noise_multiplier: float, logit_bound: float, bits: int
) -> float:
    """Return the largest L2 norm of a client's logits: that of an update, or of clamped logits.

    Args:
        ball: The L2 ball that updates are clipped to.
        noise_multiplier: sigma in units of radius/records.
        logit_bound: The largest absolute logit.
        bits: Number of bits of a message.

    Returns:
        The norm, rounded up.
    """
    update = 2.0 * ball.records / noise_multiplier
    return min(update, logit_bound * math.sqrt(bits)) * (1.0 + ROUNDING)


def clamped_event(
    ball: L2Ball, noise_multiplier: float, logit_bound: float, bits: int, adjacency: Adjacency
) -> OneBit:
    """Return the privacy event of bits with clamped logits.

    A clamp brings logits closer to each other, never apart, so they differ by no more than without
    it. They also lie in a cube, whose points are at most its diagonal apart. That holds for any two
    messages, so also next to other contributions.

    Args:
        ball: The L2 ball that updates are clipped to.
        noise_multiplier: sigma in units of radius/records.
        logit_bound: The largest absolute logit.
        bits: Number of bits of a message.
        adjacency: The adjacency relation.
    """
    diagonal = 2.0 * logit_bound * math.sqrt(bits)
    zero_centered = ball.zero_centered(adjacency)
    # There a single contribution moves logits by at most half the shift: by the diagonal.
    most = 2.0 * diagonal if zero_centered else diagonal
    shift = min(2.0 * ball.relative_sensitivity(adjacency) / noise_multiplier, most)
    return OneBit(
        shift=shift * (1.0 + ROUNDING),
        dimension=bits,
        adjacency=adjacency,
        against_zero=ball.against_zero(adjacency),
        zero_centered=zero_centered,
    )
