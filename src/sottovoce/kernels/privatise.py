"""Clip, privatise and pack an update in two passes over it: what a client's own loop may call.

The bytes are those of the Gauss-Hermite mechanism with two levels, `L2Ball.project`, `encode` and
`wire.packing.pack`, one after the other. Nothing is charged here: that is the caller's part.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce import parameters
from sottovoce.domains import L2Ball
from sottovoce.errors import DomainError
from sottovoce.kernels import arrays
from sottovoce.kernels.one_bit import sample_payload
from sottovoce.randomness import Keystream


def one_bit_payload(
    update: Any, *, clip_norm: float, noise_multiplier: float, keystream: Keystream
) -> NDArray[np.uint8]:
    """One private bit a coordinate, eight to a byte, of an update clipped to `clip_norm`.

    `update` is a vector: a numpy array, or anything that turns into one.
    """
    parameters.noise_multiplier(noise_multiplier)
    vector = arrays.vector(np.asarray(update))
    if not len(vector):
        raise DomainError("an update has at least one coordinate")
    ball = L2Ball(dimension=len(vector), radius=clip_norm)
    scale = ball.clip_scale(vector)
    if scale is None:  # so long that its norm overflows, or not finite, which raises
        vector, scale = ball.project(vector), 1.0
    return sample_payload(vector, noise_multiplier * clip_norm, keystream, scale=scale)
