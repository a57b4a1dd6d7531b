"""One key, one input, one charge: ways around it, each once a bug."""

import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike
from one_message import privatise_one
from watched_encoding import watch_encoding

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import ParameterError, SottovoceError, WireError
from sottovoce.core.randomness import SeededRandomness, SystemRandomness
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import PendingCharge
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.mechanism import LevelCodes, Mechanism
from sottovoce.mechanisms.no_privacy import NoPrivacy
from sottovoce.protocol.client import PrivatizationRequest, privatize
from sottovoce.protocol.message import HEADER_BYTES, Envelope
from sottovoce.protocol.plan import ClientPlan, RoundPlan
from sottovoce.protocol.server import RoundServer

Z = Adjacency.ZERO_OUT


def gh(radius: float = 1.0, levels: int = 2, noise: float = 0.25) -> GaussHermite:
    return GaussHermite(
        input_domain=L2Ball(dimension=64, radius=radius),
        levels=levels,
        noise_multiplier=noise,
    )


def plan_of(mechanism: Mechanism, round_number: int = 1) -> RoundPlan:
    part = ClientPlan(client="ada", mechanism=mechanism, weight=1.0)
    return RoundPlan(unit=Unit.CLIENT, run="run", round=round_number, adjacency=Z, clients=(part,))


def ask(plan: RoundPlan, values: ArrayLike, uplink: int = 0) -> PrivatizationRequest:
    return PrivatizationRequest(part=plan.clients[0], uplink=uplink, values=values)


VALUES = np.full(64, 0.1)


def test_a_keystream_serves_one_mechanism_only(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db", create=True) as ledger:
        out = set()
        for radius in (1.0, 4.0):  # the same event, the same input, another tilt
            plan = plan_of(gh(radius))
            message = privatise_one(plan, ask(plan, VALUES), ledger, SeededRandomness(1))
            out.add(message[HEADER_BYTES:])
            ledger.discard_messages("run", before_round=2)
        assert len(out) <= len(list(ledger.rows()))


@pytest.mark.parametrize("uplink", [256, -1])
def test_a_request_that_can_never_be_sealed_is_not_charged(tmp_path: Path, uplink: int) -> None:
    plan = plan_of(gh())
    with Ledger(tmp_path / "l.db", create=True) as ledger:
        with pytest.raises(ParameterError):
            privatise_one(plan, ask(plan, VALUES, uplink), ledger, SystemRandomness())
        assert list(ledger.rows()) == []


def test_others_can_charge_while_a_cohort_is_being_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(*_: object) -> None:
        db = sqlite3.connect(tmp_path / "l.db", timeout=0.1)
        db.execute("BEGIN IMMEDIATE")
        db.close()

    watch_encoding(monkeypatch, watch)
    plan = plan_of(gh())
    with Ledger(tmp_path / "l.db", create=True) as ledger:
        privatise_one(plan, ask(plan, VALUES), ledger, SystemRandomness())


def test_the_same_request_twice_in_a_cohort_is_refused_by_name(
    tmp_path: Path,
) -> None:
    plan = plan_of(gh())
    with Ledger(tmp_path / "l.db", create=True) as ledger:
        with pytest.raises(ParameterError):
            privatize(plan, [ask(plan, VALUES)] * 2, ledger, SeededRandomness(1))
        assert list(ledger.rows()) == []


def test_an_envelope_without_coordinates_is_refused() -> None:
    with pytest.raises(SottovoceError):
        Envelope(
            parameter_hash=bytes(16),
            round=0,
            uplink=0,
            dimension=0,
            code_format=LevelCodes(levels=2),
        )


def test_a_server_of_another_dimension_than_its_clients_is_refused() -> None:
    plan = plan_of(NoPrivacy(input_domain=L2Ball(dimension=1, radius=1.0)))
    with pytest.raises(SottovoceError):
        RoundServer(plan, dimension=3)


def test_the_input_that_is_encoded_is_the_one_that_was_committed_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = VALUES.copy()
    charge = Ledger.charge_all

    def meanwhile(self: Ledger, dues: Sequence[PendingCharge]) -> object:
        done = charge(self, dues)
        thread = threading.Thread(target=lambda: values.fill(-0.1))  # the trainer goes on
        thread.start()
        thread.join()
        return done

    seen: list[bytes] = []
    monkeypatch.setattr(Ledger, "charge_all", meanwhile)
    watch_encoding(monkeypatch, lambda given, _: seen.append(given.tobytes()))
    plan = plan_of(gh())
    with Ledger(tmp_path / "l.db", create=True) as ledger:
        privatise_one(plan, ask(plan, values), ledger, SeededRandomness(1))
    assert seen == [VALUES.tobytes()]


@pytest.mark.parametrize("other", [("run", "bob"), ("another", "ada")])
def test_a_message_passes_neither_for_another_clients_nor_for_another_runs(
    tmp_path: Path, other: tuple[str, str]
) -> None:
    plan = plan_of(gh())
    with Ledger(tmp_path / "l.db", create=True) as ledger:
        message = privatise_one(plan, ask(plan, VALUES), ledger, SystemRandomness())
    run, client = other
    part = replace(plan.clients[0], client=client)
    server = RoundServer(replace(plan, run=run, clients=(part,)), dimension=64)
    with pytest.raises(WireError, match="hash of the public parameters"):
        server.receive(client, message)
