"""Every registered mechanism, with each of its examples on each of its domains."""

import pytest

from sottovoce.core.adjacency import Adjacency
from sottovoce.mechanisms import registry

# Under both adjacencies, which take turns in `make test`; the contract has every pair of them.
IN_TURN = [
    pytest.param(
        registration,
        example,
        domain,
        adjacency,
        id=f"{registration.kind}-{n}-{type(domain).__name__}-{adjacency}",
        marks=[pytest.mark.slow] * (n >= 1 or (number + place + other) % 2),
    )
    for number, registration in enumerate(registry.registrations())
    for n, example in enumerate(registration.examples)
    for place, domain in enumerate(registration.example_domains)
    for other, adjacency in enumerate(Adjacency)
]
