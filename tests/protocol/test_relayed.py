"""Updates of clients that go through a relay: what is charged, refused and sent again."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from two_servers import CONTENT, World, world_in

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
from sottovoce.ledger.ledger import Ledger
from sottovoce.mechanisms.clamped_sign import ClampedSign
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.protocol.channels.channel import terms_of
from sottovoce.protocol.channels.secure_sum import SecureSum
from sottovoce.protocol.channels.shuffler import Shuffler
from sottovoce.protocol.relayed import Party, canonical_parameters
from sottovoce.protocol.secure.encoding import Protocol

DIMENSION = 16
MECHANISM = ClampedSign(
    input_domain=L2Ball(radius=1.0, dimension=DIMENSION), noise_multiplier=0.5, logit_bound=1.0
)
UPDATE = np.full(DIMENSION, 0.1)


class Link:
    """A client's way to a relay in this process, which keeps what was sent."""

    def __init__(self, world: World, name: str, **policy: Any) -> None:
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
def world(tmp_path: Path) -> Iterator[World]:
    with world_in(tmp_path) as made:
        # Certificates that hold now; those of the helper end in 1970.
        for name in made.names:
            made.relay.register(_lasting(made, name), int(time.time()))
        made.admission = lambda name, **changed: _certificate(made, name)  # type: ignore[method-assign]
        yield made


def _certificate(world: World, name: str) -> Any:
    return World.admission(world, name, valid_until=int(time.time()) + 10_000)


def _lasting(world: World, name: str) -> bytes:
    content: bytes = _certificate(world, name).to_bytes()
    return content


def announce(world: World, *, payload_bytes: int = 0, **changed: Any) -> None:
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


def client_of(world: World, name: str, **changed: Any) -> Client:
    return Client(name, **{"mechanism": MECHANISM, "ledger": world.ledger(name), **changed})


def test_a_sum_is_charged_for_the_honest_clients_that_the_announcement_guarantees(
    world: World,
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


def test_a_shuffled_message_is_the_packed_codes_and_charged_as_shuffled(world: World) -> None:
    asked = {"protocol": Protocol.SHUFFLER, "adjacency": "replace-one"}
    announce(world, payload_bytes=DIMENSION // 8, **asked)
    expected = terms_of(Shuffler(minimum_clients=2), Adjacency.REPLACE_ONE)(MECHANISM)
    for name in world.names:
        client = client_of(world, name, adjacency="replace-one")
        client.send_through(Link(world, name), UPDATE)
        (charge,) = world.ledger(name).history(name)
        assert charge == (expected, 1)


def test_asked_again_a_client_sends_the_same_bytes_and_charges_nothing(world: World) -> None:
    announce(world)
    name = world.names[0]
    link, client = Link(world, name), client_of(world, name)
    client.send_through(link, UPDATE)
    client.send_through(link, -UPDATE)
    assert link.sent[0] == link.sent[1]
    assert world.ledger(name).num_charges == 1


def test_a_new_attempt_draws_fresh_codes_and_is_a_charge_of_its_own(world: World) -> None:
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
    world: World, changed: dict[str, Any], field: str
) -> None:
    announce(world, **changed)
    name = world.names[0]
    link = Link(world, name)
    with pytest.raises(WireError, match=f"another '{field}'"):
        client_of(world, name).send_through(link, UPDATE)
    assert (world.ledger(name).num_charges, link.sent) == (0, [])


def test_nothing_is_charged_for_what_cannot_be_sent(world: World) -> None:
    announce(world)
    name = world.names[0]
    link, client = Link(world, name), client_of(world, name)
    with pytest.raises(DomainError):
        client.send_through(link, np.full(DIMENSION, np.nan))
    with pytest.raises(PolicyError, match="fewer than 5 honest"):
        client.send_through(Link(world, name, honest=5), UPDATE)
    link.content = b"another model"
    with pytest.raises(WireError, match="content that was announced"):
        client.send_through(link, UPDATE)
    assert world.ledger(name).num_charges == 0


def test_no_plain_message_is_encoded_under_the_charge_of_a_hidden_one(world: World) -> None:
    announce(world)
    name = world.names[0]
    client = client_of(world, name, run="run")
    client.send_through(Link(world, name), UPDATE)
    with pytest.raises(LedgerError):
        client.send(UPDATE, round=1)
    assert world.ledger(name).num_charges == 1


def test_a_client_without_budget_takes_part_in_nothing(world: World) -> None:
    announce(world)
    name = world.names[0]
    link = Link(world, name)
    client = client_of(world, name, budget=Budget(epsilon=0.01, delta=1e-5))
    for _ in range(2):
        with pytest.raises(BudgetExhaustedError):
            client.send_through(link, UPDATE)
    assert (world.ledger(name).num_charges, link.sent) == (0, [])


def test_a_mechanism_whose_sums_have_no_price_is_refused(world: World) -> None:
    ball = L2Ball(radius=1.0, dimension=DIMENSION)
    other = GaussHermite(input_domain=ball, levels=4, noise_multiplier=5.0)
    announce(world, mechanism=canonical_parameters(other), levels=4)
    name = world.names[0]
    link = Link(world, name)
    with pytest.raises(PrivacyError, match="clamped one-bit codes only"):
        client_of(world, name, mechanism=other).send_through(link, UPDATE)
    assert (world.ledger(name).num_charges, link.sent) == (0, [])
