"""Which tensors the kernels take, and on which device they run."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch

from sottovoce.core.errors import ParameterError

Tensor = torch.Tensor

_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def checked(tensor: torch.Tensor, *, dimensions: int) -> None:
    """Refuses what the kernels cannot read."""
    placed(tensor)
    if tensor.dtype not in _TYPES:
        raise ParameterError(
            f"values must be float32, float64, float16 or bfloat16, not {tensor.dtype}: convert "
            "them with .to(torch.float32)"
        )
    if tensor.ndim != dimensions:
        raise ParameterError(f"a tensor of {dimensions} dimensions is needed, not {tensor.ndim}")
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ParameterError("values must lie next to each other in memory: use .contiguous()")


def placed(tensor: torch.Tensor) -> None:
    """Refuses a tensor that is not on a CUDA device (Triton's interpreter takes any)."""
    if not tensor.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise ParameterError(
            f"the Triton kernels run on CUDA devices, and this tensor is on {tensor.device}: move "
            "it with .cuda(), or use sottovoce.mechanisms.kernels, which gives the same bits on "
            "the CPU"
        )


def on_device(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Launches go to the device of this tensor."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()
