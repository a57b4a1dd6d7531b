"""Clip, privatise and pack an update: what a client's own loop may call.

Nothing is charged here, and nothing is rotated: that is the caller's part. `rounds` does it all.
"""

from typing import Any, Protocol, TypeVar, overload, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.core.domains import sized_vector
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms import packing
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.kernels import cuda
from sottovoce.mechanisms.kernels.one_bit import sample_payload
from sottovoce.mechanisms.mechanism import Codes, LevelCodes, Mechanism


@runtime_checkable
class ClipsOnTheWay(Protocol):
    """A mechanism that needs no projected copy: encode(project(values)), with the same codes."""

    def encode_clipped(self, values: ArrayLike, keystream: Keystream) -> Codes: ...


class TorchTensor(Protocol):
    """A tensor of torch's, which is not imported here."""

    @property
    def is_cuda(self) -> bool: ...

    def detach(self) -> Any: ...


Tensor = TypeVar("Tensor", bound=TorchTensor)


def encode_update(mechanism: Mechanism, update: ArrayLike, keystream: Keystream) -> Codes:
    """The codes of an update, projected onto the mechanism's domain."""
    if isinstance(mechanism, ClipsOnTheWay):
        return mechanism.encode_clipped(update, keystream)
    return mechanism.encode(mechanism.input_domain.project(update), keystream)


@overload
def privatise(mechanism: Mechanism, update: Tensor, keystream: Keystream) -> Tensor | bytes: ...
@overload
def privatise(mechanism: Mechanism, update: ArrayLike, keystream: Keystream) -> bytes: ...
def privatise(mechanism: Mechanism, update: Any, keystream: Keystream) -> Any:
    """The payload of an update: projected, encoded, packed; two passes over it for one bit.

    Of a tensor on a CUDA device it is a tensor (uint8) on the same device, made there; of anything
    else, bytes. The same values and keystream give the same bytes.
    """
    if getattr(update, "is_cuda", False):
        cuda.required()
        from sottovoce.protocol.on_device import payload_of

        return payload_of(mechanism, update, keystream)
    if hasattr(update, "detach"):
        update = _array(update)
    if isinstance(mechanism, GaussHermite) and mechanism.levels == 2:
        vector = sized_vector(update, mechanism.input_domain.dimension)
        scale = mechanism.input_domain.clip_scale(vector)
        if scale is not None:
            payload = sample_payload(vector, mechanism.noise_stddev, keystream, scale=scale)
            return payload.tobytes()
    code_format = mechanism.code_format()
    if not isinstance(code_format, LevelCodes):
        raise ParameterError("only codes of a few bits are packed; seal float32 codes in a message")
    codes = encode_update(mechanism, update, keystream)
    return packing.pack(np.asarray(codes, dtype=code_format.dtype), code_format.bits)


def _array(tensor: Any) -> Any:
    """A tensor's values for numpy, which has no bfloat16: float32 holds those exactly."""
    values = tensor.detach().cpu()
    return (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()
