"""What Flower's messages need to be made outside of Flower's own processes."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def flower_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages are of some task, which a process says once."""
    from flwr.supercore.task_identity import TaskIdentity

    for number, name in enumerate(("_run_id", "_node_id", "_task_id"), start=1):
        monkeypatch.setattr(TaskIdentity, name, number)


@pytest.fixture
def flower_server() -> Iterator[None]:
    """This process is a Flower server's."""
    from fake_grid import server_identity

    with server_identity():
        yield
