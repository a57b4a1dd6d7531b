"""From a spec to its inputs: data, clients, model and algorithm; nothing is calibrated yet.

The server and every site make the same inputs from the same resolved spec. Data that every seed
reads alike are kept in memory, so that whoever trains many specs in one process reads and
transforms them once; what is read with chance, such as a test split, belongs to a seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.core import sections
from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import ConfigError
from sottovoce.core.randomness import Randomness, SeededRandomness, SystemRandomness
from sottovoce.core.sections import section_from
from sottovoce.federated.algorithms.algorithm import (
    RECIPES,
    Algorithm,
    AlgorithmSection,
    AlgorithmTraits,
    Facts,
    PublicRows,
    Setting,
)
from sottovoce.learning import datasets, features, models, partition
from sottovoce.learning.clients import Clients, ClientsElsewhere, client_name
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.features import Step, files_of
from sottovoce.learning.task import Task
from sottovoce.runs.groups import Group, groups_of
from sottovoce.runs.sections import OpenSection
from sottovoce.runs.spec import AlgorithmSpec, CsvSpec, MechanismSpec, RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Who has which data, what is trained, and how; `groups` are not calibrated yet."""

    spec: RunSpec
    task: Task
    clients: Clients
    groups: tuple[Group, ...]
    section: AlgorithmSection
    algorithm: Algorithm
    num_classes: int | None  # None for regression
    note: str


def load_inputs(spec: RunSpec, data: Dataset | None = None) -> Inputs:
    """Load data, spread them over clients, create the model and the algorithm.

    Args:
        spec: What is wanted.
        data: Data in place of those that the spec names.
    """
    section = section_of(spec)  # an unknown name, or one that two claim, is refused
    spec = with_every_key(with_section(spec, section))
    schedule = SeededRandomness(spec.seed)
    if data is None:
        data = load_data(spec, schedule)
    data, public = section.hold_out(data, schedule.generator("proxy"))
    clients = clients_of(spec, data, schedule)
    task = task_of(spec, data, schedule)
    spec = adjusted(spec, section, clients)
    groups = groups_of(spec, clients.names)
    algorithm = algorithm_of(
        spec, section, task, clients, groups, randomness=randomness_of(spec), public=public
    )
    return Inputs(
        spec=spec,
        task=task,
        clients=clients,
        groups=groups,
        section=section,
        algorithm=algorithm,
        num_classes=data.num_classes,
        note=data.note,
    )


def randomness_of(spec: RunSpec) -> Randomness:
    """What feeds the mechanisms, the shuffler and the server's own noise."""
    return SeededRandomness(spec.seed) if spec.randomness == "seeded" else SystemRandomness()


T = TypeVar("T", bound=OpenSection)


def with_every_key(spec: RunSpec) -> RunSpec:
    """Return the spec with the defaults of plug-ins written out, for its hash holds them.

    Raises:
        UnknownNameError: Nobody has registered anything of that kind, or it has no such key.
    """
    features = tuple(_written(table, table.opened()) for table in spec.features)
    partition = _written(spec.data.partition, spec.data.partition.opened())
    return spec.model_copy(
        update={
            "data": spec.data.model_copy(update={"partition": partition}),
            "model": _written(spec.model, spec.model.opened()),
            "features": features,
            "sampling": _written(spec.sampling, spec.sampling.opened()),
            "channel": _written(spec.channel, spec.channel.opened()),
        }
    )


def _written(table: T, section: object) -> T:
    """Return the table with every key of its section."""
    return type(table).model_validate({"kind": table.kind, **sections.as_table(section)})


def section_of(spec: RunSpec) -> AlgorithmSection:
    """Return the algorithm's own reading of its table; imports a plug-in that has the name."""
    return section_from(RECIPES, "algorithm", spec.algorithm.kind, spec.algorithm.parameters)


def traits_of(spec: RunSpec) -> AlgorithmTraits:
    """Return what channels and backends may ask of the algorithm."""
    return section_of(spec).traits(Unit(spec.privacy.level))


def facts_of(spec: RunSpec, clients: Clients) -> Facts:
    """Return the public numbers that an algorithm may make its noise from."""
    return Facts(
        unit=Unit(spec.privacy.level),
        clip_norm=spec.privacy.clip_norm,
        epsilon=spec.privacy.epsilon,
        delta=spec.privacy.delta,
        grouped=bool(spec.privacy.groups),
        rounds=spec.rounds,
        clients=len(clients),
        smallest_dataset=min(clients.sizes),
    )


def adjusted(spec: RunSpec, section: AlgorithmSection, clients: Clients) -> RunSpec:
    """Return the spec with the mechanism's parameters that the algorithm prescribes."""
    kind, given = spec.mechanism.kind, spec.mechanism.parameters
    wanted = section.adjust(kind, given, facts_of(spec, clients))
    if wanted == given:
        return spec
    mechanism = MechanismSpec.model_validate({"kind": kind, **wanted})
    return spec.model_copy(update={"mechanism": mechanism})


def algorithm_of(
    spec: RunSpec,
    section: AlgorithmSection,
    task: Task,
    clients: Clients,
    groups: Sequence[Group],
    *,
    randomness: Randomness,
    public: PublicRows | None,
) -> Algorithm:
    """Return what a section makes of its keys and of the rest of the spec."""
    setting = Setting(
        facts=facts_of(spec, clients),
        record_sampling_rate=spec.privacy.record_sampling_rate,
        exact_sums=spec.runtime.messages != "none",
        mechanism=spec.mechanism.parameters,
        groups=groups,
        task=task,
        clients=clients,
        randomness=randomness,
        schedule=SeededRandomness(spec.seed),
        public=public,
    )
    algorithm, kind = section.build(setting), spec.algorithm.kind
    if algorithm.unit is not setting.unit:
        raise ConfigError(
            f"algorithm '{kind}' protects each {algorithm.unit}; set privacy.level = "
            f"'{algorithm.unit}', or use another algorithm"
        )
    if algorithm.record_sampling_rate != setting.record_sampling_rate:
        raise ConfigError(
            f"algorithm '{kind}' does not sample records; drop 'privacy.record_sampling_rate', or "
            "use another algorithm"
        )
    return algorithm


def with_section(spec: RunSpec, section: AlgorithmSection) -> RunSpec:
    """Return the spec with every key of a section written out, for its hash holds them."""
    every = {"kind": spec.algorithm.kind, **section.written()}
    return spec.model_copy(update={"algorithm": AlgorithmSpec.model_validate(every)})


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
            steps=tuple(table.opened() for table in spec.features),
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


def load_data(spec: RunSpec, schedule: SeededRandomness) -> Dataset:
    """The data as the spec wants them: a part of them, with another test set, as features."""
    wanted = Wanted.by(spec)
    data = kept(wanted) or prepared(wanted, schedule.generator("test split"))
    if spec.data.validation_fraction:
        data = datasets.with_validation(
            data, spec.data.validation_fraction, schedule.generator("validation")
        )
    return data


def clients_of(spec: RunSpec, data: Dataset, schedule: SeededRandomness) -> Clients:
    if spec.data.sites:
        return ClientsElsewhere(spec.data.sites)
    shares = partition.split(
        spec.data.partition.opened(),
        data.train_labels,
        len(spec.data.names) or spec.data.clients,
        schedule.generator("partition"),
        owners=data.train_owners,
    )
    values: NDArray[Any] | torch.Tensor = data.train_features
    if device_of(spec) == "cuda":  # where there is room for all of them, once
        values = torch.from_numpy(np.array(values)).to("cuda")
    return Clients(values, data.train_labels, shares, names=_names(spec, len(shares)))


def digest_of(spec: RunSpec, clients: Clients, task: Task) -> str:
    """What tells whether clients have the same data, and the test is the same.

    Attacks take test rows for what no model saw: others in their place could hide a leak.
    """
    raw = not spec.features  # what is computed may differ in its last bits
    return f"{clients.digest(features=raw)} {task.test_digest(features=raw)}"


def _names(spec: RunSpec, num_clients: int) -> list[str]:
    """What the spec calls its clients."""
    names = spec.data.names
    if names and len(names) != num_clients:
        raise ConfigError(
            f"'data.names' has {len(names)} names, but the data make {num_clients} clients"
        )
    return list(names) or [client_name(number) for number in range(num_clients)]


def task_of(spec: RunSpec, data: Dataset, schedule: SeededRandomness) -> Task:
    module = models.create(
        spec.model.opened(),
        data.input_shape,
        data.num_outputs,
        schedule.generator("initial model"),
    )
    return Task(
        module,
        data.test_features,
        torch.from_numpy(data.test_labels),
        objective="regression" if data.num_classes is None else "classification",
        device=device_of(spec),
    )
