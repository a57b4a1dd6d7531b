"""The precision of products of float32 numbers on NVIDIA GPUs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # Specs name the precisions, and need not import torch.
    import torch

# "tf32" rounds the factors of products to 10 bits of mantissa; sums stay float32.
Precision = Literal["float32", "tf32"]


@contextmanager
def computing_in(precision: Precision, device: "torch.device") -> Iterator[None]:
    """Compute matrix products and convolutions in this precision inside the block.

    Outside CUDA devices everything is float32, and this does nothing.

    Args:
        precision: "float32", or "tf32", which is faster.
        device: The device.
    """
    if device.type != "cuda":
        yield
        return
    import torch

    before, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    try:
        with cudnn.flags(
            enabled=cudnn.enabled,
            benchmark=cudnn.benchmark,
            deterministic=cudnn.deterministic,
            allow_tf32=precision == "tf32",
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
