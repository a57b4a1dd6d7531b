"""Checks of the tensors that kernels take, and the choice of the device on which they run."""

import os
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import numpy as np
import torch

from sottovoce.core.errors import ParameterError

Tensor = torch.Tensor

_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_NOTHING: AbstractContextManager[object] = nullcontext()


def check_values(tensor: torch.Tensor, *, dimensions: int) -> None:
    """Raise ParameterError if the kernels cannot read a tensor of values.

    It must be on a CUDA device, be float32, float64, float16 or bfloat16, have this number of
    dimensions, and be contiguous along the last one.
    """
    check_on_cuda(tensor)
    if tensor.dtype not in _TYPES:
        raise ParameterError(
            f"values must be float32, float64, float16 or bfloat16, got {tensor.dtype}; convert "
            "them with .to(torch.float32)"
        )
    if tensor.ndim != dimensions:
        raise ParameterError(
            f"the tensor must have {dimensions} dimensions (1: a vector, 2: rows), got shape "
            f"{tuple(tensor.shape)}"
        )
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ParameterError("values must be contiguous in memory; use .contiguous()")


def check_on_cuda(tensor: torch.Tensor) -> None:
    """Raise ParameterError if a tensor is not on a CUDA device.

    With TRITON_INTERPRET=1 in the environment any device is accepted.
    """
    if not tensor.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise ParameterError(
            f"the Triton kernels run on CUDA devices, but this tensor is on {tensor.device}; move "
            "it with .cuda(), or use sottovoce.mechanisms.kernels, which gives the same bits on "
            "the CPU"
        )


def on_device(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Return a context in which kernels are launched on the CUDA device of this tensor.

    For a tensor on the CPU or on the current device, which takes less time, the context does
    nothing.
    """
    if not tensor.is_cuda or tensor.get_device() == torch.cuda.current_device():
        return _NOTHING
    return torch.cuda.device(tensor.device)


@lru_cache(maxsize=64)
def numbers_on(octets: bytes, device: torch.device) -> torch.Tensor:
    """Return float64 numbers, given as bytes, on a device; they must not be written to."""
    return torch.from_numpy(np.frombuffer(octets).copy()).to(device)
