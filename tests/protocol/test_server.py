"""The server's side: the right mean of what was asked for, in the memory of a few vectors."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from one_message import privatise_one

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball, Vector
from sottovoce.core.errors import WireError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.ledger.ledger import Ledger
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.no_privacy import NoPrivacy
from sottovoce.protocol.client import PrivatizationRequest
from sottovoce.protocol.message import HEADER_BYTES, open_sealed, seal
from sottovoce.protocol.plan import ClientPlan, RoundPlan
from sottovoce.protocol.server import RoundServer

DIMENSION = 16
BALL = L2Ball(dimension=DIMENSION, radius=8.0)
EXACT = NoPrivacy(input_domain=BALL)
PRIVATE = GaussHermite(input_domain=BALL, levels=4, noise_multiplier=1.0)
WEIGHTS = {"ada": 1.0, "bob": 2.5, "carl": 0.25}


def a_plan(mechanism: Mechanism = EXACT, round_number: int = 1) -> RoundPlan:
    parts = tuple(
        ClientPlan(client=name, mechanism=mechanism, weight=weight)
        for name, weight in WEIGHTS.items()
    )
    return RoundPlan(
        unit=Unit.CLIENT, run="run", round=round_number, adjacency=Adjacency.ZERO_OUT, clients=parts
    )


def update_of(client: str) -> Vector:
    """Multiples of 1/8, which float32 holds exactly."""
    start = sorted(WEIGHTS).index(client)
    return (np.arange(DIMENSION) + start) / 8.0 - 1.0


def part_of(plan: RoundPlan, client: str) -> ClientPlan:
    (part,) = (part for part in plan.clients if part.client == client)
    return part


Send = Callable[..., bytes]


@pytest.fixture
def send(tmp_path: Path) -> Iterator[Send]:
    """A client that really charges, encodes and seals."""
    with Ledger(tmp_path / "ledger.db", create=True) as ledger:

        def message(plan: RoundPlan, client: str, uplink: int = 0) -> bytes:
            request = PrivatizationRequest(
                part=part_of(plan, client), uplink=uplink, values=update_of(client)
            )
            return privatise_one(plan, request, ledger, SeededRandomness(3))

        yield message


def state_of(server: RoundServer) -> tuple[int, int, int, bytes | None]:
    result = server.result()
    return (
        server.received,
        server.payload_bytes,
        server.total_bytes,
        None if result is None else result.tobytes(),
    )


# -- the mean ------------------------------------------------------------------------------


def test_nothing_received_is_no_result(send: Send) -> None:
    server = RoundServer(a_plan(), dimension=DIMENSION)
    assert server.result() is None
    assert server.received == server.payload_bytes == server.total_bytes == 0


def test_a_single_answer_is_its_own_mean_whatever_its_weight(send: Send) -> None:
    for client in WEIGHTS:
        plan = a_plan()
        server = RoundServer(plan, dimension=DIMENSION)
        server.receive(client, send(plan, client))
        result = server.result()
        assert result is not None
        np.testing.assert_allclose(result, update_of(client), rtol=1e-15)


@pytest.mark.parametrize("answering", [("ada", "bob", "carl"), ("carl", "ada"), ("bob", "carl")])
def test_the_mean_weighs_those_who_answered_by_the_plans_weights(
    send: Send, answering: tuple[str, ...]
) -> None:
    plan = a_plan()
    server = RoundServer(plan, dimension=DIMENSION)
    for client in answering:
        server.receive(client, send(plan, client))
    expected = np.average(
        [update_of(client) for client in answering],
        axis=0,
        weights=[WEIGHTS[client] for client in answering],
    )
    result = server.result()
    assert result is not None
    assert server.received == len(answering)
    np.testing.assert_allclose(result, expected, rtol=1e-14, atol=1e-15)


def test_private_messages_are_decoded_by_each_clients_own_mechanism(send: Send) -> None:
    # Different sigmas: decoding all with one of them would be wrong by the ratio.
    parts = tuple(
        ClientPlan(
            client=name,
            mechanism=GaussHermite(input_domain=BALL, levels=4, noise_multiplier=weight),
            weight=weight,
        )
        for name, weight in WEIGHTS.items()
    )
    plan = RoundPlan(
        unit=Unit.CLIENT, run="run", round=1, adjacency=Adjacency.ZERO_OUT, clients=parts
    )
    server = RoundServer(plan, dimension=DIMENSION)
    total = np.zeros(DIMENSION)
    for part in parts:
        message = send(plan, part.client)
        server.receive(part.client, message)
        codes = open_sealed(message, plan.envelope(part, 0))
        total += part.weight * part.mechanism.decode(codes)
    result = server.result()
    assert result is not None
    np.testing.assert_allclose(result, total / sum(WEIGHTS.values()), rtol=1e-14, atol=1e-14)


def test_asking_for_the_result_early_does_not_disturb_it(send: Send) -> None:
    plan = a_plan()
    curious, patient = (RoundServer(plan, dimension=DIMENSION) for _ in range(2))
    for client in WEIGHTS:
        message = send(plan, client)
        curious.receive(client, message)
        patient.receive(client, message)
        early = curious.result()
        assert early is not None
        early[:] = 99.0  # the caller's copy, not the server's sum
    assert state_of(curious) == state_of(patient)


def test_each_uplink_has_its_own_server(send: Send) -> None:
    plan = a_plan()
    second = RoundServer(plan, dimension=DIMENSION, uplink=1)
    with pytest.raises(WireError, match="uplink 0, expected 1"):
        second.receive("ada", send(plan, "ada", 0))
    second.receive("ada", send(plan, "ada", 1))
    assert second.received == 1


# -- bytes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("mechanism", "payload"), [(EXACT, 64), (PRIVATE, 4)])
def test_bytes_are_counted_as_payload_and_as_total(
    send: Send, mechanism: Mechanism, payload: int
) -> None:
    plan = a_plan(mechanism)
    server = RoundServer(plan, dimension=DIMENSION)
    sent = 0
    for count, client in enumerate(WEIGHTS, start=1):
        message = send(plan, client)
        sent += len(message)
        server.receive(client, message)
        assert server.payload_bytes == count * payload
        assert server.total_bytes == count * (payload + HEADER_BYTES) == sent


# -- what is turned away -------------------------------------------------------------------


@pytest.fixture
def half_way(send: Send) -> tuple[RoundPlan, RoundServer]:
    """A server that has heard from ada and waits for bob and carl."""
    plan = a_plan(PRIVATE)
    server = RoundServer(plan, dimension=DIMENSION)
    server.receive("ada", send(plan, "ada"))
    return plan, server


def test_a_second_answer_is_refused_and_changes_nothing(
    send: Send, half_way: tuple[RoundPlan, RoundServer]
) -> None:
    plan, server = half_way
    before = state_of(server)
    with pytest.raises(WireError, match="client 'ada' has answered round 1 already"):
        server.receive("ada", send(plan, "ada"))
    assert state_of(server) == before


def test_a_client_that_was_not_asked_is_refused_and_changes_nothing(
    send: Send, half_way: tuple[RoundPlan, RoundServer]
) -> None:
    plan, server = half_way
    before = state_of(server)
    with pytest.raises(WireError, match="client 'mallory' was not asked in round 1"):
        server.receive("mallory", send(plan, "bob"))
    assert state_of(server) == before


def wrong_messages(plan: RoundPlan, send: Send) -> dict[str, bytes]:
    """What could come in bob's name instead of his message, each wrong in its own way."""
    bob = part_of(plan, "bob")
    right = send(plan, "bob")
    louder = GaussHermite(input_domain=BALL, levels=4, noise_multiplier=2.0)
    wider = GaussHermite(
        input_domain=L2Ball(dimension=DIMENSION + 1, radius=8.0), levels=4, noise_multiplier=1.0
    )
    finer = GaussHermite(input_domain=BALL, levels=16, noise_multiplier=1.0)
    three = GaussHermite(input_domain=BALL, levels=3, noise_multiplier=1.0)  # two bits as well

    def zeros(mechanism: Mechanism, round_number: int = 1, uplink: int = 0) -> bytes:
        part = ClientPlan(client="bob", mechanism=mechanism, weight=1.0)
        codes = np.zeros(mechanism.input_domain.dimension, dtype=np.uint8)
        return seal(codes, a_plan(mechanism, round_number).envelope(part, uplink))

    assert open_sealed(right, plan.envelope(bob, 0)).shape == (DIMENSION,)
    return {
        "empty": b"",
        "noise": bytes(len(right)),
        "cut": right[:-1],
        "long": right + b"\x00",
        "damaged": right[:-1] + bytes([right[-1] ^ 1]),
        "round": zeros(PRIVATE, round_number=2),
        "uplink": zeros(PRIVATE, uplink=1),
        "sigma": zeros(louder),
        "dimension": zeros(wider),
        "bits": zeros(finer),
        "levels": zeros(three),
    }


def test_a_wrong_message_is_refused_changes_nothing_and_leaves_room_for_the_right_one(
    send: Send, half_way: tuple[RoundPlan, RoundServer]
) -> None:
    plan, server = half_way
    before = state_of(server)
    for message in wrong_messages(plan, send).values():
        with pytest.raises(WireError):
            server.receive("bob", message)
        assert state_of(server) == before
    server.receive("bob", send(plan, "bob"))
    assert server.received == 2


def test_a_wrong_first_message_leaves_no_result(send: Send) -> None:
    plan = a_plan(PRIVATE)
    server = RoundServer(plan, dimension=DIMENSION)
    for message in wrong_messages(plan, send).values():
        with pytest.raises(WireError):
            server.receive("bob", message)
        assert server.result() is None


def test_the_weight_comes_from_the_plan_and_not_from_the_message(send: Send) -> None:
    # The same bytes under two plans: only the plan's weights can make the difference.
    light = a_plan()
    heavy = RoundPlan(
        unit=Unit.CLIENT,
        run="run",
        round=1,
        adjacency=Adjacency.ZERO_OUT,
        clients=tuple(
            ClientPlan(
                client=p.client, mechanism=p.mechanism, weight=10.0 if p.client == "bob" else 1
            )
            for p in light.clients
        ),
    )
    messages = {client: send(light, client) for client in ("ada", "bob")}
    for plan, share in ((light, 2.5 / 3.5), (heavy, 10.0 / 11.0)):
        server = RoundServer(plan, dimension=DIMENSION)
        for client, message in messages.items():
            server.receive(client, message)
        result = server.result()
        assert result is not None
        expected = (1.0 - share) * update_of("ada") + share * update_of("bob")
        np.testing.assert_allclose(result, expected, rtol=1e-14, atol=1e-15)


# -- memory --------------------------------------------------------------------------------


def test_memory_is_a_few_vectors_however_many_clients_answer() -> None:
    clients, dimension = 200, 20_000
    vector_bytes = 8 * dimension
    mechanism = GaussHermite(
        input_domain=L2Ball(dimension=dimension, radius=1.0), levels=16, noise_multiplier=1.0
    )
    plan = RoundPlan(
        unit=Unit.CLIENT,
        run="run",
        round=1,
        adjacency=Adjacency.ZERO_OUT,
        clients=tuple(
            ClientPlan(client=f"client {n}", mechanism=mechanism, weight=1.0)
            for n in range(clients)
        ),
    )
    codes = np.zeros(dimension, dtype=np.uint8)

    def answer(server: RoundServer, parts: tuple[ClientPlan, ...]) -> None:
        for part in parts:  # each message is made, received and forgotten
            server.receive(part.client, seal(codes, plan.envelope(part, 0)))

    answer(RoundServer(plan, dimension=dimension), plan.clients[:1])  # caches are filled
    gc.collect()
    tracemalloc.start()
    try:
        server = RoundServer(plan, dimension=dimension)
        answer(server, plan.clients[:10])
        gc.collect()
        after_ten, _ = tracemalloc.get_traced_memory()
        answer(server, plan.clients[10:])
        gc.collect()
        after_all, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert server.received == clients
    # 190 further messages of 10 kB each would be 12 vectors, the updates themselves 190.
    assert after_all - after_ten < vector_bytes / 4
    assert peak < 8 * vector_bytes
