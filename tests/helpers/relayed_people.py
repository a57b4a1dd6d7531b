"""A relay, its collector, and clients with people in one process, with a clock of its own."""

import contextlib
import dataclasses
import json
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from questions import QUESTIONS, values_for
from two_operators import Operators, create_operators

from sottovoce.analytics.estimates import question_for
from sottovoce.analytics.question import Question, to_json
from sottovoce.core.adjacency import Unit
from sottovoce.core.errors import DeploymentError, SottovoceError
from sottovoce.deployment.operators import (
    answering,
    collecting,
    device,
    participant,
    relay_answers,
    relay_asking,
)
from sottovoce.deployment.operators.admission_file import admit
from sottovoce.deployment.operators.application import HttpRefusal, status_of
from sottovoce.deployment.operators.calls import RefusedError, RelayCalls
from sottovoce.deployment.operators.collecting import STATE_NAME, CollectorLink
from sottovoce.deployment.operators.desk import Desk, open_desk
from sottovoce.deployment.operators.device import DeviceFolder, RelayLink, create_device
from sottovoce.deployment.operators.folders import CollectorFolder
from sottovoce.deployment.operators.participant import Participant
from sottovoce.deployment.operators.relay_asking import ask_through_relay
from sottovoce.deployment.operators.routes import Route
from sottovoce.deployment.site import read_site
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.protocol.secure.state_file import StateFile

DELTA = 1e-6
NAMES = ("a", "b", "c", "d")
SUM, SHUFFLER = "secure_sum", "shuffler"
WORDS = ("a", "b", "x")
HADAMARD = question_for(
    "histogram", categories=WORDS[:2], epsilon=1.0, mechanism="hadamard_response", public_seed=1
)
K_ARY = question_for("histogram", categories=WORDS[:2], epsilon=1.0, public_seed=1)
HAAR = question_for(
    "quantiles", lower=0, upper=4, epsilon=1.0, mechanism="haar_hadamard", depth=2, public_seed=1
)
MEAN: Question = QUESTIONS["mean"]
POLICY: dict[str, Any] = {
    "mechanisms": ["mvu", "generalized_rr", "metric_mvu", "laplace"],
    "level": "sample",
    "adjacency": "replace-one",
    "epsilon_per_round": 30.0,
    "epsilon_total": 100.0,
    "delta": DELTA,
    "smallest_cohort": 2,
    "float_noise": True,
    "honest": 2,
    "colluders": 1,
}


def slow(*values: Any) -> Any:
    """Return a case that only the full run has."""
    return pytest.param(*values, marks=pytest.mark.slow)


def tables_of(name: str, sizes: dict[str, int]) -> dict[str, Any]:
    return {one: values_for(name, size, ord(one)) for one, size in sizes.items()}


def people_of(
    operators: Operators, tables: Mapping[str, Sequence[object]], **policy: Any
) -> list[DeviceFolder]:
    """Make admitted clients with a policy, each of which has a table of its own people."""
    made = [
        create_device(
            operators.folder / name,
            name=name,
            operators=operators.relay.folder / "operators.toml",
            digest=operators.pinned.digest,
            with_site=True,
        )
        for name in tables
    ]
    for operator in (operators.relay, operators.collector):
        admit(operator, [one.admission_path for one in made])
    for one in made:
        write_policy(one, **policy)
        write_people(one, tables[one.name])
    return made


def write_people(one: DeviceFolder, values: Sequence[object]) -> None:
    """Write a client's table: its people's numbers or words, or the places of both columns."""
    rows = [value if isinstance(value, np.ndarray) else (value, value) for value in values]
    lines = ["age,longitude", *(f"{first},{second}" for first, second in rows)]
    (one.folder / "people.csv").write_text("\n".join(lines) + "\n")


def write_policy(one: DeviceFolder, **changes: Any) -> None:
    lines = [f"{key} = {json.dumps(value)}" for key, value in (POLICY | changes).items()]
    columns = [
        *("[columns.age]", 'csv = "people.csv"', 'column = "age"'),
        *("[columns.home]", 'csv = "people.csv"', 'latitude = "age"', 'longitude = "longitude"'),
    ]
    one.site_file.write_text("\n".join([f'name = "{one.name}"', "[policy]", *lines, *columns]))


@dataclasses.dataclass
class DeskCalls:
    """Calls of a relay in the same process."""

    desk: Desk
    people: "RelayedPeople"

    def ask(
        self, route: Route, body: bytes = b"", *, of: str = "", authorization: str = ""
    ) -> bytes:
        self.people.sent.append((route, body))
        if route is Route.REPORT and self.people.lost:
            self.people.lost -= 1
            raise DeploymentError("the cable is out")
        assert not authorization or route is not Route.REPORT
        try:
            if route is Route.HEALTH:
                return b"ok"
            together = {
                Route.REPORT: self.desk.reports,
                Route.ROOT_OF: self.desk.roots,
                Route.CONFIRM: self.desk.take_confirmations,
            }
            if route not in together:
                return self.desk.answer(route, body, self.people.now)
            (answer,) = together[route]([of.encode() or body], self.people.now)
            if isinstance(answer, HttpRefusal):
                raise answer
            return answer
        except HttpRefusal as refusal:
            raise RefusedError(refusal.status, str(refusal)) from None
        except SottovoceError as error:
            raise RefusedError(status_of(error), str(error)) from None

    def close(self) -> None:
        """Nothing is open."""


class RelayedPeople:
    """Two operators and clients who answer while the collector waits.

    `sent` has what was sent to the relay, `told` what each client said last.
    """

    def __init__(
        self,
        operators: Operators,
        tables: Mapping[str, Sequence[object]],
        desk: Desk,
        patch: pytest.MonkeyPatch,
        **policy: Any,
    ) -> None:
        self.operators, self.now = operators, time.time()
        self.sent: list[tuple[Route, bytes]] = []
        self.told: dict[str, str] = {}
        self.lost = 0  # How many of the next reports do not reach the relay.
        self._calls = cast(RelayCalls, DeskCalls(desk, self))
        clock = types.SimpleNamespace(time=lambda: self.now, monotonic=lambda: self.now)
        for module in (answering, collecting, device, participant, relay_answers):
            patch.setattr(module, "time", clock)
        patch.setattr(relay_asking, "open_collector", self._open_collector)
        patch.setattr(relay_asking, "reach_relay", lambda _: None)
        self.devices = people_of(operators, tables, **policy)
        self.participants = {one.name: self._participant(one) for one in self.devices}
        self._asked = 0

    def _participant(self, one: DeviceFolder) -> Participant:
        link = RelayLink(one)
        link._calls = self._calls
        return Participant(link, partial(read_site, one.site_file))

    @contextlib.contextmanager
    def _open_collector(self, folder: CollectorFolder, **_: Any) -> Iterator[CollectorLink]:
        with contextlib.closing(StateFile(folder.state_folder / STATE_NAME)) as state:
            link = CollectorLink(folder, state, wait=self.wait)
            link._calls = self._calls
            yield link

    def wait(self, seconds: float) -> None:
        """Let all clients look at the relay a few times, and then let time pass."""
        for name, one in [*self.participants.items()] * 3:
            try:
                told = one.look()
            except SottovoceError as error:
                told = str(error)
            if told:
                self.told[name] = told
        self.now += seconds

    def ask(self, asked: Question, by: str, **changes: Any) -> dict[str, Any]:
        self._asked += 1
        about = "home" if asked.kind == "location" else "age"
        given = {"question": to_json(asked), "about": about, "channel": by, **changes}
        return ask_through_relay(self.operators.collector, self.folder(), **given)

    def folder(self) -> Path:
        """The folder of the newest question."""
        return self.operators.collector.runs_folder / str(self._asked)

    def events(self, folder: Path) -> list[Any]:
        """What a client, or the collector in a question's folder, has charged."""
        with Ledger(folder / LEDGER_NAME) as ledger:
            assert ledger.verify() == []
            history = ledger.history_of_all(Unit.SAMPLE)
            return [event for event, count in history for _ in range(count)]


@contextlib.contextmanager
def relayed_people(
    folder: Path, tables: Mapping[str, Sequence[object]], patch: pytest.MonkeyPatch, **policy: Any
) -> Iterator[RelayedPeople]:
    """Make operators and clients, with an open relay."""
    operators = create_operators(folder)
    with open_desk(operators.relay) as desk:
        yield RelayedPeople(operators, tables, desk, patch, **policy)
