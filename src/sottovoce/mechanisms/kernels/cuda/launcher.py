"""The launch of Triton kernels without Triton's own look-up of what it compiled.

That look-up takes several times as long as the launch itself, and longer than short kernels run.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

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
        self._kept: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: Sequence[int], *given: Any, **constants: Any) -> None:
        kinds = [given[0].get_device(), *constants, *constants.values()]
        # Type and alignment of a tensor, and the size of an integer.
        for argument in given:
            if isinstance(argument, int):
                kinds.append(-(2**31) <= argument < 2**31)
            else:
                kinds += argument.dtype, argument.data_ptr() % 16
        key = tuple(kinds)
        kept = self._kept.get(key)
        if kept is not None:
            kernel, last = kept
            kernel[(*grid, 1, 1)](*given, *last)
            return
        kernel = self.function[grid](*given, **constants)
        if _KEEPS and isinstance(kernel, triton.compiler.CompiledKernel):
            self._kept[key] = kernel, [constants[name] for name in self._names[len(given) :]]


def launched(*integers: str) -> Callable[[Any], Launcher]:
    """Return a decorator that makes a kernel; `integers` are its arguments that are integers."""

    def decorate(function: Any) -> Launcher:
        return Launcher(triton.jit(do_not_specialize=integers)(function))

    return decorate
