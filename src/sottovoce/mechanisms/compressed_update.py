"""Messages of vectors that are private already: float32 numbers, or a few bits a coordinate.

A client that adds noise to each of its local steps (`federated.algorithms.noisy_steps`) sends the
change of its model. Any function of it costs no further privacy, so it may be compressed:

    32 bits    float32 numbers.
    4, 2 bits  stochastic rounding to 2^bits levels, equally spaced from -m to m, where m is the
               largest magnitude. Unbiased.
    1 bit      the signs, and the scale |x|^2/|x|_1 that all of them are multiplied with. Of a
               randomly rotated vector this is nearly unbiased, and its squared error is pi/2 - 1
               times |x|^2, where stochastic rounding to two levels has many times that.

The scale is a float32 number, which is sent as the last 32 bits of the message. Vectors should be
rotated at random before they are compressed, so that their coordinates are alike; runs do so.

Reference: Vargaftik et al. 2021 (DRIVE: one-bit distributed mean estimation), the unbiased scale.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball, Vector
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.coordinate_laws import CompressedRows
from sottovoce.mechanisms.encoding import WithPrivatize
from sottovoce.mechanisms.mechanism import (
    CodeFormat,
    Codes,
    Float32Codes,
    LevelCodes,
    Mechanism,
    MomentLaw,
    Sampling,
    float_codes,
    level_indices,
)
from sottovoce.privacy.events import PrivacyEvent

MessageBits = Literal[1, 2, 4, 32]
MESSAGE_BITS: tuple[MessageBits, ...] = (1, 2, 4, 32)
# Far above the norm of any update that a model survives: only larger ones are clipped.
_NO_CLIPPING = 1e12
_SCALE_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedUpdate(WithPrivatize):
    """The message of a client whose local steps add the noise: the change of its model, compressed.

    The mechanism `charged` protects the records; `release_event` charges all of its uses in a
    round. Encoding compresses and adds no noise.

    Attributes:
        charged: The mechanism that adds the noise of a step; its domain says how many steps a round
            has, and on which samples.
        bits: The number of bits of a coordinate: 32 (float32), 4, 2 or 1.
        input_domain: A ball of the same dimension that is so large that nothing is clipped.

    Raises:
        ParameterError: The number of bits is none of these.

    Examples:
        >>> from sottovoce import Gaussian, L2Ball
        >>> noise = Gaussian(input_domain=L2Ball(dimension=4, radius=1.0), noise_multiplier=1.0)
        >>> one_bit = CompressedUpdate(charged=noise, bits=1)
        >>> one_bit.decode(one_bit.privatize([1.0, -3.0, 2.0, -2.0])).tolist()
        [2.25, -2.25, 2.25, -2.25]
    """

    charged: Mechanism
    bits: MessageBits = 32
    input_domain: L2Ball = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_message_bits(self.bits)
        whole = L2Ball(dimension=self.charged.input_domain.dimension, radius=_NO_CLIPPING)
        object.__setattr__(self, "input_domain", whole)

    @property
    def sampling(self) -> Sampling:
        """How the mechanism that adds the noise draws it."""
        return self.charged.sampling

    def message_form(self) -> dict[str, Any]:
        """Return what determines the messages in addition to the noise, as plain data."""
        return {"kind": "compressed_update", "bits": self.bits}

    def code_format(self) -> CodeFormat:
        if self.bits == _SCALE_BITS:
            return Float32Codes()
        count = self.input_domain.dimension + _SCALE_BITS // self.bits
        return LevelCodes(levels=1 << self.bits, count=count)

    def encode(self, values: ArrayLike, keystream: Keystream) -> Codes:
        vector = self.input_domain.check(values)
        if self.bits == _SCALE_BITS:
            return vector.astype(np.float32)
        if self.bits == 1:
            total = float(np.abs(vector).sum())
            scale = float(vector @ vector) / total if total > 0.0 else 0.0
            codes = (vector >= 0.0).astype(np.uint8)
            return np.concatenate([codes, _scale_codes(np.float32(scale), 1)])
        largest = np.nextafter(np.float32(np.abs(vector).max()), np.float32(np.inf))
        top = (1 << self.bits) - 1
        places = (vector / float(largest) + 1.0) * (top / 2.0)
        below = np.floor(places)
        uniforms = keystream.draws(32, len(vector)).astype(np.float64) * 2.0**-32
        codes = np.clip(below + (uniforms < places - below), 0, top).astype(np.uint8)
        return np.concatenate([codes, _scale_codes(largest, self.bits)])

    def decode(self, codes: Codes) -> Vector:
        if self.bits == _SCALE_BITS:
            return float_codes(codes)
        found = level_indices(codes, 1 << self.bits)
        values, scale = found[: self.input_domain.dimension], found[self.input_domain.dimension :]
        top = (1 << self.bits) - 1
        return np.asarray((values * (2.0 / top) - 1.0) * _scale_of(scale, self.bits))

    def law(self, values: ArrayLike) -> MomentLaw:
        vector = self.input_domain.check(values)
        if self.bits == _SCALE_BITS:
            return MomentLaw(center=vector.astype(np.float32).astype(np.float64), spread=0 * vector)
        if self.bits == 1:
            total = max(float(np.abs(vector).sum()), 1e-300)
            signs = np.where(vector >= 0.0, 1.0, -1.0)
            scale = float(np.float32(vector @ vector / total))
            return MomentLaw(center=signs * scale, spread=np.zeros_like(vector))
        largest = float(np.nextafter(np.float32(np.abs(vector).max()), np.float32(np.inf)))
        width = 2.0 * largest / ((1 << self.bits) - 1)
        share = np.mod((vector + largest) / width, 1.0)
        return MomentLaw(center=vector, spread=width**2 * share * (1.0 - share))

    def coordinate_law(self) -> CompressedRows:
        return CompressedRows(bits=self.bits)

    def privacy(self, adjacency: Adjacency) -> PrivacyEvent:
        """Return the event of everything that the client releases in a round."""
        from sottovoce.mechanisms.release import release_event

        return release_event(self.charged, adjacency=adjacency)


def compressed(charged: Mechanism, bits: MessageBits = 32) -> Mechanism:
    """Return the mechanism that sends vectors which `charged` protects.

    Args:
        charged: The mechanism that adds the noise.
        bits: The number of bits of a coordinate.

    Returns:
        A `CompressedUpdate`; its `sampling` is that of `charged`, so a property.
    """
    return cast(Mechanism, CompressedUpdate(charged=charged, bits=bits))


def check_message_bits(bits: object, name: str = "bits") -> MessageBits:
    """Return the number of bits of a coordinate.

    Args:
        bits: The number.
        name: What messages call it.

    Returns:
        The same number.

    Raises:
        ParameterError: It is none of 1, 2, 4 and 32.
    """
    for known in MESSAGE_BITS:
        if bits == known and not isinstance(bits, bool):
            return known
    raise ParameterError(
        f"{name} must be 32 (float32), 4, 2 or 1, got {bits!r}; choose one of these"
    )


def _scale_codes(scale: np.float32, bits: int) -> np.ndarray:
    """Return the 32 bits of a number as codes of `bits` bits, lowest first."""
    word = int(np.float32(scale).view(np.uint32))
    mask = (1 << bits) - 1
    return np.array([word >> at & mask for at in range(0, _SCALE_BITS, bits)], dtype=np.uint8)


def _scale_of(codes: np.ndarray, bits: int) -> float:
    word = sum(int(code) << at for at, code in zip(range(0, _SCALE_BITS, bits), codes, strict=True))
    scale = float(np.uint32(word).view(np.float32))
    if not 0.0 <= scale < np.inf:
        raise DomainError("the scale at the end of the codes must be a finite number, 0 or more")
    return scale
