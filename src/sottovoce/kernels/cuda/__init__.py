"""Kernels for NVIDIA devices, in Triton: the same bits as on the CPU.

Nothing here imports torch or triton before it is asked to work. Whoever asks for these kernels by
name and has no Triton gets an error; whoever has tensors on a device and asks for bits (the
simulator) is served by the CPU then, with the same result.
"""

import importlib.util
from typing import TYPE_CHECKING

from sottovoce import parameters
from sottovoce.errors import ParameterError
from sottovoce.randomness import Keystream

if TYPE_CHECKING:
    import torch


def available() -> bool:
    """Whether the kernels can run here: an NVIDIA device, torch and triton."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "triton")):
        return False
    import torch

    return torch.cuda.is_available() and torch.version.hip is None


def required() -> None:
    """Refuses where triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        raise ParameterError(
            "the CUDA kernels need Triton: pip install triton; without it, copy the values to the "
            "CPU (.cpu().numpy()), where sottovoce.kernels gives the same bits"
        )


def privatise(
    values: "torch.Tensor", radius: float, noise_stddev: float, keystream: Keystream
) -> "torch.Tensor":
    """One private bit a coordinate of a vector on a CUDA device: clipped, drawn and packed.

    A vector x becomes c = x min(1, radius/|x|), and bit i of the payload (uint8, on the same
    device, the lowest bit of a byte first) is 1 with probability 1/(1 + e^(-2 c_i/noise_stddev)),
    exactly. Every keystream serves one vector.
    """
    required()
    from sottovoce.kernels.cuda.norm import clip_scale
    from sottovoce.kernels.cuda.one_bit import sample_rows

    scale = clip_scale(values, parameters.clip_norm("radius", radius))
    return sample_rows(values[None], noise_stddev, [keystream], scale=scale)[0]
