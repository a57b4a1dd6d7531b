"""Whose keys a round uses."""

import pytest

from sottovoce.core.randomness import Randomness, SeededRandomness, SystemRandomness


@pytest.fixture(params=[SystemRandomness, lambda: SeededRandomness(7)], ids=["system", "seeded"])
def randomness(request: pytest.FixtureRequest) -> Randomness:
    source: Randomness = request.param()
    return source
