"""Functions of tensors of fixed shapes, captured as CUDA graphs and launched by one call."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_WARM_UP_CALLS = 3


class CapturedFunction:
    """A function of tensors, captured as a CUDA graph for the shapes of its first arguments.

    The tensor that a call returns changes with the next call.

    Args:
        function: The function; it must not copy to the CPU or depend on values.
        given: Arguments of the shapes and types that all calls have.
        pool: The memory that functions share of which only one is called at a time
            (`torch.cuda.graph_pool_handle`); None for memory of its own.
    """

    def __init__(
        self, function: Callable[..., Tensor], given: Sequence[Tensor], pool: Any = None
    ) -> None:
        self._given = [tensor.clone() for tensor in given]
        device = given[0].device
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):  # Libraries allocate what they need before the capture.
            for _ in range(_WARM_UP_CALLS):
                function(*self._given)
        torch.cuda.current_stream(device).wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._found = function(*self._given)

    def __call__(self, *given: Tensor) -> Tensor:
        """Return what the function returns for arguments of the same shapes."""
        for source, target in zip(given, self._given, strict=True):
            target.copy_(source, non_blocking=True)
        self._graph.replay()
        return self._found
