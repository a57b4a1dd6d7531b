"""Seeds with as few signs as whole laws can be listed for."""

from collections.abc import Iterator

import pytest

from sottovoce.mechanisms import seeded_sign, seeded_step


@pytest.fixture
def one_copy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A sign for each coordinate, however few there are."""
    for module in (seeded_sign, seeded_step):
        monkeypatch.setattr(module, "LEAST_SIGNS", 1)
        module._layout.cache_clear()
    yield
    for module in (seeded_sign, seeded_step):
        module._layout.cache_clear()
