"""What is ranked and predicted is what a design is, not how good it is: the first found will do."""

from collections.abc import Iterator

import pytest

from sottovoce.mechanisms.design import store, window


@pytest.fixture(scope="module", autouse=True)
def designs_at_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Certified as always, but without a search for the best; nobody else is to find them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOTTOVOCE_CACHE", str(tmp_path_factory.mktemp("designs")))
        patch.setattr(window, "_EVALUATIONS", 0)
        patch.setattr(window, "_LEAST_EVALUATIONS", 0)
        store.find.cache_clear()
        yield
    store.find.cache_clear()
