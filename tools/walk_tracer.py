"""Run a command of Sottovoce under a tracer: which files do values pass? Started by tools/walks.py.

    python tools/walk_tracer.py (update | changed | spec) SOURCES FOUND.json ARGUMENTS ...

`update` writes, for each function that is called during the first round, a digest of every array
and byte string among its arguments. `changed` does the same after it has scaled the clients' data
in place: functions whose digests differ are those that the update's values reach. `spec` writes
the files whose functions receive the spec, or a part of it, before the first round.
"""

import contextlib
import dataclasses
import hashlib
import json
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np

_DEEPEST = 4  # of containers and objects in others
_MOST_ITEMS = 64  # of one container
_MOST_BYTES = 1 << 16  # of one array
_ROUND = "Training.step"
_PLAIN = (type(None), bool, int, type, FunctionType, ModuleType)


def _parts(value: object) -> Iterator[object]:
    """Yield what a container or an object of the package holds."""
    if isinstance(value, dict):
        yield from list(value.values())[:_MOST_ITEMS]
    elif isinstance(value, tuple | list):
        yield from value[:_MOST_ITEMS]
    elif type(value).__module__.startswith("sottovoce"):
        names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        if dataclasses.is_dataclass(value):
            names += [field.name for field in dataclasses.fields(value)]
        names += list(getattr(value, "__dict__", {}))
        for name in dict.fromkeys(names):
            with contextlib.suppress(AttributeError):
                yield object.__getattribute__(value, name)


def _arrays(value: object, depth: int = 0) -> Iterator[np.ndarray[Any, Any] | bytes]:
    """Yield the arrays, tensors and byte strings that a value holds."""
    if isinstance(value, np.ndarray | bytes | bytearray | memoryview):
        yield value if isinstance(value, np.ndarray) else bytes(value)
    elif type(value).__module__ == "torch" and hasattr(value, "detach"):
        with contextlib.suppress(RuntimeError, TypeError):  # one that is being transformed
            yield value.detach().cpu().numpy()
    elif depth < _DEEPEST:
        for part in _parts(value):
            yield from _arrays(part, depth + 1)


def _digest(array: np.ndarray[Any, Any] | bytes) -> str:
    if isinstance(array, np.ndarray):
        if array.dtype == object:
            return ""
        array = np.ascontiguousarray(array.reshape(-1)[:_MOST_BYTES]).tobytes()
    return hashlib.blake2b(array[:_MOST_BYTES], digest_size=8).hexdigest()


def _given(frame: FrameType) -> list[object]:
    """Return the arguments of a call."""
    code = frame.f_code
    flags = bool(code.co_flags & 4) + bool(code.co_flags & 8)  # *args, **kwargs
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + flags]
    return [frame.f_locals[name] for name in names if name in frame.f_locals]


def _scale(value: object) -> None:
    """Change every number of the clients' data a little, in place."""
    for array in _arrays(value):
        if isinstance(array, np.ndarray) and array.dtype.kind == "f" and array.flags.writeable:
            array *= 0.75


class UpdateTracer:
    """Digests of arguments, by file and function, while the first round runs."""

    def __init__(self, sources: str, *, changes: bool) -> None:
        self._sources, self._changes = sources, changes
        self._round: FrameType | None = None
        self._seen: dict[str, set[str]] = defaultdict(set)

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "return" and frame is self._round:
            self._round = None
        if event != "call" or not code.co_filename.startswith(self._sources):
            return
        if code.co_qualname == _ROUND:
            self._round = frame
            if self._changes:
                _scale(frame.f_locals["self"].clients)
        if self._round is not None:
            key = f"{code.co_filename[len(self._sources) :]}:{code.co_qualname}"
            found = {_digest(array) for value in _given(frame) for array in _arrays(value)}
            self._seen[key] |= found

    def found(self) -> dict[str, list[str]]:
        return {key: sorted(digests) for key, digests in self._seen.items()}


class SpecTracer:
    """Files whose functions receive the spec, or something made of it, before the first round.

    The spec is its path, the table that is read, every pydantic section, and text and fractions in
    these. Made of it is what a function that receives it returns or constructs, and so on.
    """

    def __init__(self, sources: str, path: str) -> None:
        self._sources, self._path = sources, path
        self._ended = False
        # Kept alive so that no other object gets their addresses.
        self._kept: dict[int, object] = {}
        self._inside: dict[int, FrameType] = {}
        self._files: dict[str, set[str]] = defaultdict(set)

    def __call__(self, frame: FrameType, event: str, result: object) -> None:
        if self._ended or event not in ("call", "return"):
            return
        if event == "return":
            if self._inside.pop(id(frame), None) is not None:
                self._keep(result)
            return
        code = frame.f_code
        if code.co_qualname == _ROUND:
            self._ended = True
            return
        ours = code.co_filename.startswith(self._sources)
        given = _given(frame) if ours or code.co_filename == "<string>" else []
        makes = code.co_name in ("__init__", "__post_init__") and given and _is_ours(given[0])
        if makes and self._is_inside(frame):
            self._kept[id(given[0])] = given[0]
        if ours and any(self._is_part(value) for value in given):
            self._inside[id(frame)] = frame
            self._files[code.co_filename[len(self._sources) :]].add(code.co_qualname)

    def _is_inside(self, frame: FrameType) -> bool:
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(self._sources):
            caller = caller.f_back
        return caller is not None and id(caller) in self._inside

    def _is_part(self, value: object, depth: int = 0) -> bool:
        if id(value) in self._kept:
            return True
        if isinstance(value, _PLAIN):
            return False
        if isinstance(value, str | Path) and str(value) == self._path:
            return True
        if hasattr(type(value), "model_fields") and _is_ours(value):
            self._keep(value)
            return True
        if depth < 2 and isinstance(value, dict | list | tuple):
            return any(self._is_part(part, depth + 1) for part in _parts(value))
        return False

    def _keep(self, value: object, depth: int = 0) -> None:
        """Remember a value that was made of the spec, and the values in it."""
        if isinstance(value, _PLAIN) or id(value) in self._kept:
            return
        if isinstance(value, str) and len(value) < 3:
            return
        if isinstance(value, float) and value.is_integer():
            return
        self._kept[id(value)] = value
        if depth < 2 and isinstance(value, dict | list | tuple):
            for part in _parts(value):
                self._keep(part, depth + 1)
        if hasattr(type(value), "model_fields") and _is_ours(value):
            for part in getattr(value, "__dict__", {}).values():
                self._keep(part, depth)

    def found(self) -> dict[str, list[str]]:
        return {file: sorted(names) for file, names in self._files.items()}


def _is_ours(value: object) -> bool:
    return type(value).__module__.startswith("sottovoce")


def main(what: str, sources: str, out: str, *arguments: str) -> None:
    tracer: UpdateTracer | SpecTracer
    if what == "spec":
        tracer = SpecTracer(sources, next(one for one in arguments if one.endswith(".toml")))
    else:
        tracer = UpdateTracer(sources, changes=what == "changed")
    from sottovoce.cli.main import main as command

    sys.argv = ["sottovoce", *arguments]
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        command()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
    Path(out).write_text(json.dumps(tracer.found()), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
