"""Whether the C kernels are here, and which of their levels runs.

The extension is optional: an install without a compiler works, says so once, and gives the same
bits with numpy. `SOTTOVOCE_KERNELS` chooses a level by name: auto, avx512, avx2, portable or numpy.
"""

import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final, NamedTuple

from sottovoce.core.errors import ParameterError

# One more whenever what a function takes has another meaning: src/native/module.c has the same.
_INTERFACE: Final = 3


def _library() -> ModuleType | None:
    try:
        found = importlib.import_module("sottovoce._native")
    except ImportError:  # no compiler when it was installed
        return None
    # One that was built from other sources might read today's tables wrongly, and say nothing.
    return found if getattr(found, "INTERFACE", None) == _INTERFACE else None


_native = _library()

VARIABLE: Final = "SOTTOVOCE_KERNELS"
# In the order of the extension's numbers: each is a superset of those before.
_NAMES: Final = ("portable", "avx2", "avx512")


class NativeMissingWarning(RuntimeWarning):
    """The C kernels were not built: results are the same, only slower."""


class Native(NamedTuple):
    """The extension and the level that its functions take first."""

    library: ModuleType
    level: int

    @property
    def name(self) -> str:
        return _NAMES[self.level]


def levels() -> tuple[str, ...]:
    """What this machine can run, the slowest first; numpy always."""
    return ("numpy", *(_NAMES[: _native.best_level() + 1] if _native else ()))


class _Choice:
    """The level in use: made at first use, changed by `using`."""

    def __init__(self) -> None:
        self.made = False
        self.native: Native | None = None

    def make(self, name: str) -> None:
        self.native, self.made = None, True  # first, as a warning may be an error
        try:
            self.native = _find(name)
        except ParameterError:
            self.made = False
            raise


_choice = _Choice()


def native() -> Native | None:
    """The extension at the level in use, or None where numpy does the work."""
    if not _choice.made:
        _choice.make(os.environ.get(VARIABLE, "auto"))
    return _choice.native


@contextmanager
def using(name: str) -> Iterator[None]:
    """Another level for a while, in every thread: for tests and benchmarks."""
    before = _choice.native, _choice.made
    _choice.make(name)
    try:
        yield
    finally:
        _choice.native, _choice.made = before


def _find(name: str) -> Native | None:
    if name == "auto" and _native is None:
        warnings.warn(
            "the C kernels of Sottovoce are not built, or are another version's, so numpy does "
            "their work: the same bits, more slowly. To build them, install a C compiler (gcc or "
            "clang) and reinstall (pip install --force-reinstall --no-cache-dir); to silence this, "
            f"set {VARIABLE}=numpy",
            NativeMissingWarning,
            stacklevel=3,
        )
        return None
    known = levels()
    if name == "auto":
        name = known[-1]
    if name not in known:
        raise ParameterError(
            f"{VARIABLE} is '{name}', but this machine can run: auto, {', '.join(known)}"
        )
    if name == "numpy" or _native is None:
        return None
    return Native(_native, _NAMES.index(name))
