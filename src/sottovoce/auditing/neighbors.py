"""Pairs of inputs to compare: the extreme ones of a domain, and some at random."""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Domain, L1Ball, L2Ball, Vector
from sottovoce.core.errors import ParameterError


def origin(domain: Domain) -> Vector:
    """What stands in for a record under zero-out: the domain's point nearest to 0."""
    return domain.project(np.zeros(domain.dimension))


def inputs(domain: Domain, generator: np.random.Generator) -> Iterator[Vector]:
    """The origin, spikes, a flat vector on the boundary, and random ones."""
    match domain:
        case L1Ball() | L2Ball():
            domain = dataclasses.replace(domain, records=1)  # as each record, so the mean too
            centre, reach = np.zeros(domain.dimension), domain.radius
        case Box():
            middle = (domain.lower + domain.upper) / 2.0
            centre, reach = np.full(domain.dimension, middle), (domain.upper - domain.lower) / 2.0
        case _:
            raise ParameterError(
                f"no extreme inputs are known for {type(domain).__name__}; audit a Box, an L1Ball "
                "or an L2Ball"
            )
    yield origin(domain)
    for sign in (1.0, -1.0):
        spike = centre.copy()
        spike[0] += sign * reach
        yield domain.check(spike)
    yield domain.project(centre + 10.0 * reach)
    for _ in range(3):
        yield domain.project(centre + generator.normal(size=domain.dimension) * reach)


def neighbours(
    domain: Domain, adjacency: Adjacency, generator: np.random.Generator
) -> Iterator[tuple[Vector, Vector]]:
    """Pairs that differ in one record: removed, or replaced by its opposite or another."""
    records = domain.records if isinstance(domain, L1Ball | L2Ball) else 1
    for start in inputs(domain, generator) if records > 1 else (origin(domain),):
        for record in inputs(domain, generator):
            base = start * (records - 1) / records
            others = [origin(domain)]
            if adjacency is Adjacency.REPLACE_ONE:
                others = [
                    _opposite(domain, record),
                    *itertools.islice(inputs(domain, generator), 7),
                ]
            for other in others:
                yield base + record / records, base + other / records


def neighbours_beside_others(
    domain: Domain, generator: np.random.Generator
) -> Iterator[tuple[Vector, Vector]]:
    """Pairs as far apart as a record that is left out, whatever else is in them.

    So it is where a client samples its own records and expects one: the sum may be any input.
    Projection brings sums no further apart, but for L1 distances: there only what lies within.
    """
    for base in inputs(domain, generator):
        for record in inputs(domain, generator):
            yield _halfway(domain, record), _halfway(domain, _opposite(domain, base))
            if not isinstance(domain, L1Ball):
                yield domain.project(base + record - origin(domain)), base


def _halfway(domain: Domain, values: Vector) -> Vector:
    """Between the middle and the input: two of them are half the domain's width apart at most."""
    middle = (values + _opposite(domain, values)) / 2.0
    return (values + middle) / 2.0


def _opposite(domain: Domain, values: Vector) -> Vector:
    return domain.lower + domain.upper - values if isinstance(domain, Box) else -values
