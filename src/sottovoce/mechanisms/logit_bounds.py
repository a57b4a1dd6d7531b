"""The automatic logit bound of clamped bits, chosen from public values only.

A clamp costs no privacy of a message, and behind a secure sum a smaller one is cheaper: more of the
other clients' bits are fair coins. But a clamp that is reached biases the mean. A random rotation
of an update of norm C has coordinates that are sub-Gaussian with parameter C/sqrt(d), so none of
them exceeds c C/sqrt(d), c = sqrt(2 log(2d/beta)), except with probability beta. The automatic
bound is the logit of that coordinate for beta = 1%, or of the whole norm in one coordinate if that
is less.

It depends on the dimension, the noise multiplier, the records of a mean and the trials of a
coordinate: all of them are public and fixed before any data are seen. The clip norm cancels,
because the noise is in units of it. The number of clients does not matter: it changes what a sum
hides, not which logits occur.
"""

import math
from typing import Any

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Domain, require_l2_ball
from sottovoce.mechanisms.registry import Parameters

MAX_LOGIT_BOUND = 100.0
_CLAMPED_UPDATES = 0.01  # beta, the largest probability that a rotated update is clamped


def automatic_logit_bound(domain: Domain, given: Parameters) -> float:
    """Return the smallest logit bound that hardly ever clamps a rotated update.

    Args:
        domain: The L2 ball that updates are clipped to.
        given: The other parameters: `noise_multiplier` and, if there are any, `trials`.

    Returns:
        min(1, c/sqrt(d)) times the largest logit that an update can have, at most 100.
    """
    ball = require_l2_ball(domain)
    noise_multiplier = parameter_rules.noise_multiplier(given["noise_multiplier"])
    largest = 2.0 * ball.records / (noise_multiplier * math.sqrt(given.get("trials", 1)))
    typical = math.sqrt(2.0 * math.log(2.0 * ball.dimension / _CLAMPED_UPDATES) / ball.dimension)
    return min(MAX_LOGIT_BOUND, largest * min(1.0, typical))


def check_logit_bound(value: Any) -> float:
    """Return the logit bound; raise ParameterError unless it lies above 0 and is at most 100."""
    return parameter_rules.positive(
        "logit_bound",
        value,
        at_most=MAX_LOGIT_BOUND,
        remedy="use 'gauss_hermite' with levels = 2 for bits without a clamp",
    )
