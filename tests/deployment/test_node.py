"""A node whose programs end: when they are started again, and when it is given up."""

from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sottovoce.deployment.machines import node
from sottovoce.deployment.machines.processes import Child
from sottovoce.errors import DeploymentError


class Program:
    """A child that knows how often it was stopped."""

    def __init__(self) -> None:
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1


def pauses(
    monkeypatch: pytest.MonkeyPatch,
    children: list[Any],
    lives: Iterator[float],
    lost_ledger: Callable[[], str | None] = lambda: None,
) -> Iterator[float]:
    """The pauses between starts of a node that runs for `lives` seconds each time."""
    clock = SimpleNamespace(now=0.0)

    def watch(_: object) -> None:
        clock.now += next(lives)
        raise DeploymentError("the worker ended with code 9")

    monkeypatch.setattr(node, "watch", watch)
    monkeypatch.setattr(node, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return node._pauses(cast(list[Child], children), lost_ledger)


def test_one_that_ends_soon_after_every_start_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    children = [Program(), Program()]
    found = pauses(monkeypatch, children, count(1.0))
    assert [next(found) for _ in range(5)] == [1.0, 2.0, 4.0, 8.0, 16.0]
    with pytest.raises(DeploymentError, match="the worker ended with code 9"):
        next(found)
    assert [child.stops for child in children] == [5, 5]
    assert capsys.readouterr().err.startswith(
        "the worker ended with code 9\nstarting again in 1 s\n"
    )


def test_one_that_ran_for_a_while_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    lives = iter([1.0, 1.0, 1.0, 3600.0, 1.0, 1.0])
    found = pauses(monkeypatch, [Program()], lives)
    assert [next(found) for _ in range(6)] == [1.0, 2.0, 4.0, 1.0, 1.0, 2.0]


def test_one_whose_ledger_is_lost_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = iter([None, "the ledger is gone"])
    found = pauses(monkeypatch, [Program()], count(1.0), lambda: next(reasons))
    assert next(found) == 1.0  # it ended for another reason
    with pytest.raises(DeploymentError, match=r"^the ledger is gone$"):
        next(found)
