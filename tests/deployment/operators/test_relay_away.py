"""A relay that is away for a moment, or for long: asked again, and nobody is charged meanwhile."""

import contextlib
import logging
import types
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

import pytest
from relay_training import nodes_of, table_of
from two_operators import Operators, create_operators

from sottovoce.core.errors import AbandonedError, DeploymentError
from sottovoce.deployment.operators import collecting
from sottovoce.deployment.operators.calls import RefusedError, RelayAwayError, RelayCalls
from sottovoce.deployment.operators.collecting import CollectorLink, open_collector
from sottovoce.deployment.operators.relay_runs import run_through_relay
from sottovoce.deployment.operators.routes import Route
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.runs.loading import parse

AWAY = RelayAwayError("the cable is out")
BUSY = RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "too much arrives at once")


class Answers:
    """Calls that fail in turn, and then succeed."""

    def __init__(self, errors: Sequence[Exception]) -> None:
        self._errors = list(errors)

    def ask(self, _: Route, __: bytes = b"", **___: str) -> bytes:
        if self._errors:
            raise self._errors.pop(0)
        return b"ok"

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Operators:
    return create_operators(tmp_path_factory.mktemp("operators"))


@contextlib.contextmanager
def linked(
    operators: Operators, patch: pytest.MonkeyPatch, errors: Sequence[Exception]
) -> Iterator[tuple[CollectorLink, list[float]]]:
    """Yield a collector whose calls fail in turn, and how long it has waited."""
    waited: list[float] = []
    clock = types.SimpleNamespace(time=lambda: 0.0, monotonic=lambda: sum(waited))
    patch.setattr(collecting, "time", clock)
    with open_collector(operators.collector, wait=waited.append) as link:
        link._calls = cast(RelayCalls, Answers(errors))
        yield link, waited


@pytest.mark.parametrize("error", [AWAY, BUSY])
def test_a_relay_that_is_away_for_a_moment_is_asked_again(
    operators: Operators,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    with linked(operators, monkeypatch, [error] * 50) as (link, waited):
        link.reach()
    assert sum(waited) == 25.0
    assert [row.message for row in caplog.records if row.levelno == logging.WARNING] == [
        f"asking again for 30 seconds: {error}"
    ]


@pytest.mark.parametrize(
    ("error", "raised", "seconds"),
    [
        (AWAY, AbandonedError, 30.5),
        (BUSY, RefusedError, 30.5),
        (RefusedError(HTTPStatus.FORBIDDEN, "too few"), RefusedError, 0.0),
        (DeploymentError("another certificate"), DeploymentError, 0.0),
    ],
)
def test_a_relay_that_stays_away_or_refuses_is_given_up(
    operators: Operators,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    raised: type[Exception],
    seconds: float,
) -> None:
    with (
        linked(operators, monkeypatch, [error] * 100) as (link, waited),
        pytest.raises(raised, match=str(error)),
    ):
        link.reach()
    assert sum(waited) == seconds


def test_no_client_is_charged_while_the_relay_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "_AWAY_SECONDS", 0.0)
    operators = create_operators(tmp_path)
    nodes_of(operators)
    table: dict[str, Any] = table_of("away") | {
        "deployment": {"deadline_seconds": 4.0, "idle_rounds": 2}
    }
    with pytest.raises(DeploymentError, match=r"2 rounds in a row.*does not answer.*resume it"):
        run_through_relay(parse(table), tmp_path / "run", operators.collector, wait=lambda _: None)
    with Ledger(tmp_path / "run" / LEDGER_NAME) as ledger:
        assert ledger.num_charges == 0


def test_a_run_that_the_relay_does_not_allow_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(_: RelayCalls, route: Route, *__: bytes, **___: str) -> bytes:
        if route is Route.ANNOUNCE:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "expected at least 12 clients, got 3")
        return b"ok"

    monkeypatch.setattr(RelayCalls, "ask", ask)
    operators = create_operators(tmp_path)
    nodes_of(operators)
    table: dict[str, Any] = table_of("refused") | {"deployment": {"deadline_seconds": 4.0}}
    with pytest.raises(DeploymentError, match="no client was asked: expected at least 12 clients"):
        run_through_relay(parse(table), tmp_path / "run", operators.collector, wait=lambda _: None)


def test_nobody_is_charged_once_too_few_clients_are_left_on_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operators = create_operators(tmp_path)
    first = nodes_of(operators)[0].name

    def ask(_: RelayCalls, route: Route, *__: bytes, **___: str) -> bytes:
        assert route is Route.HEALTH
        operators.collector.remove_clients([first])  # After the run has begun.
        return b"ok"

    monkeypatch.setattr(RelayCalls, "ask", ask)
    with pytest.raises(
        DeploymentError, match=r"2 of its clients .* needs 3; no client was charged"
    ):
        run_through_relay(parse(table_of("few")), tmp_path / "run", operators.collector)
    with Ledger(tmp_path / "run" / LEDGER_NAME) as ledger:
        assert ledger.num_charges == 0
