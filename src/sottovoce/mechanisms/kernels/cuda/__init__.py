"""The kernels for NVIDIA devices, in Triton, which give the same bits as those on the CPU.

Importing this package imports neither torch nor triton. Calling these kernels by name without
Triton raises an error; code that has tensors on a device and only needs their bits (the simulator)
falls back to the CPU, with the same result.
"""

import importlib.util
import warnings
from functools import cache

from sottovoce.core.errors import ParameterError


@cache  # Each batch of rows asks, and looking for packages takes longer than a launch.
def available() -> bool:
    """Return whether the kernels can run here: an NVIDIA device, torch and triton.

    Warns if only Triton is missing.
    """
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    if not torch.cuda.is_available() or torch.version.hip is not None:
        return False
    if importlib.util.find_spec("triton") is None:
        warnings.warn(
            "updates on the CUDA device are encoded on the CPU, with the same bits but more "
            "slowly, because Triton is not installed; install it (pip install triton)",
            stacklevel=2,
        )
        return False
    return True


def require_triton() -> None:
    """Raise ParameterError if triton is not installed; its version and the device do not matter."""
    if importlib.util.find_spec("triton") is None:
        raise ParameterError(
            "the CUDA kernels need Triton, which is not installed; install it (pip install "
            "triton), or copy the values to the CPU (.cpu().numpy()), where "
            "sottovoce.mechanisms.kernels gives the same bits"
        )
