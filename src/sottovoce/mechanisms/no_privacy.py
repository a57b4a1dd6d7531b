"""The baseline without privacy: float32 values without noise."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball, Vector
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.coordinate_laws import Unchanged
from sottovoce.mechanisms.encoding import WithPrivatize
from sottovoce.mechanisms.mechanism import Codes, Float32Codes, PointLaw, Sampling, float_codes
from sottovoce.mechanisms.registry import register
from sottovoce.privacy.events import NonPrivate


@register(
    "no_privacy",
    summary="float32 values without noise: the baseline, with no guarantee",
    examples=[{}],
    example_domain=L2Ball(dimension=8, radius=1.0),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class NoPrivacy(WithPrivatize):
    """A baseline that sends the clipped values as float32 numbers, without any guarantee.

    Its epsilon is infinite, and every result says so. Use it to measure what privacy costs.

    Attributes:
        input_domain: The L2 ball that updates are clipped to.

    Examples:
        >>> from sottovoce import L2Ball
        >>> mechanism = NoPrivacy(input_domain=L2Ball(dimension=2, radius=1.0))
        >>> mechanism.decode(mechanism.privatize([0.5, -0.25])).tolist()
        [0.5, -0.25]
    """

    input_domain: L2Ball
    sampling: ClassVar[Sampling] = "none"

    def code_format(self) -> Float32Codes:
        return Float32Codes()

    def encode(self, values: ArrayLike, keystream: Keystream) -> NDArray[np.float32]:
        return self.input_domain.check(values).astype(np.float32)

    def decode(self, codes: Codes) -> Vector:
        return float_codes(codes)

    def law(self, values: ArrayLike) -> PointLaw:
        return PointLaw(center=self.input_domain.check(values))

    def coordinate_law(self) -> Unchanged:
        return Unchanged()

    def privacy(self, adjacency: Adjacency) -> NonPrivate:
        return NonPrivate(adjacency=adjacency)
