"""The choice between the C kernels, with their levels of SIMD instructions, and numpy.

The extension is optional: an installation without a C compiler works, warns once, and computes the
same bits with numpy. The environment variable `SOTTOVOCE_KERNELS` chooses a level by name: auto,
avx512 or avx2 (x86-64), neon (64-bit ARM), portable or numpy.
"""

import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final, NamedTuple

from sottovoce.core.errors import ParameterError

# Increment this, here and in src/native/module.c, whenever the meaning of an argument changes.
_INTERFACE: Final = 6


def _library() -> ModuleType | None:
    try:
        found = importlib.import_module("sottovoce._native")
    except ImportError:  # There was no compiler when Sottovoce was installed.
        return None
    # An extension built from other sources could misread today's tables without an error.
    return found if getattr(found, "INTERFACE", None) == _INTERFACE else None


_native = _library()

VARIABLE: Final = "SOTTOVOCE_KERNELS"


class NativeMissingWarning(RuntimeWarning):
    """A warning that the C kernels were not built: results are the same, but slower."""


class Native(NamedTuple):
    """The C extension and the number of its SIMD level, the first argument of its functions."""

    library: ModuleType
    level: int

    @property
    def name(self) -> str:
        """The name of the level: portable, avx2, avx512 or neon."""
        return str(self.library.levels()[self.level])


def levels() -> tuple[str, ...]:
    """Return the kernels that this machine can run, by name, the slowest first.

    They are numpy and, if the C extension is built, portable and those of avx2, avx512 and neon
    whose instructions the processor has.
    """
    return ("numpy", *(_native.levels() if _native else ()))


class _Choice:
    """The level in use: chosen at first use, changed by `using`."""

    def __init__(self) -> None:
        self.made = False
        self.native: Native | None = None

    def make(self, name: str) -> None:
        """Choose a level by name."""
        # Set first, because the warning below may be turned into an error.
        self.native, self.made = None, True
        try:
            self.native = _find(name)
        except ParameterError:
            self.made = False
            raise


_choice = _Choice()


def native() -> Native | None:
    """Return the C extension at the level in use, or None if numpy is used instead.

    The first call chooses the level that the environment variable SOTTOVOCE_KERNELS names, else the
    fastest; it warns with NativeMissingWarning if the level is automatic and the extension missing.

    Raises:
        ParameterError: The variable names a level that this machine cannot run.
    """
    if not _choice.made:
        _choice.make(os.environ.get(VARIABLE, "auto"))
    return _choice.native


@contextmanager
def using(name: str) -> Iterator[None]:
    """Use other kernels inside a `with` block, in every thread; for tests and benchmarks.

    Args:
        name: One of `levels()`, or "auto" for the fastest.

    Raises:
        ParameterError: This machine cannot run kernels of that name.
    """
    before = _choice.native, _choice.made
    _choice.make(name)
    try:
        yield
    finally:
        _choice.native, _choice.made = before


def _find(name: str) -> Native | None:
    if name == "auto" and _native is None:
        warnings.warn(
            "the C kernels of Sottovoce are not built, or belong to another version, so numpy is "
            "used: the results are the same, but slower. To build them, install a C compiler (gcc "
            "or clang) and reinstall Sottovoce (pip install --force-reinstall --no-cache-dir); to "
            f"silence this warning, set {VARIABLE}=numpy",
            NativeMissingWarning,
            stacklevel=3,
        )
        return None
    known = levels()
    if name == "auto":
        name = known[-1]
    if name not in known:
        raise ParameterError(
            f"{VARIABLE} must be a level that this machine can run, got '{name}'; "
            f"choose one of: auto, {', '.join(known)}"
        )
    if name == "numpy" or _native is None:
        return None
    return Native(_native, known.index(name) - 1)
