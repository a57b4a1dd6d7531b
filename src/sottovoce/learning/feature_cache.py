"""Features on disk: computed once, mapped into memory afterwards, and never half written.

An entry is `KEY.npy` and, written after it, `KEY.json` with the size and a digest of it. An array
without a fitting description is made again. Features are as private as the data that they were
made of, so the files are the owner's alone.
"""

import contextlib
import hashlib
import json
import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import files
from sottovoce.core.errors import OutputError

Array = NDArray[Any]

# Raised whenever a step's output changes for the same parameters: old entries are then not found.
CODE_VERSION = 1
_SEEN_BLOCKS = 64
_BLOCK_BYTES = 4096


def digest_of(array: Array) -> str:
    """A digest of an array's type, shape and values."""
    digest = hashlib.blake2b(f"{array.dtype.str}{array.shape}".encode(), digest_size=16)
    rows = max(1, (1 << 24) // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        digest.update(np.ascontiguousarray(array[start : start + rows]).data)
    return digest.hexdigest()


def key_of(*parts: Any) -> str:
    """A digest of JSON values and of the version of this code."""
    text = json.dumps([CODE_VERSION, *parts], sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def let_go(array: Array) -> None:
    """Count pages of a mapped file no more as this process's memory; other arrays are left alone.

    The system keeps in memory what it has room for, and reads the rest again.
    """
    mapped = getattr(array, "_mmap", None)
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


class FeatureCache:
    """Arrays by key, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with files.explained("create", folder):
            folder.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)

    def array(
        self,
        key: str,
        shape: tuple[int, ...],
        dtype: type[np.float16] | type[np.float32],
        fill: Callable[[Array], None],
    ) -> Array:
        """The array of that key, mapped read-only; `fill` writes it where it is not there whole."""
        path = self._folder / f"{key}.npy"
        if not self._is_whole(path, shape, np.dtype(dtype)):
            self._write(path, shape, np.dtype(dtype), fill)
        with files.explained("read", path):
            mapped: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        return mapped

    def _is_whole(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
        try:
            return bool(files.read_json(_description_of(path)) == _describe(path, shape, dtype))
        except (OSError, OutputError):  # absent or unreadable: made again, or explained then
            return False

    def _write(
        self,
        path: Path,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        fill: Callable[[Array], None],
    ) -> None:
        with files.explained("write", path):
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            os.close(handle)
            temporary = Path(name)
            try:
                mapped = np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
                fill(mapped)
                mapped.flush()
                description = _describe(temporary, shape, dtype)
                _description_of(path).unlink(missing_ok=True)  # it spoke of another file
                os.replace(temporary, path)
                files.write_json(_description_of(path), description, mode=files.PRIVATE)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise


def _description_of(path: Path) -> Path:
    return path.with_suffix(".json")


def _describe(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Shape, type, size, and a digest of blocks spread over the file, the header among them.

    Reading all of it would take as long as making it; blocks notice what happens to files: a cut, a
    hole, another file's content.
    """
    size = path.stat().st_size
    digest = hashlib.blake2b(digest_size=16)
    last = max(0, size - _BLOCK_BYTES)
    with path.open("rb") as file:
        for number in range(_SEEN_BLOCKS):
            file.seek(last * number // (_SEEN_BLOCKS - 1))
            digest.update(file.read(_BLOCK_BYTES))
    return {"bytes": size, "digest": digest.hexdigest(), "dtype": dtype.str, "shape": list(shape)}
