"""Files that are whole or absent, and errors that say what to do."""

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sottovoce.errors import OutputError


@contextlib.contextmanager
def explained(action: str, path: Path) -> Iterator[None]:
    """Turn an operating system's refusal into one clear sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"cannot {action} {path}: {reason}; check permissions and free space, "
            "or choose another place"
        ) from error


def write_atomic(path: Path, content: bytes) -> None:
    """Write a whole file or nothing: a temporary file, synced, then renamed."""
    with explained("write", path):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
            _sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; Windows has no way to, and needs none."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        with explained("read", path):
            return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # neither UTF-8 nor JSON
        raise OutputError(f"{path} is damaged: {error}; restore it or start a new run") from None


def finite_or_none(value: float) -> float | None:
    """JSON has no infinity: no guarantee is null."""
    return value if math.isfinite(value) else None
