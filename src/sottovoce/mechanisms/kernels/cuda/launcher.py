"""The launch of Triton kernels without Triton's own look-up of what it compiled.

That look-up takes several times as long as the launch itself, and longer than short kernels run.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import triton

# The compiled kernels of older versions take other arguments.
_KEEPS = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 6)


class Launcher:
    """A kernel, launched as Triton's are: launcher[grid](tensors and integers, **constants).

    The first argument is a tensor on the current device. Constants and options are given by name.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        self._names: list[str] = function.arg_names
        self._kept: dict[tuple[Any, ...], tuple[Any, list[str]]] = {}

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: Sequence[int], *given: Any, **constants: Any) -> None:
        # What a compiled kernel depends on: of a tensor type and alignment, of an integer size.
        kinds = [
            (one.dtype, one.data_ptr() % 16)
            if isinstance(one, torch.Tensor)
            else -(2**31) <= one < 2**31
            for one in given
        ]
        key = (given[0].get_device(), *kinds, *constants.items())
        kept = self._kept.get(key)
        if kept is not None:
            kernel, names = kept
            kernel[(*grid, 1, 1)](*given, *[constants[name] for name in names])
            return
        kernel = self.function[grid](*given, **constants)
        if _KEEPS and isinstance(kernel, triton.compiler.CompiledKernel):
            self._kept[key] = kernel, self._names[len(given) :]


def launched(*integers: str) -> Callable[[Any], Launcher]:
    """Return a decorator that makes a kernel; `integers` are its arguments that are integers."""

    def decorate(function: Any) -> Launcher:
        return Launcher(triton.jit(do_not_specialize=integers)(function))

    return decorate
