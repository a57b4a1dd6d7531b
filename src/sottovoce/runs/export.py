"""The trained model as a safetensors file, with its guarantee in the metadata."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.core import files, parameter_rules
from sottovoce.core.display import show_epsilon
from sottovoce.core.errors import OutputError
from sottovoce.runs.folder import RunFolder


def export_model(folder: Path, destination: Path) -> dict[str, object]:
    """Write the model of the newest checkpoint; returns what was written."""
    from safetensors.numpy import save

    if destination.suffix != ".safetensors":
        raise OutputError(f"{destination} must end in .safetensors, so that nothing else is lost")
    run_folder = RunFolder(folder)
    header, progress = run_folder.header(), run_folder.load_checkpoint()
    if progress is None:
        raise OutputError(f"{folder} has no checkpoint yet; let the run reach its first one")
    _check(folder, header, progress.model.size)
    delta = header["spec"]["privacy"]["delta"]
    with run_folder.ledger() as ledger:
        ledger.check_unaltered()
        spent = ledger.largest_spent(delta)
    tensors, start = {}, 0
    for name, shape in header["layout"]:
        size = math.prod(shape)
        flat = progress.model[start : start + size]
        if not np.all(np.abs(flat) <= np.finfo(np.float32).max):
            raise OutputError(
                f"{folder}: tensor '{name}' of the newest checkpoint has numbers that no float32 "
                "holds, so the training has diverged; train again with a smaller learning rate"
            )
        tensors[name] = np.ascontiguousarray(flat.reshape(shape).astype(np.float32))
        start += size
    metadata = {
        "spec_hash": header["spec_hash"],
        "rounds": str(progress.rounds_done),
        "epsilon": show_epsilon(spent.epsilon) if spent else "0",
        "delta": repr(delta),
        "adjacency": header["spec"]["privacy"]["adjacency"],
        "guarantee": header["guarantee"],
        "randomness": header["randomness"],
        "sampling_grade": header["sampling_grade"],
    }
    files.write_atomic(destination, save(tensors, metadata=metadata))
    return {"file": str(destination), "tensors": len(tensors), "parameters": start, **metadata}


_WORDS = ("spec_hash", "guarantee", "randomness", "sampling_grade")


def _check(folder: Path, header: Mapping[str, Any], size: int) -> None:
    """Refuse a run.json that does not describe its checkpoint."""
    try:
        privacy = header["spec"]["privacy"]
        parameter_rules.delta(privacy["delta"])
        words = [*(header[name] for name in _WORDS), privacy["adjacency"]]
        shapes = [(name, tuple(shape)) for name, shape in header["layout"]]
        sizes = [
            parameter_rules.integer("size", part, low=0, high=size)
            for _, shape in shapes
            for part in shape
        ]
        names = [name for name, _ in shapes]
        holds = (
            len(sizes) == sum(len(shape) for _, shape in shapes)
            and all(isinstance(one, str) and one.isprintable() for one in [*words, *names])
            and len(set(names)) == len(names)
            and sum(math.prod(shape) for _, shape in shapes) == size
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        holds = False
    if not holds:
        raise OutputError(f"{folder / 'run.json'} does not describe its checkpoint; restore it")
