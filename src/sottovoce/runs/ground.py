"""What a spec says before anything is calibrated: data, clients, model, algorithm.

The server and every site lay the same ground from the same resolved spec.
"""

from dataclasses import dataclass

from sottovoce.core.randomness import Randomness, SeededRandomness, SystemRandomness
from sottovoce.federated.algorithms.algorithm import Algorithm
from sottovoce.federated.algorithms.recipe import AlgorithmSection
from sottovoce.learning.clients import Clients
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.task import Task
from sottovoce.runs import open_sections
from sottovoce.runs.algorithms import adjusted, algorithm_of, section_of, with_section
from sottovoce.runs.data import clients_of, load_data, task_of
from sottovoce.runs.groups import Group, groups_of
from sottovoce.runs.spec import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Who has which data, what is trained, and how; `groups` are not calibrated yet."""

    spec: RunSpec
    task: Task
    clients: Clients
    groups: tuple[Group, ...]
    section: AlgorithmSection
    algorithm: Algorithm
    num_classes: int | None  # None for regression
    note: str


def lay_ground(spec: RunSpec, data: Dataset | None = None) -> Ground:
    """The ground of a spec, on the data that it names unless others are given."""
    section = section_of(spec)  # an unknown name, or one that two claim, is refused
    spec = open_sections.with_every_key(with_section(spec, section))
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
    return Ground(
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
