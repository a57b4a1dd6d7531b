"""Find every reason why a run would be refused, not only the first.

Each check needs some parts of the spec. It is skipped where one of these is broken, because its
result would only be a consequence of that.
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
from sottovoce.runs.groups import Group, calibrate_group, groups_of
from sottovoce.runs.inputs import clients_of, load_data, load_inputs, section_of, task_and_data
from sottovoce.runs.loading import check_code_allowed
from sottovoce.runs.resolve import channel_of, check_minimum, check_runtime, rounds_per_client
from sottovoce.runs.spec import AUTO, RunSpec

T = TypeVar("T")

_ANY_DIMENSIONS = (7, 1000)  # A reason that both give does not depend on the dimension.


class _Refusals:
    """The problems found so far, and the parts of the spec that have one."""

    def __init__(self, broken: Iterable[str]) -> None:
        self.problems: list[str] = []
        self.broken = set(broken)

    def attempt(self, part: str, needs: str, probe: Callable[[], T]) -> T | None:
        """Return the result of a check; None if it refuses, or if a part that it needs is broken.

        Args:
            part: The part that is broken if the check refuses; other checks may need it.
            needs: The parts of the spec that the check looks at, separated by spaces.
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
    """Return why each part of a spec is refused, whatever the other parts are.

    Args:
        spec: The spec, with any valid values in place of what is broken.
        broken: The top-level keys of the spec that could not be read; they are not checked again.
        allow_code: Whether code that the spec names may be run.
        how: The option that allows it, for the message.

    Returns:
        The messages, each once; empty if nothing is refused.
    """
    found = _Refusals(broken)
    found.attempt(
        "model", "model", lambda: check_code_allowed(spec, allow_code=allow_code, how=how)
    )
    _check_tables(found, spec)
    _check_mechanisms(found, spec)
    _check_clients(found, spec)
    _check_data(found, spec)
    return tuple(dict.fromkeys(found.problems))


def _check_tables(found: _Refusals, spec: RunSpec) -> None:
    """Check each table by itself, where a plug-in or a class defines more rules than its keys."""
    found.attempt("data", "data", spec.data.partition.build)
    found.attempt("model", "model", spec.model.build)
    for step in spec.features:
        found.attempt("features", "features", step.build)
    found.attempt("algorithm", "algorithm", lambda: section_of(spec))
    found.attempt("sampling", "sampling", spec.sampling.build)
    found.attempt("channel", "channel", spec.channel.build)
    found.attempt("runtime", "runtime", lambda: _check_backend(spec))
    needs = "runtime randomness rotation channel data"
    elsewhere = "" if spec.runtime.backend == "fast" else " sampling algorithm privacy deployment"
    found.attempt("computing", needs + elsewhere, lambda: check_runtime(spec))


def _check_clients(found: _Refusals, spec: RunSpec) -> None:
    """Check what depends on the number of clients, where the spec says it."""
    names = _names(spec)
    if not names:
        return
    number = len(names)
    found.attempt("minimum", "privacy data", lambda: check_minimum(spec, number))
    found.attempt(
        "cohort", "sampling data rounds runtime deployment", lambda: rounds_per_client(spec, number)
    )
    found.attempt(
        "release",
        "channel sampling data rounds privacy randomness algorithm",
        lambda: channel_of(spec, number),
    )
    found.attempt("groups", "privacy data mechanism groups", lambda: groups_of(spec, names))


def _check_data(found: _Refusals, spec: RunSpec) -> None:
    """Check what can be known once the data are read; they are not downloaded."""
    schedule = SeededRandomness(spec.seed)
    found.attempt("data", "data", lambda: datasets.check_here(spec.data.dataset))
    rows = found.attempt("rows", "data features runtime seed", lambda: load_data(spec, schedule))
    if rows is None:
        return
    left = found.attempt(
        "left",
        "algorithm",
        lambda: section_of(spec).hold_out(rows, schedule.generator("proxy"))[0],
    )
    if left is not None:
        found.attempt("data", "data", lambda: clients_of(spec, left, schedule))
    found.attempt("model", "model", lambda: task_and_data(spec, left or rows, schedule))
    everything = "data model features algorithm privacy mechanism groups rounds seed randomness"
    found.attempt("inputs", f"{everything} sampling channel", lambda: load_inputs(spec, rows))


def _check_mechanisms(found: _Refusals, spec: RunSpec) -> None:
    """Check names and values of the mechanisms' parameters, whatever data and model are."""
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
        found.attempt("names", "mechanism", partial(_check_names, group))
        found.attempt("values", "mechanism privacy names", partial(_check_values, group, spec))


def _check_names(group: Group) -> None:
    if group.mechanism.kind != AUTO:
        registry.find(group.mechanism.kind).check_names(group.mechanism.parameters)


def _check_values(group: Group, spec: RunSpec) -> None:
    """Refuse parameters that are refused for the same reason in every dimension."""
    if group.mechanism.kind == AUTO:
        return
    registration, given = registry.find(group.mechanism.kind), group.mechanism.parameters
    free = (
        registration.calibrated_parameter.parameter if registration.calibrated_parameter else None
    )
    if free is not None and free not in given:
        if group.epsilon is None:
            terms = ReleaseTerms(adjacency=spec.privacy.adjacency)
            calibrate_group(group, (), rounds=spec.rounds, terms=terms)  # Raises the error.
        given = {**given, free: registration.examples[0][free]}
    radius = spec.privacy.message_norm
    first, *others = (_reason(registration, given, dim, radius) for dim in _ANY_DIMENSIONS)
    if first is None or any(str(one) != str(first) for one in others):
        return
    if free in group.mechanism.parameters or str(free) not in str(first):  # Not the example's.
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
    """Return the clients that the spec names or counts; none where the data determine them."""
    if spec.data.names or spec.data.sites:
        return [*spec.data.names, *spec.data.sites]
    return [client_name(number) for number in range(spec.data.clients or 0)]
