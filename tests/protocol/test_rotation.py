"""Rounds with a rotation: what is encoded is rotated, what comes out is not."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from one_message import privatise_one
from watched_encoding import watch_encoding

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L1Ball, L2Ball
from sottovoce.core.errors import LedgerError, ParameterError, WireError
from sottovoce.core.randomness import SeededRandomness, SystemRandomness
from sottovoce.ledger.ledger import Ledger
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.laplace import Laplace
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.no_privacy import NoPrivacy
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.protocol.client import PrivatizationRequest
from sottovoce.protocol.plan import ClientPlan, RoundPlan
from sottovoce.protocol.server import RoundServer

DIMENSION = 100
BALL = L2Ball(dimension=DIMENSION, radius=1.0)
EXACT = NoPrivacy(input_domain=BALL)
PRIVATE = GaussHermite(input_domain=BALL, levels=4, noise_multiplier=2.0)
SPIKE = np.eye(1, DIMENSION, 3)[0]
ROTATION = Rotation.of_round("run", 1, DIMENSION)


def a_plan(mechanism: Mechanism, rotation: Rotation | None = ROTATION) -> RoundPlan:
    parts = tuple(
        ClientPlan(client=name, mechanism=mechanism, weight=weight)
        for name, weight in (("ada", 1.0), ("bob", 3.0))
    )
    return RoundPlan(
        unit=Unit.CLIENT,
        run="run",
        round=1,
        adjacency=Adjacency.ZERO_OUT,
        clients=parts,
        rotation=rotation,
    )


def ask(plan: RoundPlan, values: ArrayLike, client: int = 0) -> PrivatizationRequest:
    return PrivatizationRequest(part=plan.clients[client], uplink=0, values=values)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[NDArray[np.float64]]:
    """Every vector that GaussHermite encodes."""
    seen: list[NDArray[np.float64]] = []
    watch_encoding(monkeypatch, lambda values, _: seen.append(np.array(values)))
    return seen


def test_the_servers_mean_is_that_of_the_updates_themselves(ledger: Ledger) -> None:
    plan = a_plan(EXACT)
    updates = [0.5 * SPIKE, np.full(DIMENSION, 0.05)]
    server = RoundServer(plan, dimension=DIMENSION)
    assert server.result() is None
    for number, update in enumerate(updates):
        message = privatise_one(plan, ask(plan, update, number), ledger, SystemRandomness())
        server.receive(plan.clients[number].client, message)
    result = server.result()
    assert result is not None
    # Sent as float32.
    np.testing.assert_allclose(result, (updates[0] + 3.0 * updates[1]) / 4.0, atol=1e-7)


@pytest.mark.parametrize("records", [1, 50])
def test_what_is_encoded_is_the_projected_update_rotated(
    ledger: Ledger, encoded: list[NDArray[np.float64]], records: int
) -> None:
    mechanism = replace(PRIVATE, input_domain=replace(BALL, records=records))
    plan = a_plan(mechanism)
    privatise_one(plan, ask(plan, 7.0 * SPIKE), ledger, SystemRandomness())
    (used,) = encoded
    assert np.array_equal(used, ROTATION.forward(BALL.project(7.0 * SPIKE)))
    assert np.abs(used).max() < 0.6
    assert np.linalg.norm(used) <= 1.0


def test_a_spike_comes_through_one_bit_only_if_it_is_rotated(ledger: Ledger) -> None:
    """sigma = C/2: a spike is bent to .5 tanh 2 = .48 of itself; rotated, next to nothing is."""
    mechanism = GaussHermite(input_domain=BALL, levels=2, noise_multiplier=0.5)
    kept = {}
    for name, rotation in (("plain", None), ("rotated", ROTATION)):
        start = BALL.project(SPIKE)
        values = start if rotation is None else rotation.forward(start)
        mean = mechanism.law(values).mean()
        kept[name] = float((mean if rotation is None else rotation.inverse(mean))[3])
    assert kept["plain"] < 0.5
    assert kept["rotated"] > 0.95


@pytest.mark.parametrize(
    "other", [None, Rotation.of_round("run", 2, DIMENSION), Rotation(bytes(32), DIMENSION)]
)
def test_a_message_under_another_rotation_is_refused(
    ledger: Ledger, other: Rotation | None
) -> None:
    plan = a_plan(PRIVATE)
    message = privatise_one(plan, ask(plan, SPIKE), ledger, SystemRandomness())
    server = RoundServer(a_plan(PRIVATE, other), dimension=DIMENSION)
    with pytest.raises(WireError, match="hash of the public parameters"):
        server.receive("ada", message)
    with pytest.raises(LedgerError, match="other parameters"):
        privatise_one(a_plan(PRIVATE, other), ask(plan, SPIKE), ledger, SystemRandomness())


def test_a_lost_message_is_repeated_for_the_same_rotation_and_no_other(ledger: Ledger) -> None:
    """Another rotation is another input: the keystream that served the first must not serve it."""
    plan, randomness = a_plan(PRIVATE), SeededRandomness(4)
    first = privatise_one(plan, ask(plan, SPIKE), ledger, randomness)
    ledger.discard_messages("run", before_round=2)
    assert privatise_one(plan, ask(plan, SPIKE), ledger, randomness) == first
    assert ledger.num_charges == 1
    ledger.discard_messages("run", before_round=2)
    other = a_plan(PRIVATE, Rotation(bytes(32), DIMENSION))
    privatise_one(other, ask(other, SPIKE), ledger, randomness)
    assert ledger.num_charges == 2


@pytest.mark.parametrize(
    "mechanism",
    [
        GaussHermite(input_domain=L2Ball(dimension=99, radius=1.0), levels=4, noise_multiplier=1.0),
        Laplace(input_domain=L1Ball(dimension=DIMENSION, radius=1.0), noise_multiplier=1.0),
    ],
    ids=["dimension", "L1 ball"],
)
def test_a_rotation_that_does_not_fit_is_refused(mechanism: Mechanism) -> None:
    with pytest.raises(ParameterError, match="L2Ball"):
        a_plan(mechanism)
