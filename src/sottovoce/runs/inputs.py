"""Build the inputs of a run from its spec: data, clients, model and algorithm, not yet calibrated.

The server and every site build the same inputs from the same resolved spec. Data that do not depend
on the seed are cached in memory, so that a process that trains many specs reads and transforms them
once; what is drawn at random, such as a test split, belongs to a seed.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import SteppedBall
from sottovoce.core.errors import ConfigError, DataError, ParameterError
from sottovoce.core.randomness import Randomness, SeededRandomness, SystemRandomness
from sottovoce.core.sections import section_from
from sottovoce.federated.algorithms.algorithm import (
    ALGORITHMS,
    Algorithm,
    AlgorithmSection,
    AlgorithmSetting,
    AlgorithmTraits,
    Facts,
    PublicRows,
)
from sottovoce.learning import datasets, features, in_memory, models, partition
from sottovoce.learning.clients import Clients, RemoteClients, client_name
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.features import FeatureStep, files_of
from sottovoce.learning.models.modules import select_trainable
from sottovoce.learning.objectives import LOSSES, MEMORY, Objective, is_function_path, kind_of
from sottovoce.learning.task import Task
from sottovoce.runs.groups import Group, groups_of
from sottovoce.runs.spec import AlgorithmSpec, CsvSpec, MechanismSpec, RunSpec
from sottovoce.runs.statistics import (
    check_normalizes,
    check_statistics,
    normalizes,
    sends_statistics,
    with_statistics,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The clients, the model and the algorithm of a run, built from its spec.

    Attributes:
        spec: The spec with all defaults filled in, except those of mechanisms, which `resolve`
            chooses and calibrates later.
        task: The model, the loss and the test data.
        clients: The clients and their data. With `data.sites` the data are elsewhere: there are
            only names and sizes, and reading a client raises DataError.
        groups: The groups of clients, whose noise is not yet calibrated to their budgets.
        section: The algorithm's own keys, those of the table [algorithm].
        algorithm: The algorithm, built from these keys.
        num_classes: The number of classes; None for regression.
        note: A remark about the data for the user; empty if there is none.
    """

    spec: RunSpec
    task: Task
    clients: Clients
    groups: tuple[Group, ...]
    section: AlgorithmSection
    algorithm: Algorithm
    num_classes: int | None  # None for regression
    note: str


def load_inputs(spec: RunSpec, data: Dataset | None = None) -> Inputs:
    """Load the data, distribute them over clients, and create the model and the algorithm.

    Args:
        spec: What to run.
        data: Data that replace those of the spec; None to load these, downloading them if needed.

    Returns:
        The inputs; the noise of mechanisms is not yet calibrated.

    Raises:
        UnknownNameError: Something that the spec names is not registered.
        ConfigError: Parts of the spec do not fit together.
        ParameterError: A value is out of range.
        DataError: The data are missing or damaged.
    """
    section = section_of(spec)  # Refuses an unknown name, or one that two plug-ins register.
    spec = with_every_key(with_section(spec, section))
    schedule = SeededRandomness(spec.seed)
    if data is None:
        data = load_data(spec, schedule)
    task, data = task_and_data(spec, data, schedule)
    data, public = section.hold_out(data, schedule.generator("proxy"))
    clients = clients_of(spec, data, schedule)
    spec = adjust_mechanism(spec, section, clients)
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
    """Return the source of keys for all secret randomness of a run.

    The source is the operating system, or the spec's seed if `randomness` is "seeded", which is for
    simulation. Each use takes its own keystream from it: the noise of each message, each client's
    sample of its records, the order of a shuffler, and the noise that a server adds. What is public
    (the partition, the cohorts, the initial model) always comes from the seed.
    """
    return SeededRandomness(spec.seed) if spec.randomness == "seeded" else SystemRandomness()


def with_every_key(spec: RunSpec) -> RunSpec:
    """Return the spec with all defaults of five tables filled in, because its hash includes them.

    The tables are the partition, the model, features, sampling and channel; plug-ins that they name
    are imported.

    Raises:
        UnknownNameError: Nothing of that kind is registered, or it has no such key.
        ConfigError: A key without a default is missing.
        ParameterError: A value is out of range.
    """
    features = tuple(table.completed(table.build()) for table in spec.features)
    partition = spec.data.partition.completed(spec.data.partition.build())
    return spec.model_copy(
        update={
            "data": spec.data.model_copy(update={"partition": partition}),
            "model": spec.model.completed(spec.model.build()),
            "features": features,
            "sampling": spec.sampling.completed(spec.sampling.build()),
            "channel": spec.channel.completed(spec.channel.build()),
        }
    )


def section_of(spec: RunSpec) -> AlgorithmSection:
    """Return the keys of the table [algorithm] as an object; import a plug-in of that name.

    Raises:
        UnknownNameError: No such algorithm is registered, or it has no such key.
        ConfigError: A key without a default is missing.
        ParameterError: A value is out of range.
    """
    return section_from(ALGORITHMS, "algorithm", spec.algorithm.kind, spec.algorithm.parameters)


def traits_of(spec: RunSpec) -> AlgorithmTraits:
    """Return the properties of the spec's algorithm that channels and backends depend on."""
    traits = section_of(spec).traits(Unit(spec.privacy.level))
    if not sends_statistics(spec):
        return traits
    # Clients also receive the clipping norm.
    return dataclasses.replace(traits, most_vectors_down=traits.most_vectors_down + 1)


def facts_of(spec: RunSpec, clients: Clients) -> Facts:
    """Return the public numbers from which an algorithm may derive its noise."""
    return Facts(
        unit=Unit(spec.privacy.level),
        clip_norm=spec.privacy.message_norm,
        epsilon=spec.privacy.epsilon,
        delta=spec.privacy.delta,
        grouped=bool(spec.privacy.groups),
        rounds=spec.rounds,
        clients=len(clients),
        smallest_dataset=min(clients.sizes),
    )


def adjust_mechanism(spec: RunSpec, section: AlgorithmSection, clients: Clients) -> RunSpec:
    """Return the spec with those parameters of the mechanism that its algorithm prescribes.

    Most algorithms prescribe none; the spec is then returned unchanged.
    """
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
    """Build the algorithm from its keys and the rest of the spec.

    Args:
        spec: The spec.
        section: The keys of its table [algorithm].
        task: The model, the loss and the test data.
        clients: The clients and their data.
        groups: The groups of clients that share a budget.
        randomness: The source of keys for secret randomness, such as samples of records.
        public: Training rows that are public, for algorithms that hold some out; otherwise None.

    Raises:
        ConfigError: The algorithm does not protect what `privacy.level` says, or does not sample
            records as the spec asks.
    """
    setting = AlgorithmSetting(
        facts=facts_of(spec, clients),
        record_sampling_rate=spec.privacy.record_sampling_rate,
        normalizes=normalizes(spec),
        exact_sums=spec.runtime.messages != "none",
        mechanism=spec.mechanism.parameters,
        groups=groups,
        task=task,
        clients=clients,
        randomness=randomness,
        schedule=SeededRandomness(spec.seed),
        public=public,
        computes_features=bool(spec.features),
        largest_dataset=None if spec.data.sites else max(clients.sizes),
    )
    check_statistics(spec, section, setting.unit, task.objective)
    algorithm, kind = section.build(setting), spec.algorithm.kind
    if setting.normalizes:
        check_normalizes(algorithm, kind)
    if algorithm.unit is not setting.unit:
        raise ConfigError(
            f"algorithm '{kind}' protects each {algorithm.unit}, but privacy.level is "
            f"'{setting.unit}'; set privacy.level = '{algorithm.unit}', or use another algorithm"
        )
    used = _sampling_rate_of(algorithm, setting)
    if used != setting.record_sampling_rate:
        raise ConfigError(
            f"algorithm '{kind}' uses a record with probability {used}, but "
            f"'privacy.record_sampling_rate' is {setting.record_sampling_rate}; set it to {used}, "
            "or use another algorithm"
        )
    return with_statistics(spec, algorithm)


def _sampling_rate_of(algorithm: Algorithm, setting: AlgorithmSetting) -> float:
    """Return the probability with which a round, or each of its noisy steps, uses a record."""
    if setting.record_sampling_rate < 1.0:
        domain = algorithm.domain(setting.task.dimension, max(setting.clients.sizes))
        if isinstance(domain, SteppedBall):
            return domain.sampling_rate
    return algorithm.record_sampling_rate


def with_section(spec: RunSpec, section: AlgorithmSection) -> RunSpec:
    """Return the spec with all keys of its algorithm, from `section`; its hash includes them."""
    every = {"kind": spec.algorithm.kind, **section.written()}
    return spec.model_copy(update={"algorithm": AlgorithmSpec.model_validate(every)})


# A file: its path, the time of its last change in nanoseconds, and its size in bytes.
Stamp = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRequest:
    """Everything that the prepared data depend on, except randomness.

    Attributes:
        dataset: The name of the data set.
        csv: How a table is read; None for other data sets.
        num_owners: The number of owners to keep; None for all.
        num_train: The number of training rows to keep; None for all.
        num_test: The number of test rows to keep; None for all.
        steps: The transformations into features, in the order in which they are applied.
        device: Where they are computed: "cpu" or "cuda".
        folder: The data folder.
    """

    dataset: str
    csv: CsvSpec | None
    num_owners: int | None
    num_train: int | None
    num_test: int | None
    steps: tuple[FeatureStep, ...]
    device: str
    folder: Path

    @classmethod
    def by(cls, spec: RunSpec) -> "DataRequest":
        """Return the request for the data that a spec names."""
        return cls(
            dataset=spec.data.dataset,
            csv=spec.data.csv,
            num_owners=spec.data.num_owners,
            num_train=spec.data.num_train,
            num_test=spec.data.num_test,
            steps=tuple(table.build() for table in spec.features),
            device=device_of(spec),
            folder=datasets.data_folder(None),
        )


def prepare_data(wanted: DataRequest, generator: np.random.Generator) -> Dataset:
    """Read the data, take the requested part of them and transform it into features.

    Args:
        wanted: The data set, the part of it and the transformations; missing files are downloaded.
        generator: Draws what depends on the seed, such as a test split; not the part.
    """
    return _shaped(wanted, _loaded(wanted, generator))


def _loaded(wanted: DataRequest, generator: np.random.Generator) -> Dataset:
    csv = wanted.csv.options() if wanted.csv else None
    return datasets.load(wanted.dataset, generator, data_dir=wanted.folder, download=True, csv=csv)


def _shaped(wanted: DataRequest, data: Dataset) -> Dataset:
    # The same part for every seed, so that its features are computed once.
    chance = SeededRandomness(0)
    if wanted.num_owners:
        data = datasets.sample_owners(data, wanted.num_owners, chance.generator("owners"))
    if wanted.num_train or wanted.num_test:
        generator = chance.generator("subset")
        data = datasets.subset(data, wanted.num_train, wanted.num_test, generator)
    if wanted.steps:
        data = datasets.with_float_features(data)
    folder = wanted.folder / "features"
    return features.apply(wanted.steps, data, folder, device=wanted.device)


def cached_data(wanted: DataRequest) -> Dataset | None:
    """Return the prepared data, kept in memory for the next call with an equal request.

    Returns:
        The data, prepared now if they are not in memory or their files have changed. None, so that
        the caller prepares them, if they do not come from files in the data folder, if a
        transformation reads a file of its own, or if reading them draws random numbers.
    """
    files = datasets.where_found(wanted.dataset, wanted.folder)
    if not files or any(files_of(step) for step in wanted.steps):
        return None
    # The stamp of the folder covers other files in it, such as a list of writers.
    return _without_chance(wanted, tuple(_stamp(path) for path in [wanted.folder, *files]))


def stamps_of(dataset: str) -> tuple[Stamp, ...]:
    """Return path, time of change (ns) and size (bytes) of each existing file of a data set.

    The list is empty for data that come with the package, and if files are missing.
    """
    own = Path(dataset.partition(":")[2]).expanduser()
    files = datasets.where_found(dataset) or ([own] if own.is_file() else [])
    return tuple(_stamp(path) for path in files)


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return str(path), status.st_mtime_ns, status.st_size


@lru_cache(maxsize=1)
def _without_chance(wanted: DataRequest, stamps: tuple[Stamp, ...]) -> Dataset | None:  # noqa: ARG001
    """Return the prepared data; None if reading them draws random numbers."""
    generator = np.random.default_rng(0)
    before = generator.bit_generator.state
    data = _loaded(wanted, generator)
    return _shaped(wanted, data) if generator.bit_generator.state == before else None


def device_of(spec: RunSpec) -> str:
    """Return the device on which the spec trains: "cpu" or "cuda".

    Raises:
        ConfigError: The spec says "cuda", and torch finds no GPU.
    """
    wanted = spec.runtime.device
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise ConfigError(
            "runtime.device = 'cuda', but torch finds no GPU on this machine; use 'cpu' or 'auto'"
        )
    return "cuda"


def load_data(spec: RunSpec, schedule: SeededRandomness) -> Dataset:
    """Load the data of a spec as features; hold out a validation set if the spec asks for it."""
    wanted = DataRequest.by(spec)
    data = cached_data(wanted) or prepare_data(wanted, schedule.generator("test split"))
    if spec.model.loss == "binary_cross_entropy":
        data = datasets.with_label_rows(data)
    if spec.data.validation_fraction:
        data = datasets.with_validation(
            data, spec.data.validation_fraction, schedule.generator("validation")
        )
    return data


def clients_of(spec: RunSpec, data: Dataset, schedule: SeededRandomness) -> Clients:
    """Split the training data among clients; clients with `data.sites` have no records here.

    Raises:
        ConfigError: `data.names` has another number of names than there are clients, or the user's
            own data name owners whom the partition would ignore.
    """
    if spec.data.sites:
        return RemoteClients(spec.data.sites)
    chosen = spec.data.partition.build()
    own = spec.data.dataset.startswith(("csv:", "memory:", "npz:"))
    if own and data.train_owners is not None and not chosen.needs_owners:
        raise ConfigError(
            f"'data.partition' = '{spec.data.partition.kind}' would split the rows of one owner "
            "among several clients, although the data name an owner for each row: no owner would "
            "be protected; set data.partition.kind = 'by_owner', or leave the owners out (csv: "
            "owner_column; arrays: 'owner')"
        )
    shares = partition.split(
        chosen,
        data.train_labels,
        len(spec.data.names) or spec.data.clients,
        schedule.generator("partition"),
        owners=data.train_owners,
    )
    values: NDArray[Any] | torch.Tensor = data.train_features
    if device_of(spec) == "cuda":  # Copy all rows to the GPU once.
        values = torch.from_numpy(np.array(values)).to("cuda")
    return Clients(values, data.train_labels, shares, names=_names(spec, len(shares)))


def digest_of(spec: RunSpec, clients: Clients, task: Task) -> str:
    """Return a digest that reveals whether the clients' data or the test data have changed.

    It is two groups of sixteen hex digits, of the clients' data and of the test data. It covers all
    labels and, unless the spec computes features, the features of some rows.

    Attacks use test rows as records that no model has seen: other rows in their place could hide a
    leak.
    """
    raw = not spec.features  # Computed features may differ in their last bits.
    return f"{clients.digest(features=raw)} {task.test_digest(features=raw)}"


def _names(spec: RunSpec, num_clients: int) -> list[str]:
    """Return the names of the clients."""
    names = spec.data.names
    if names and len(names) != num_clients:
        raise ConfigError(
            f"'data.names' has {len(names)} names, but the data are split among {num_clients} "
            "clients; give one name for each client"
        )
    return list(names) or [client_name(number) for number in range(num_clients)]


def task_and_data(spec: RunSpec, data: Dataset, schedule: SeededRandomness) -> tuple[Task, Dataset]:
    """Create the model, with initial weights from the spec's seed, and its loss and test data.

    Returns:
        The task, and the data with features of the type that the model takes.

    Raises:
        ParameterError: Model, loss and labels do not fit, found by a trial on two test samples; or
            at sample level the gradient of a single sample cannot be computed.
        DataError: The features are not what the model takes.
    """
    objective = objective_of(spec, data)  # First: a wrong kind of labels explains a wrong shape.
    module = models.create(
        spec.model.build(),
        data.input_shape,
        data.num_outputs,
        schedule.generator("initial model"),
    )
    select_trainable(module, spec.model.trainable)
    data = fit_features(module, data)
    task = Task(
        module,
        data.test_features,
        torch.from_numpy(data.test_labels),
        objective=objective,
        device=device_of(spec),
        one_by_one=spec.runtime.deterministic,
        precision=spec.runtime.precision,
    )
    task.check_objective()
    if spec.privacy.level == "sample":  # Later it would be refused after the charge.
        task.check_sample_gradients(exact_sums=spec.runtime.messages != "none")
    return task, data


def objective_of(spec: RunSpec, data: Dataset) -> Objective:
    """Return the loss and metrics that the spec names, or those that fit the labels.

    Raises:
        ParameterError: The loss does not fit the labels, or a function cannot be found.
        UnknownNameError: The user's module has no such function.
    """
    loss, metric = spec.model.loss, spec.model.metric
    return Objective(
        kind=kind_of(data.num_classes is None, data.train_labels.ndim, loss),
        loss=loss if loss in LOSSES else None,
        own_loss=None if loss is None or loss in LOSSES else _user_function("loss", loss),
        own_metric=None if metric is None else _user_function("metric", metric),
        metric_name=(metric or "").rpartition(":")[2].rpartition(".")[2],
    )


def _user_function(kind: Literal["loss", "metric"], name: str) -> Callable[..., torch.Tensor]:
    if is_function_path(name):
        return models.import_function(name, kind)
    part = in_memory.find(kind, name.removeprefix(MEMORY))
    if part is None:
        raise ParameterError(
            f"the {kind} '{name}' is a function of the Python program that created the run, and "
            f"this process does not have it; pass it to sottovoce.simulate(..., {kind}=...) again, "
            f"or put it into a module and set model.{kind} = 'package.module:function'"
        )
    found: Callable[..., torch.Tensor] = part.value
    return found


def fit_features(module: nn.Module, data: Dataset) -> Dataset:
    """Return the data with features of the type that the module takes.

    Whole numbers stay whole if the module takes them, as one with an embedding does, else they
    become float32.

    Raises:
        DataError: The module takes whole numbers only, and the features are others; or they are
            tokens that the module does not know.
    """
    if data.train_features.dtype != np.int64:
        zeros = torch.zeros(1, *data.input_shape)
        if not _takes(module, zeros) and _takes(module, zeros.long()):
            raise DataError(
                "the model takes whole numbers only, as an embedding of tokens does, and the "
                f"features are {data.train_features.dtype}; give the features as an array of "
                "integers (int64; bytes are read as images)"
            )
        return data
    if not _takes(module, torch.zeros(1, *data.input_shape, dtype=torch.int64)):
        return datasets.with_float_features(data)
    for part in (data.train_features, data.test_features):
        values = np.asarray(part)
        for extreme in (int(values.min()), int(values.max())):
            # The message has no value of the data, because a site writes it to its log.
            if not _takes(module, torch.full((1, *data.input_shape), extreme)):
                raise DataError(
                    "some features are whole numbers that the model does not take: an embedding "
                    "takes 0 to num_embeddings - 1; enlarge it, or correct the tokens"
                )
    return data


def _takes(module: nn.Module, samples: torch.Tensor) -> bool:
    """Return whether the module can compute outputs of these samples."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module(samples)
    except Exception:  # The user's code may raise anything.
        return False
    return True
