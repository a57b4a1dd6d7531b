"""A node whose programs end: when they are started again, and when it is given up."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.machines import restarts
from sottovoce.deployment.machines.address import Address, free_port
from sottovoce.deployment.machines.federation import create_federation
from sottovoce.deployment.machines.processes import Child, ChildEndedError
from sottovoce.deployment.machines.site_folder import SiteFolder, create_rehearsal_sites
from sottovoce.flower import node
from sottovoce.flower.control import LinkVerdict


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

    monkeypatch.setattr(restarts, "watch", watch)
    monkeypatch.setattr(restarts, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return restarts.restart_pauses(cast(list[Child], children), lost_ledger)


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


def test_one_that_is_killed_while_it_starts_again_is_started_once_more(
    site: SiteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[int] = []

    def start(*_: object) -> bool:
        starts.append(len(starts))
        if len(starts) == 2:
            raise ChildEndedError("the node ended with code -9")
        if len(starts) == 4:
            raise DeploymentError("the link does not know the key")
        return True

    def watch(_: object) -> None:
        raise ChildEndedError("the worker ended with code -9")

    monkeypatch.setattr(node, "_start", start)
    monkeypatch.setattr(restarts, "watch", watch)
    monkeypatch.setattr(restarts, "_PAUSES_SECONDS", (0.0,) * 5)
    with pytest.raises(DeploymentError, match="does not know the key"):
        node.keep_node(site, on_ready=_ignore)
    assert len(starts) == 4


def test_one_whose_ledger_is_lost_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = iter([None, "the ledger is gone"])
    found = pauses(monkeypatch, [Program()], count(1.0), lambda: next(reasons))
    assert next(found) == 1.0  # it ended for another reason
    with pytest.raises(DeploymentError, match=r"^the ledger is gone$"):
        next(found)


@pytest.fixture
def site(tmp_path: Path) -> SiteFolder:
    """A site whose link is away."""
    address = Address(host="127.0.0.1", port=free_port())
    federation = create_federation(tmp_path / "fed", address=address, sites=["a"])
    create_rehearsal_sites(federation)
    return SiteFolder.read(federation.folder / "sites" / "a")


def _ignore(*_: object) -> None:
    pass


def test_a_goodbye_that_no_one_hears_is_said_at_the_next_start(
    site: SiteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> bool:
        (site.node_folder / "node.log").write_text("SuperNode ID: 42\n")
        raise SystemExit(0)

    monkeypatch.setattr(node, "_start", stopped)
    with pytest.raises(SystemExit):
        node.keep_node(site, on_ready=_ignore)
    (site.node_folder / "node.log").write_text("")  # of a start that did not reach the link either
    heard: list[int] = []

    def hear(node_id: int, *_: object) -> bool:
        heard.append(node_id)
        return True

    monkeypatch.setattr(node, "_listens", lambda _: True)
    monkeypatch.setattr(node, "deactivate", hear)
    node._deactivate(site)
    node._deactivate(site)
    assert heard == [42]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (LinkVerdict.UNKNOWN, "it does not know the key"),
        (LinkVerdict.CLOCK, "this machine's clock is 8 s ahead of the link's"),
        (LinkVerdict.KNOWN, None),
        (LinkVerdict.AWAY, None),
    ],
)
def test_a_refusal_is_told_by_its_reason(
    site: SiteFolder, monkeypatch: pytest.MonkeyPatch, found: LinkVerdict, said: str | None
) -> None:
    monkeypatch.setattr(node, "link_verdict", lambda *_: found)
    monkeypatch.setattr(node, "clock_offset_seconds", lambda *_: 8.0)
    refusal = node._refusal(site)
    assert refusal is None if said is None else said in str(refusal)
