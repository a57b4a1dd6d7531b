"""Feature steps between a data set and a model: register, pipeline and cache.

    @register_feature("center", summary="minus a public constant")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Center:
        constant: float = 0.5

        def prepare(self, setting: FeatureContext) -> Transform:
            return lambda _part, features: Features.of(features.values - self.constant)

A step must transform each sample on its own, and may learn from public data only. Then it spends no
privacy budget.

A step's fields are the keys that are allowed next to its `kind` in [[features]]; `__post_init__`
checks them (see `sottovoce.core.sections`). List its module in `FEATURES` below, or under the entry
point group `sottovoce.features` (see `sottovoce.core.registry`); nothing else changes. Import torch
inside functions, not at the top of the file: specs are also read where torch is not installed.

Results may be cached on disk under a key that depends on everything they were computed from. They
are computed once, then mapped into memory, and never half written. An entry is `KEY.npy` and,
written after it, `KEY.json` with its size and a digest. An array without a matching description is
computed again. Features are as private as the data they were computed from, so only the owner can
read the files.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import files
from sottovoce.core.errors import OutputError
from sottovoce.core.plugin_returns import Contract, ReturnCondition, enforce_contract
from sottovoce.core.registry import Register
from sottovoce.core.sections import RegisteredSection, as_table, section_from
from sottovoce.learning.datasets import Dataset

Array = NDArray[Any]

# Increase it whenever a step's output changes for the same parameters: old entries are then unused.
CODE_VERSION = 1
_SEEN_BLOCKS = 64
_BLOCK_BYTES = 4096


def digest_of(array: Array) -> str:
    """Return 32 hex digits that identify an array by its type, shape and values."""
    digest = hashlib.blake2b(f"{array.dtype.str}{array.shape}".encode(), digest_size=16)
    rows = max(1, (1 << 24) // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        digest.update(np.ascontiguousarray(array[start : start + rows]).data)
    return digest.hexdigest()


def key_of(*parts: Any) -> str:
    """Return a key of the cache: 32 hex digits made of JSON values and this code's version."""
    text = json.dumps([CODE_VERSION, *parts], sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def release_pages(array: Array) -> None:
    """Tell the system that this process no longer needs the pages of a memory-mapped array.

    The array stays usable: its pages are read again when they are needed. Other arrays are left
    alone.
    """
    mapped = getattr(array, "_mmap", None)
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


class FeatureCache:
    """A folder on disk that keeps computed arrays, one `.npy` file for each key.

    Args:
        folder: The folder, which is created if it does not exist. Only its owner can read it then.

    Raises:
        OutputError: The folder cannot be created.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with files.explain_os_errors("create", folder):
            folder.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)

    def array(
        self,
        key: str,
        shape: tuple[int, ...],
        dtype: type[np.float16] | type[np.float32],
        fill: Callable[[Array], None],
    ) -> Array:
        """Return the array of a key, mapped from its file read-only.

        Args:
            key: The key, as `key_of` makes it from everything that the array depends on.
            shape: The shape of the array.
            dtype: The type of its values.
            fill: Is called to write the values into an empty array, if the file is missing, damaged
                (64 blocks spread over it are compared) or has another shape or type. The file
                appears only when it is complete.

        Raises:
            OutputError: The file cannot be read or written.
        """
        path = self._folder / f"{key}.npy"
        if not self._is_whole(path, shape, np.dtype(dtype)):
            self._write(path, shape, np.dtype(dtype), fill)
        with files.explain_os_errors("read", path):
            mapped: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        return mapped

    def _is_whole(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
        try:
            return bool(files.read_json(_description_of(path)) == _describe(path, shape, dtype))
        except (OSError, OutputError):  # The write that follows reports what is wrong, if anything.
            return False

    def _write(
        self,
        path: Path,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        fill: Callable[[Array], None],
    ) -> None:
        with files.explain_os_errors("write", path):
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            os.close(handle)
            temporary = Path(name)
            try:
                mapped = np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
                fill(mapped)
                mapped.flush()
                description = _describe(temporary, shape, dtype)
                _description_of(path).unlink(missing_ok=True)  # It described the old file.
                os.replace(temporary, path)
                files.write_json(_description_of(path), description, mode=files.PRIVATE)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise


def _description_of(path: Path) -> Path:
    return path.with_suffix(".json")


def _describe(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return shape, type and size, and a digest of blocks spread over the file, header included.

    Reading the whole file would take as long as computing it. The blocks detect what commonly
    happens to files: truncation, holes, or the content of another file.
    """
    size = path.stat().st_size
    digest = hashlib.blake2b(digest_size=16)
    last = max(0, size - _BLOCK_BYTES)
    with path.open("rb") as file:
        for number in range(_SEEN_BLOCKS):
            file.seek(last * number // (_SEEN_BLOCKS - 1))
            digest.update(file.read(_BLOCK_BYTES))
    return {"bytes": size, "digest": digest.hexdigest(), "dtype": dtype.str, "shape": list(shape)}


Part = Literal["train", "test", "public"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Features:
    """An array of features with a digest that identifies it.

    Attributes:
        values: One row for each sample.
        digest: A digest of the values, or of what they were computed from.
    """

    values: Array
    digest: str

    @classmethod
    def of(cls, values: Array) -> "Features":
        """Return values with the digest of their bytes.

        Args:
            values: One row for each sample.

        Returns:
            The features.
        """
        return cls(values=values, digest=digest_of(values))


Transform = Callable[[Part, Features], Features]
Report = Callable[[Part, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureContext:
    """What a step is given before it sees any sample.

    Attributes:
        number: The position of the step in the spec's list of steps, from 0.
        dataset: The data before the first step. It is private: check against it, but do not learn
            from it.
        cache: The cache for arrays on disk.
        device: The device on which torch computes.
        earlier: What identifies the earlier steps in keys of the cache: for each step the name of
            its class and its keys.
        apply_earlier: A function that applies the earlier steps to public samples.
        report: A function to call with the name of a part, the number of its samples that are done,
            and their total number.
    """

    number: int
    dataset: Dataset
    cache: FeatureCache
    device: str
    earlier: tuple[list[Any], ...]
    apply_earlier: Callable[[Features], Features]
    report: Report


class FeatureStep(Protocol):
    """The keys of a [[features]] table, and what the step does.

    A step that reads files which its keys name must have a method `files() -> Sequence[str]` that
    returns them: a site reads no file that a server chooses, and what was read from a file is not
    kept in memory from one run to the next.
    """

    def prepare(self, setting: FeatureContext) -> Transform:
        """Check what can be checked, and return the function that transforms a part of the data.

        Args:
            setting: What the step may use.

        Returns:
            A function from the name of a part ("train", "test" or "public") and its features to new
            features, with a row for each sample.
        """


S = TypeVar("S", bound=type)

FEATURES: Register[RegisteredSection[Any]] = Register(
    "feature",
    places={
        "flatten": "sottovoce.learning.features",
    },
)


def _is_files(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


_CONTRACT = Contract(
    needs=("prepare",),
    returns={
        "prepare": ReturnCondition(
            what="a function of a part's name and its features",
            fits=callable,
            calls=ReturnCondition(
                what="sottovoce.learning.Features, as Features.of(array) makes them",
                fits=lambda value: isinstance(value, Features) and hasattr(value.values, "dtype"),
            ),
        ),
        "files": ReturnCondition(what="a list of paths, as texts", fits=_is_files),
    },
)


def register_feature(kind: str, *, summary: str) -> Callable[[S], S]:
    """Return a class decorator that registers a step.

    The class must be a frozen dataclass with a method `prepare`.

    Args:
        kind: The name of the step, as in `kind` of a [[features]] table.
        summary: One line about what the step does, for lists.

    Returns:
        The decorator.

    Raises:
        PluginError: When the decorator is applied: the class is no dataclass or lacks `prepare`, or
            another module has registered the name.
    """

    def enter(section: S) -> S:
        enforce_contract(FEATURES, kind, section, _CONTRACT)
        registered = RegisteredSection(section=section, summary=summary)
        FEATURES.enter(kind, registered, module=section.__module__)
        return section

    return enter


def step_of(kind: str, given: dict[str, Any]) -> FeatureStep:
    """Return the step of a [[features]] table; an unknown kind or key raises UnknownNameError.

    Args:
        kind: The value of the key `kind`. If a plug-in registers it, the plug-in is imported.
        given: All other keys of the table, with their values.
    """
    step: FeatureStep = section_from(FEATURES, "features", kind, given)
    return step


def files_of(step: FeatureStep) -> tuple[str, ...]:
    """Return the paths of the files that a step's keys name; none if it has no method `files`."""
    named = getattr(step, "files", None)
    return tuple(named()) if named is not None else ()


@register_feature("flatten", summary="one row of values a sample")
@dataclass(frozen=True, slots=True, kw_only=True)
class Flatten:
    """A step that flattens each sample, such as an image, into one row of values."""

    def prepare(self, setting: FeatureContext) -> Transform:
        del setting
        return _flatten


def _flatten(_part: Part, features: Features) -> Features:
    values = features.values
    rows = values.reshape(len(values), math.prod(values.shape[1:]))
    return dataclasses.replace(features, values=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgress:
    """How many samples of one part of the data a step has processed."""

    step: FeatureStep
    part: Part
    samples_done: int
    samples_total: int


OnStep = Callable[[StepProgress], None]


def _ignore_progress(_: StepProgress) -> None:
    """Ignore the progress."""


def apply(
    steps: Sequence[FeatureStep],
    dataset: Dataset,
    cache_dir: Path,
    on_step: OnStep = _ignore_progress,
    *,
    device: str = "cpu",
) -> Dataset:
    """Return the data set with its training and test features transformed by the steps.

    Args:
        steps: The steps, in the order in which they are applied; without any, the data set itself
            is returned.
        dataset: The data, which stay unchanged.
        cache_dir: The folder of cached results, which is created. What it has is not computed
            again.
        on_step: Is called with the progress of what is computed.
        device: The device on which torch computes.

    Raises:
        OutputError: The folder cannot be created, read or written.
    """
    if not steps:
        return dataset
    cache = FeatureCache(cache_dir)
    transforms: list[Transform] = []

    def through(part: Part, features: Features, num_steps: int) -> Features:
        for transform in transforms[:num_steps]:
            features = transform(part, features)
        return features

    for number, step in enumerate(steps):
        setting = FeatureContext(
            number=number,
            dataset=dataset,
            cache=cache,
            device=device,
            earlier=tuple([type(one).__name__, step_identity(one)] for one in steps[:number]),
            apply_earlier=lambda public, end=number: through("public", public, end),  # type: ignore[misc]
            report=_reporter(step, on_step),
        )
        transforms.append(step.prepare(setting))
    train = through("train", Features.of(dataset.train_features), len(steps))
    test = through("test", Features.of(dataset.test_features), len(steps))
    return dataclasses.replace(dataset, train_features=train.values, test_features=test.values)


def _reporter(step: FeatureStep, on_step: OnStep) -> Report:
    def report(part: Part, done: int, total: int) -> None:
        on_step(StepProgress(step=step, part=part, samples_done=done, samples_total=total))

    return report


def step_identity(step: FeatureStep) -> dict[str, Any]:
    """Return what identifies a step in keys of the cache: its keys and their values."""
    return as_table(step)
