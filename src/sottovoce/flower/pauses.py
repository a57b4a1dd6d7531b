"""Where Flower waits longer than it must, shorter.

Flower's node pauses for three seconds whenever it finds no order, and for half a second while it
waits for an answer; and whoever pulls a message of which a part has not come yet tries again after
a second. All three are written into Flower, and a round meets each about once, so that it took some
five seconds whatever it computed. These functions are for processes of our own, in which nothing
else uses Flower.
"""

import time
from functools import partial
from types import ModuleType
from typing import Any

from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.superlink.grid import http_grid
from flwr.supernode import start_client_internal

_FLOWER_SECONDS = 3.0
_BUSY_SECONDS = 60.0
_LOOK_SECONDS = 0.25
_ANSWER_SECONDS = 0.05
_PART_SECONDS = 0.05

quick_pull = partial(pull_objects, initial_backoff=_PART_SECONDS, backoff_cap=1.0)


class Pauses:
    """The module `time` for the node's loop: it looks for orders often for a minute after one."""

    def __init__(self, clock: Any = time) -> None:
        self._clock = clock
        self._last_order = -_BUSY_SECONDS

    def sleep(self, seconds: float) -> None:
        now = self._clock.monotonic()
        if seconds < _FLOWER_SECONDS:  # it has an order, and waits for the answer
            self._last_order = now
            seconds = min(seconds, _ANSWER_SECONDS)
        elif now - self._last_order < _BUSY_SECONDS:
            seconds = _LOOK_SECONDS
        self._clock.sleep(seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


def hurry_node() -> None:
    """For the process of a node."""
    _replace(start_client_internal, time=Pauses(), pull_objects=quick_pull)


def hurry_server() -> None:
    """For the process of a server app."""
    _replace(http_grid, pull_objects=quick_pull)


def _replace(module: ModuleType, **by_name: Any) -> None:
    """Put something in place of what a module has imported, if it still imports it."""
    for name, value in by_name.items():
        if hasattr(module, name):
            setattr(module, name, value)
