"""Where a spec's own files are: beside the spec, or else where the command runs."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.core.errors import DataError
from sottovoce.runs.loading import load, parse_assignments
from sottovoce.runs.spec import RunSpec

_OWN = ("csv:", "npz:", "hf:")  # data sets that are named by a path


def load_for_run(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    everywhere: bool = False,
    begun: Mapping[str, Any] | None = None,
) -> RunSpec:
    """The spec in a file, with the path of its data such that the run finds them.

    A relative path that the file has is seen from the file's folder, and from here if nothing is
    there; one that `--set` gives, from here. `everywhere`: the run's process works in another
    folder than this one, so that the path must not be relative. `begun` is the header of a run that
    goes on: a path that was seen from where the command ran stays as it was, and so does its hash.
    """
    spec = load(path, overrides)
    given_here = "data.dataset" in parse_assignments(overrides, "--set")
    folders = [Path()] if given_here else [path.parent, Path()]
    return with_data_from(spec, folders, everywhere=everywhere, begun=begun)


def with_data_from(
    spec: RunSpec,
    folders: Sequence[Path],
    *,
    everywhere: bool = False,
    begun: Mapping[str, Any] | None = None,
) -> RunSpec:
    """The spec with the path of its data as the first folder has them."""
    written = spec.data.dataset
    kind, colon, text = written.partition(":")
    relative = Path(text).expanduser()
    if kind + colon not in _OWN or not text or relative.is_absolute():
        return spec
    if begun is not None and _dataset_of(begun) == written:
        return spec
    for folder in folders:
        found = folder / relative
        if not found.exists():
            continue
        if not everywhere and relative.exists() and found.samefile(relative):
            return spec
        data = spec.data.model_copy(update={"dataset": f"{kind}:{os.path.abspath(found)}"})
        return spec.model_copy(update={"data": data})
    places = " or in ".join(dict.fromkeys(os.path.abspath(folder) for folder in folders))
    raise DataError(f"there is no {text} in {places}; check the path in '{written}'")


def _dataset_of(header: Mapping[str, Any]) -> object:
    """What a run's header names, damaged or not: it is checked when the run goes on."""
    spec = header.get("spec")
    data = spec.get("data") if isinstance(spec, dict) else None
    return data.get("dataset") if isinstance(data, dict) else None
