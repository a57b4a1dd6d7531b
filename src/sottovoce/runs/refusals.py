"""Every reason for which a run would be refused, and not only the first.

A check needs some parts of the spec, and is left out where one of these is broken: what it would
say then is a consequence, or says nothing.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import SottovoceError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.learning import datasets
from sottovoce.learning.clients import client_name
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.release import ReleaseTerms
from sottovoce.runs.backends import BACKENDS
from sottovoce.runs.checked import problems_of
from sottovoce.runs.groups import Group, calibrate, groups_of
from sottovoce.runs.inputs import clients_of, load_data, load_inputs, section_of, task_of
from sottovoce.runs.loading import check_code_allowed
from sottovoce.runs.resolve import channel_of, check_minimum, check_runtime, rounds_of_one
from sottovoce.runs.spec import AUTO, RunSpec

T = TypeVar("T")

_ANY_DIMENSIONS = (7, 1000)  # a reason that both give has nothing to do with the dimension


class _Refusals:
    """The problems found so far, and the parts of the spec that have one."""

    def __init__(self, broken: Iterable[str]) -> None:
        self.problems: list[str] = []
        self.broken = set(broken)

    def look(self, part: str, needs: str, probe: Callable[[], T]) -> T | None:
        """Return what a check returns; None where it refuses, or where a part is broken.

        Args:
            part: What is broken if it refuses; others may need it.
            needs: The parts of the spec that it looks at, with blanks between them.
            probe: The check.
        """
        if self.broken & {*needs.split()}:
            return None
        try:
            return probe()
        except SottovoceError as error:
            self.problems += problems_of(error)
            self.broken.add(part)
            return None


def refusals(
    spec: RunSpec, broken: Iterable[str] = (), *, allow_code: bool, how: str
) -> tuple[str, ...]:
    """Return what each part of a spec is refused for, whatever the others are.

    Args:
        spec: With anything in the place of what is broken.
        broken: The keys of the spec that could not be read.
        allow_code: Whether code that the spec names may be run.
        how: What allows it, for the message.
    """
    found = _Refusals(broken)
    found.look("model", "model", lambda: check_code_allowed(spec, allow_code=allow_code, how=how))
    _look_at_tables(found, spec)
    _look_at_mechanisms(found, spec)
    _look_at_clients(found, spec)
    _look_at_data(found, spec)
    return tuple(dict.fromkeys(found.problems))


def _look_at_tables(found: _Refusals, spec: RunSpec) -> None:
    """Each table by itself, where its owner is a plug-in or knows more than its keys."""
    found.look("data", "data", spec.data.partition.opened)
    found.look("model", "model", spec.model.opened)
    for step in spec.features:
        found.look("features", "features", step.opened)
    found.look("algorithm", "algorithm", lambda: section_of(spec))
    found.look("sampling", "sampling", spec.sampling.opened)
    found.look("channel", "channel", spec.channel.opened)
    found.look("runtime", "runtime", lambda: _check_backend(spec))
    needs = "runtime randomness rotation channel data"
    elsewhere = "" if spec.runtime.backend == "fast" else " sampling algorithm privacy deployment"
    found.look("computing", needs + elsewhere, lambda: check_runtime(spec))


def _look_at_clients(found: _Refusals, spec: RunSpec) -> None:
    """What depends on the number of clients, where the spec says it."""
    names = _names(spec)
    if not names:
        return
    number = len(names)
    found.look("minimum", "privacy data", lambda: check_minimum(spec, number))
    found.look(
        "cohort", "sampling data rounds runtime deployment", lambda: rounds_of_one(spec, number)
    )
    found.look(
        "release",
        "channel sampling data rounds privacy randomness algorithm",
        lambda: channel_of(spec, number),
    )
    found.look("groups", "privacy data mechanism groups", lambda: groups_of(spec, names))


def _look_at_data(found: _Refusals, spec: RunSpec) -> None:
    """What can be seen once the data are read; they are not downloaded."""
    schedule = SeededRandomness(spec.seed)
    found.look("data", "data", lambda: datasets.check_here(spec.data.dataset))
    rows = found.look("rows", "data features runtime seed", lambda: load_data(spec, schedule))
    if rows is None:
        return
    left = found.look(
        "left",
        "algorithm",
        lambda: section_of(spec).hold_out(rows, schedule.generator("proxy"))[0],
    )
    if left is not None:
        found.look("data", "data", lambda: clients_of(spec, left, schedule))
    found.look("model", "model", lambda: task_of(spec, left or rows, schedule))
    everything = "data model features algorithm privacy mechanism groups rounds seed randomness"
    found.look("inputs", f"{everything} sampling channel", lambda: load_inputs(spec, rows))


def _look_at_mechanisms(found: _Refusals, spec: RunSpec) -> None:
    """Names and values of the mechanisms' parameters, whatever the data and the model are."""
    privacy = spec.privacy
    tables = [(spec.mechanism, privacy.epsilon)]
    tables += [(one.mechanism or spec.mechanism, one.epsilon) for one in privacy.groups]
    for number, (mechanism, epsilon) in enumerate(tables):
        group = Group(
            number=number,
            clients=(),
            mechanism=mechanism,
            epsilon=privacy.epsilon if epsilon is None else epsilon,
            delta=privacy.delta,
        )
        found.look("names", "mechanism", partial(_check_names, group))
        found.look("values", "mechanism privacy names", partial(_check_values, group, spec))


def _check_names(group: Group) -> None:
    if group.mechanism.kind != AUTO:
        registry.find(group.mechanism.kind).check_names(group.mechanism.parameters)


def _check_values(group: Group, spec: RunSpec) -> None:
    """Refuse parameters that are refused for the same reason whatever the dimension is."""
    if group.mechanism.kind == AUTO:
        return
    registration, given = registry.find(group.mechanism.kind), group.mechanism.parameters
    free = registration.knob.parameter if registration.knob else None
    if free is not None and free not in given:
        if group.epsilon is None:
            terms = ReleaseTerms(adjacency=spec.privacy.adjacency)
            calibrate(group, (), rounds=spec.rounds, terms=terms)  # which refuses it
        given = {**given, free: registration.examples[0][free]}
    radius = spec.privacy.clip_norm
    first, *others = (_reason(registration, given, dim, radius) for dim in _ANY_DIMENSIONS)
    if first is None or any(str(one) != str(first) for one in others):
        return
    if free in group.mechanism.parameters or str(free) not in str(first):  # not the example's value
        raise first


def _reason(
    registration: registry.Registration, given: registry.Parameters, dimension: int, radius: float
) -> SottovoceError | None:
    try:
        registration.build(L2Ball(dimension=dimension, radius=radius), given)
    except SottovoceError as error:
        return error
    return None


def _check_backend(spec: RunSpec) -> None:
    if spec.runtime.backend not in BACKENDS.names():
        raise BACKENDS.unknown(spec.runtime.backend)


def _names(spec: RunSpec) -> list[str]:
    """The clients that the spec names or counts; none where the data settle it."""
    if spec.data.names or spec.data.sites:
        return [*spec.data.names, *spec.data.sites]
    return [client_name(number) for number in range(spec.data.clients or 0)]
