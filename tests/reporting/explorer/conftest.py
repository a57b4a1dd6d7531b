"""An explorer that tests can ask."""

import threading
from collections.abc import Iterator

import pytest

from sottovoce.reporting.explorer.server import Explorer, open_server


@pytest.fixture(scope="module")
def server() -> Iterator[Explorer]:
    with open_server(0) as opened:
        thread = threading.Thread(target=opened.serve_forever, daemon=True)
        thread.start()
        yield opened
        opened.shutdown()
        thread.join()
