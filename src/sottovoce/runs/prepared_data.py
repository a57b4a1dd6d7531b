"""Data as a spec wants them, kept in memory where every seed has the same.

Whoever trains many specs in one process reads and transforms their data once. What is read with
chance, such as a test split, belongs to a seed and is not kept.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from sottovoce.core.errors import ConfigError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.learning import datasets, features
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.features import Step, files_of
from sottovoce.runs.data_spec import CsvSpec
from sottovoce.runs.feature_steps import steps_of
from sottovoce.runs.spec import RunSpec

# A file by its path, and what changes when it does: nanoseconds of its last change, bytes.
Stamp = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """All that the prepared data follow from, but for chance."""

    dataset: str
    csv: CsvSpec | None
    num_owners: int | None
    num_train: int | None
    num_test: int | None
    steps: tuple[Step, ...]
    device: str
    folder: Path

    @classmethod
    def by(cls, spec: RunSpec) -> "Wanted":
        return cls(
            dataset=spec.data.dataset,
            csv=spec.data.csv,
            num_owners=spec.data.num_owners,
            num_train=spec.data.num_train,
            num_test=spec.data.num_test,
            steps=steps_of(spec.features),
            device=device_of(spec),
            folder=datasets.data_folder(None),
        )


def prepared(wanted: Wanted, generator: np.random.Generator) -> Dataset:
    """Read the data, take the wanted part of them and turn it into features."""
    return _shaped(wanted, _loaded(wanted, generator))


def _loaded(wanted: Wanted, generator: np.random.Generator) -> Dataset:
    csv = wanted.csv.options() if wanted.csv else None
    return datasets.load(wanted.dataset, generator, data_dir=wanted.folder, download=True, csv=csv)


def _shaped(wanted: Wanted, data: Dataset) -> Dataset:
    # The same part whatever the seed, so that its features are made once.
    chance = SeededRandomness(0)
    if wanted.num_owners:
        data = datasets.some_owners(data, wanted.num_owners, chance.generator("owners"))
    if wanted.num_train or wanted.num_test:
        generator = chance.generator("subset")
        data = datasets.subset(data, wanted.num_train, wanted.num_test, generator)
    folder = wanted.folder / "features"
    return features.apply(wanted.steps, data, folder, device=wanted.device)


def kept(wanted: Wanted) -> Dataset | None:
    """The prepared data, kept from the last time; None where they are another seed's or a file's.

    Only files of the data folder are known well enough to notice that they have changed.
    """
    files = datasets.where_found(wanted.dataset, wanted.folder)
    if not files or any(files_of(step) for step in wanted.steps):
        return None
    # The folder itself is stamped for what may lie beside the files, such as a list of writers.
    return _without_chance(wanted, tuple(_stamp(path) for path in [wanted.folder, *files]))


def stamps_of(dataset: str) -> tuple[Stamp, ...]:
    """The files that a dataset is read from as they are now, a user's own too; absent ones not."""
    own = Path(dataset.partition(":")[2]).expanduser()
    files = datasets.where_found(dataset) or ([own] if own.is_file() else [])
    return tuple(_stamp(path) for path in files)


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return str(path), status.st_mtime_ns, status.st_size


@lru_cache(maxsize=1)
def _without_chance(wanted: Wanted, stamps: tuple[Stamp, ...]) -> Dataset | None:  # noqa: ARG001
    """The prepared data, if reading them draws nothing at random."""
    generator = np.random.default_rng(0)
    before = generator.bit_generator.state
    data = _loaded(wanted, generator)
    return _shaped(wanted, data) if generator.bit_generator.state == before else None


def device_of(spec: RunSpec) -> str:
    """Where the spec trains."""
    wanted = spec.runtime.device
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise ConfigError(
            "runtime.device = 'cuda', but torch sees no GPU here; use 'cpu' or 'auto'"
        )
    return "cuda"
