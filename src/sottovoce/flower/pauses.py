"""Patches that shorten the fixed polling intervals of Flower.

A SuperNode sleeps three seconds whenever it finds no message, and half a second while it waits for
a reply. A process that pulls a message whose parts have not all arrived tries again after a second.
These intervals are constants in Flower, and a round meets each about once, so a round took some
five seconds however little it computed. The functions are for our own processes, in which nothing
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
_POLL_SECONDS = 0.25
_REPLY_SECONDS = 0.05
_PART_SECONDS = 0.05

quick_pull = partial(pull_objects, initial_backoff=_PART_SECONDS, backoff_cap=1.0)


class PollingClock:
    """A replacement for `time` in a SuperNode: it polls fast for a minute after a message."""

    def __init__(self, clock: Any = time) -> None:
        self._clock = clock
        self._last_message = -_BUSY_SECONDS

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`, or for a shorter time while a run is active."""
        now = self._clock.monotonic()
        if seconds < _FLOWER_SECONDS:  # The SuperNode has a message and waits for the reply.
            self._last_message = now
            seconds = min(seconds, _REPLY_SECONDS)
        elif now - self._last_message < _BUSY_SECONDS:
            seconds = _POLL_SECONDS
        self._clock.sleep(seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


def patch_flower_polling() -> None:
    """Replace the polling intervals in the process of a SuperNode."""
    _replace(start_client_internal, time=PollingClock(), pull_objects=quick_pull)


def patch_flower_grid_polling() -> None:
    """Replace the polling interval in the process of a ServerApp."""
    _replace(http_grid, pull_objects=quick_pull)


def _replace(module: ModuleType, **by_name: Any) -> None:
    """Replace what a module has imported, if it still imports it."""
    for name, value in by_name.items():
        if hasattr(module, name):
            setattr(module, name, value)
