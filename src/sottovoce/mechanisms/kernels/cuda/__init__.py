"""Kernels for NVIDIA devices, in Triton: the same bits as on the CPU.

Nothing here imports torch or triton before it is asked to work. Whoever asks for these kernels by
name and has no Triton gets an error; whoever has tensors on a device and asks for bits (the
simulator) is served by the CPU then, with the same result.
"""

import importlib.util

from sottovoce.core.errors import ParameterError


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
            "CPU (.cpu().numpy()), where sottovoce.mechanisms.kernels gives the same bits"
        )
