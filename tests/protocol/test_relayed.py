"""Updates of clients that go through a relay: what is charged, refused and sent again."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from two_servers import CONTENT, World

from sottovoce import Budget, Client, GaussHermite, L2Ball
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import (
    BudgetExhaustedError,
    DomainError,
    LedgerError,
    PolicyError,
    PrivacyError,
    WireError,
)
from sottovoce.ledger.journal import Journal
from sottovoce.ledger.ledger import Ledger
from sottovoce.mechanisms.clamped_sign import ClampedSign
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.mechanisms.seeded_step import SeededStep
from sottovoce.protocol.channels.channel import terms_of
from sottovoce.protocol.channels.secure_sum import SecureSum
from sottovoce.protocol.channels.shuffler import Shuffler
from sottovoce.protocol.relayed import Party, canonical_parameters
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.operators import Admission

DIMENSION = 16
MECHANISM = ClampedSign(
    input_domain=L2Ball(radius=1.0, dimension=DIMENSION), noise_multiplier=0.5, logit_bound=1.0
)
UPDATE = np.full(DIMENSION, 0.1)


class LedgerWorld(World):
    """A federation of today, whose clients have ledgers."""

    def __init__(self, folder: Path) -> None:
        self._until = int(time.time()) + 10_000
        self._ledgers: dict[str, Ledger] = {}
        super().__init__(folder)

    def admission(self, name: str, **changed: Any) -> Admission:
        return super().admission(name, valid_until=self._until, **changed)

    def ledger(self, name: str) -> Ledger:
        if name not in self._ledgers:
            self._ledgers[name] = Ledger(self.folder / f"{name}.ledger", create=True)
        return self._ledgers[name]

    def journal(self, name: str) -> Journal:
        return self.ledger(name).journal()

    def close(self) -> None:
        for ledger in self._ledgers.values():
            ledger.close()
        super().close()


class Link:
    """A client's way to a relay in this process, which keeps what was sent."""

    def __init__(self, world: LedgerWorld, name: str, **policy: Any) -> None:
        self._world, self._name, self._policy = world, name, policy
        self.content = CONTENT
        self.sent: list[bytes] = []

    def announcement(self) -> tuple[bytes, bytes]:
        return self._world.relay.announcement(), self.content

    def party(self, protocol: Protocol, ledger: Ledger) -> Party:
        assert ledger is self._world.ledger(self._name)
        if protocol is Protocol.SHUFFLER:
            return self._world.shuffler(self._name, **self._policy)
        return self._world.summer(self._name, **self._policy)

    def send(self, report: bytes) -> None:
        self.sent.append(report)
        self._world.relay.report(report, int(time.time()))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LedgerWorld]:
    made = LedgerWorld(tmp_path)
    for name in made.names:
        made.relay.register(made.admission(name).to_bytes(), int(time.time()))
    yield made
    made.close()


def announce(world: LedgerWorld, *, payload_bytes: int = 0, **changed: Any) -> None:
    now = int(time.time())
    fields = {
        "dimension": DIMENSION,
        "uplinks": 1,
        "mechanism": canonical_parameters(MECHANISM),
        "rotation_seed": Rotation.of_round("run", changed.get("round", 1), DIMENSION).seed,
        **changed,
    }
    confirm_by = now + 200 if payload_bytes else 0
    message = world.collector.announce(
        world.attempt(**fields),
        opens=now - 1,
        closes=now + 100,
        confirm_by=confirm_by,
        payload_bytes=payload_bytes,
    )
    world.relay.announce(message, CONTENT, now)


def client_of(world: LedgerWorld, name: str, **changed: Any) -> Client:
    return Client(name, **{"mechanism": MECHANISM, "ledger": world.ledger(name), **changed})


def test_a_sum_is_charged_for_the_honest_clients_that_the_announcement_guarantees(
    world: LedgerWorld,
) -> None:
    announce(world, threshold=4)
    for name in world.names:
        client_of(world, name).send_through(Link(world, name), UPDATE)
        (charge,) = world.ledger(name).history(name)
        expected = terms_of(SecureSum(minimum_clients=3), Adjacency.ZERO_OUT)(MECHANISM)
        assert charge == (expected, 1)
    frozen = world.relay.frozen(int(time.time()) + 200)
    (total,) = world.collector.release(world.relay.accepted(world.collector.accept(frozen)))
    assert total.shape == (DIMENSION,)
    assert total.max() <= len(world.names)


def test_a_shuffled_message_is_the_packed_codes_and_charged_as_shuffled(world: LedgerWorld) -> None:
    asked = {"protocol": Protocol.SHUFFLER, "adjacency": "replace-one"}
    announce(world, payload_bytes=DIMENSION // 8, **asked)
    expected = terms_of(Shuffler(minimum_clients=2), Adjacency.REPLACE_ONE)(MECHANISM)
    for name in world.names:
        client = client_of(world, name, adjacency="replace-one")
        client.send_through(Link(world, name), UPDATE)
        (charge,) = world.ledger(name).history(name)
        assert charge == (expected, 1)


SEEDS = SeededStep(
    input_domain=L2Ball(radius=1.0, dimension=DIMENSION),
    epsilon=2.0,
    length="kept",
    generator="chacha20-1",
    timing="constant",
)
HIDDEN = {"mechanism": SEEDS, "adjacency": "replace-one"}


def announce_seeds(world: LedgerWorld, protocol: Protocol) -> None:
    announce(
        world,
        payload_bytes=16 if protocol is Protocol.SHUFFLER else 0,
        protocol=protocol,
        adjacency="replace-one",
        levels=2**32,
        bits=32,
        mechanism=canonical_parameters(SEEDS),
    )


def test_a_shuffle_carries_a_seed_of_16_bytes(world: LedgerWorld) -> None:
    announce_seeds(world, Protocol.SHUFFLER)
    name = world.names[0]
    client_of(world, name, **HIDDEN).send_through(Link(world, name), UPDATE)
    assert world.ledger(name).num_charges == 1


def test_a_sum_cannot_carry_seeds(world: LedgerWorld) -> None:
    announce_seeds(world, Protocol.TWO_SERVER_SUM)
    name = world.names[0]
    with pytest.raises(WireError, match="or a shuffle"):
        client_of(world, name, **HIDDEN).send_through(Link(world, name), UPDATE)
    assert world.ledger(name).num_charges == 0


def test_asked_again_a_client_sends_the_same_bytes_and_charges_nothing(world: LedgerWorld) -> None:
    announce(world)
    name = world.names[0]
    link, client = Link(world, name), client_of(world, name)
    client.send_through(link, UPDATE)
    client.send_through(link, -UPDATE)
    assert link.sent[0] == link.sent[1]
    assert world.ledger(name).num_charges == 1


def test_a_new_attempt_draws_fresh_codes_and_is_a_charge_of_its_own(world: LedgerWorld) -> None:
    name = world.names[0]
    link, client = Link(world, name), client_of(world, name)
    for attempt in (1, 2):
        announce(world, attempt=attempt)
        client.send_through(link, UPDATE)
    assert link.sent[0] != link.sent[1]
    ((_, times),) = world.ledger(name).history(name)
    assert times == 2


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"mechanism": "{}"}, "mechanism"),
        ({"dimension": DIMENSION + 1}, "dimension"),
        ({"uplinks": 2}, "uplinks"),
        ({"levels": 4}, "levels"),
        ({"rotation_seed": b""}, "rotation_seed"),
        ({"adjacency": "replace-one"}, "adjacency"),
        ({"unit": "sample"}, "unit"),
    ],
)
def test_an_announcement_of_other_parameters_is_refused_before_the_charge(
    world: LedgerWorld, changed: dict[str, Any], field: str
) -> None:
    announce(world, **changed)
    name = world.names[0]
    link = Link(world, name)
    with pytest.raises(WireError, match=f"another '{field}' than this client: announced is .*has"):
        client_of(world, name).send_through(link, UPDATE)
    assert (world.ledger(name).num_charges, link.sent) == (0, [])


def test_a_collector_cannot_choose_new_terms_by_naming_another_run(world: LedgerWorld) -> None:
    """A budget does not bound what is learned by choosing terms after results were seen."""
    name = world.names[0]
    link, client = Link(world, name), client_of(world, name)

    def announce_run(run: str, **changed: Any) -> None:
        seed = Rotation.of_round(run, 1, DIMENSION).seed
        announce(world, run=run, rotation_seed=seed, **changed)

    announce_run("first")
    client.send_through(link, UPDATE)
    announce_run("second", threshold=4)
    with pytest.raises(PolicyError, match="other terms than those before"):
        client.send_through(link, UPDATE)
    assert (world.ledger(name).num_charges, len(link.sent)) == (1, 1)
    announce_run("third")
    client.send_through(link, UPDATE)
    announce_run("fourth", threshold=4)
    client_of(world, name, run="agreed").send_through(link, UPDATE)
    assert (world.ledger(name).num_charges, len(link.sent)) == (3, 3)


def test_a_payload_of_another_size_is_refused_before_the_charge(world: LedgerWorld) -> None:
    asked = {"protocol": Protocol.SHUFFLER, "adjacency": "replace-one"}
    announce(world, payload_bytes=DIMENSION // 8 + 1, **asked)
    name = world.names[0]
    link = Link(world, name)
    with pytest.raises(WireError, match="another 'payload_bytes'"):
        client_of(world, name, adjacency="replace-one").send_through(link, UPDATE)
    assert (world.ledger(name).num_charges, link.sent) == (0, [])


def test_nothing_is_charged_for_what_cannot_be_sent(world: LedgerWorld) -> None:
    announce(world)
    name = world.names[0]
    link, client = Link(world, name), client_of(world, name)
    with pytest.raises(DomainError):
        client.send_through(link, np.full(DIMENSION, np.nan))
    with pytest.raises(PolicyError, match="fewer than 5 honest"):
        client.send_through(Link(world, name, honest=5), UPDATE)
    with pytest.raises(PolicyError, match="fewer than 2 honest"):
        client.send_through(Link(world, name, colluders=2), UPDATE)
    link.content = b"another model"
    with pytest.raises(WireError, match="content that was announced"):
        client.send_through(link, UPDATE)
    assert world.ledger(name).num_charges == 0


def test_no_plain_message_is_encoded_under_the_charge_of_a_hidden_one(world: LedgerWorld) -> None:
    announce(world)
    name = world.names[0]
    client = client_of(world, name, run="run")
    client.send_through(Link(world, name), UPDATE)
    with pytest.raises(LedgerError):
        client.send(UPDATE, round=1)
    assert world.ledger(name).num_charges == 1


def test_a_client_without_budget_takes_part_in_nothing(world: LedgerWorld) -> None:
    announce(world)
    name = world.names[0]
    link = Link(world, name)
    client = client_of(world, name, budget=Budget(epsilon=0.01, delta=1e-5))
    for _ in range(2):
        with pytest.raises(BudgetExhaustedError):
            client.send_through(link, UPDATE)
    assert (world.ledger(name).num_charges, link.sent) == (0, [])


def test_a_mechanism_whose_sums_have_no_price_is_refused(world: LedgerWorld) -> None:
    ball = L2Ball(radius=1.0, dimension=DIMENSION)
    other = GaussHermite(input_domain=ball, levels=4, noise_multiplier=5.0)
    announce(world, mechanism=canonical_parameters(other), levels=4)
    name = world.names[0]
    link = Link(world, name)
    with pytest.raises(PrivacyError, match="a secure sum reduces epsilon"):
        client_of(world, name, mechanism=other).send_through(link, UPDATE)
    assert (world.ledger(name).num_charges, link.sent) == (0, [])
