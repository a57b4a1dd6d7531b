"""The trained model as a safetensors file, with its guarantee in the metadata."""

import math
from pathlib import Path

import numpy as np

from sottovoce import files
from sottovoce.errors import OutputError
from sottovoce.privacy.accounting import show_epsilon
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
    delta = header["spec"]["privacy"]["delta"]
    with run_folder.ledger(must_exist=True) as ledger:
        spent = ledger.largest_spent(delta)
    tensors, start = {}, 0
    for name, shape in header["layout"]:
        size = math.prod(shape)
        flat = progress.model[start : start + size]
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
