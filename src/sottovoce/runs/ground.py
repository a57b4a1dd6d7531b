"""What a spec says before anything is calibrated: data, clients, model, algorithm.

The server and every site lay the same ground from the same resolved spec.
"""

from dataclasses import dataclass

from sottovoce.core.errors import ConfigError
from sottovoce.core.randomness import Randomness, SeededRandomness, SystemRandomness
from sottovoce.federated.algorithms.algorithm import Algorithm
from sottovoce.learning.clients import Clients
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.task import Task
from sottovoce.runs import nbafl
from sottovoce.runs.algorithms import algorithm_of, with_every_key
from sottovoce.runs.data import clients_of, load_data, task_of
from sottovoce.runs.groups import Group, groups_of
from sottovoce.runs.proxy import held_out_proxy
from sottovoce.runs.spec import NbAflSpec, RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Who has which data, what is trained, and how; `groups` are not calibrated yet."""

    spec: RunSpec
    task: Task
    clients: Clients
    groups: tuple[Group, ...]
    algorithm: Algorithm
    num_classes: int | None  # None for regression
    note: str


def lay_ground(spec: RunSpec, data: Dataset | None = None) -> Ground:
    """The ground of a spec, on the data that it names unless others are given."""
    spec = with_every_key(spec)
    schedule = SeededRandomness(spec.seed)
    if data is None:
        data = load_data(spec, schedule)
    data, proxy = held_out_proxy(spec, data, schedule.generator("proxy"))
    clients = clients_of(spec, data, schedule)
    task = task_of(spec, data, schedule)
    if isinstance(spec.algorithm, NbAflSpec):
        if spec.privacy.groups:
            raise ConfigError(
                "'privacy.groups' have budgets, and NbAFL's epsilon is none; use the algorithm "
                "'fedavg'"
            )
        spec = nbafl.with_published_noise(spec, clients)
    groups = groups_of(spec, clients.names)
    algorithm = algorithm_of(
        spec, task, clients, groups, randomness=randomness_of(spec), proxy=proxy
    )
    return Ground(
        spec=spec,
        task=task,
        clients=clients,
        groups=groups,
        algorithm=algorithm,
        num_classes=data.num_classes,
        note=data.note,
    )


def randomness_of(spec: RunSpec) -> Randomness:
    """What feeds the mechanisms, the shuffler and the server's own noise."""
    return SeededRandomness(spec.seed) if spec.randomness == "seeded" else SystemRandomness()
