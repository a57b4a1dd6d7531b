"""Checks of the tensors that kernels take, and the choice of the device on which they run."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch

from sottovoce.core.errors import ParameterError

Tensor = torch.Tensor

_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def check_values(tensor: torch.Tensor, *, dimensions: int) -> None:
    """Refuse a tensor that the kernels cannot read."""
    check_on_cuda(tensor)
    if tensor.dtype not in _TYPES:
        raise ParameterError(
            f"values must be float32, float64, float16 or bfloat16, got {tensor.dtype}; convert "
            "them with .to(torch.float32)"
        )
    if tensor.ndim != dimensions:
        raise ParameterError(f"the tensor must have {dimensions} dimensions, got {tensor.ndim}")
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ParameterError("values must be contiguous in memory; use .contiguous()")


def check_on_cuda(tensor: torch.Tensor) -> None:
    """Refuse a tensor that is not on a CUDA device (Triton's interpreter takes any)."""
    if not tensor.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise ParameterError(
            f"the Triton kernels run on CUDA devices, but this tensor is on {tensor.device}; move "
            "it with .cuda(), or use sottovoce.mechanisms.kernels, which gives the same bits on "
            "the CPU"
        )


def on_device(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Return a context in which kernels are launched on the device of this tensor."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()
