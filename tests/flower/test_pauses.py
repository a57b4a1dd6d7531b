"""How long Flower's processes wait: little while a run is on, as Flower says otherwise."""

import inspect
import threading
import time
from pathlib import Path

import pytest
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
from flwr.superlink.grid import http_grid
from flwr.supernode import start_client_internal

from sottovoce.flower import pauses
from sottovoce.flower.pauses import PollingClock, quick_pull


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 7.0

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_a_node_pauses_as_flower_says_until_there_is_an_order() -> None:
    clock = Clock()
    node = PollingClock(clock)
    for _ in range(3):
        node.sleep(3)
    assert clock.slept == [3, 3, 3]


def test_after_an_order_a_node_looks_often_for_a_minute() -> None:
    clock = Clock()
    node = PollingClock(clock)
    node.sleep(0.5)
    node.sleep(3)
    clock.now += 59.0
    node.sleep(3)
    clock.now += 1.0
    node.sleep(3)
    assert clock.slept == [0.05, 0.25, 0.25, 3]


def test_everything_else_is_the_clock_itself() -> None:
    assert PollingClock(Clock()).time() == 7.0


def test_a_part_that_is_late_is_asked_for_again() -> None:
    asked: list[str] = []
    lock = threading.Lock()

    def pull(name: str) -> bytes:
        with lock:
            asked.append(name)
            if asked.count(name) < 4:
                raise ObjectUnavailableError(name)
        return name.encode()

    assert quick_pull(["a", "b"], pull) == {"a": b"a", "b": b"b"}
    assert sorted(asked) == ["a"] * 4 + ["b"] * 4


@pytest.mark.parametrize(
    ("module", "name", "use"),
    [
        (start_client_internal, "time", "time.sleep(3)"),
        (start_client_internal, "pull_objects", "pull_objects("),
        (http_grid, "pull_objects", "pull_objects("),
    ],
)
def test_flower_still_waits_through_what_we_replace(module: object, name: str, use: str) -> None:
    # Else a new version of Flower would quietly take its own time again.
    assert hasattr(module, name)
    assert use in Path(inspect.getfile(module)).read_text(encoding="utf-8")  # type: ignore[arg-type]


def test_both_sides_are_hurried_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (start_client_internal, "time"),
        (start_client_internal, "pull_objects"),
        (http_grid, "pull_objects"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))
    pauses.patch_flower_polling()
    pauses.patch_flower_grid_polling()
    assert isinstance(vars(start_client_internal)["time"], PollingClock)
    assert vars(start_client_internal)["pull_objects"] is quick_pull
    assert vars(http_grid)["pull_objects"] is quick_pull
    assert time.sleep.__name__ == "sleep"
