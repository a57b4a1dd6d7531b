"""Between clients and server: who was asked, once; no names after it, and no order."""

import inspect
import itertools
from collections import Counter

import numpy as np
import pytest
from one_message import privatise_one

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import ParameterError, PrivacyError, WireError
from sottovoce.core.randomness import SeededRandomness, SystemRandomness
from sottovoce.ledger.ledger import Ledger
from sottovoce.mechanisms.cldp import Cldp
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.privacy.compositions import compose_repeated
from sottovoce.privacy.events import basic_counts
from sottovoce.protocol.channels.channel import Channel, Direct, terms_of
from sottovoce.protocol.channels.secure_sum import SecureSum
from sottovoce.protocol.channels.shuffler import Shuffler
from sottovoce.protocol.client import PrivatizationRequest
from sottovoce.protocol.message import HEADER_BYTES, open_sealed, seal
from sottovoce.protocol.plan import ClientPlan, RoundPlan
from sottovoce.protocol.server import (
    AnonymousServer,
    RoundServer,
    ShuffledRound,
    ShufflerStage,
    open_round,
)

DIMENSION = 6
CLDP = Cldp(input_domain=L2Ball(dimension=DIMENSION, radius=1.0), epsilon=1.0)
NAMES = ("ada", "bob", "carl", "dora")
CHANNEL = Shuffler(minimum_clients=3)
R = Adjacency.REPLACE_ONE


def a_plan(
    channel: Channel = CHANNEL,
    *,
    rotation: Rotation | None = None,
    names: tuple[str, ...] = NAMES,
    adjacency: Adjacency = R,
) -> RoundPlan:
    parts = tuple(ClientPlan(client=n, mechanism=CLDP, weight=2.0) for n in names)
    return RoundPlan(
        unit=Unit.CLIENT,
        run="run",
        round=1,
        adjacency=adjacency,
        clients=parts,
        channel=channel,
        rotation=rotation,
    )


def part_of(plan: RoundPlan, client: str) -> ClientPlan:
    (part,) = (part for part in plan.clients if part.client == client)
    return part


def send(plan: RoundPlan, ledger: Ledger, client: str) -> bytes:
    values = np.linspace(-0.2, 0.2, DIMENSION) * (1 + NAMES.index(client))
    request = PrivatizationRequest(part=part_of(plan, client), uplink=0, values=values)
    return privatise_one(plan, request, ledger, SeededRandomness(5))


def with_code(plan: RoundPlan, client: str, code: int, uplink: int = 0) -> bytes:
    codes = np.full(DIMENSION, code, dtype=CLDP.code_format().dtype)
    return seal(codes, plan.envelope(part_of(plan, client), uplink))


# -- what the server can know --------------------------------------------------------------


def test_equal_codes_are_equal_bytes_whichever_client_sends_them() -> None:
    plan = a_plan()
    assert len({with_code(plan, name, 3) for name in NAMES}) == 1
    assert len({with_code(plan, name, 3)[:HEADER_BYTES] for name in NAMES}) == 1
    direct = a_plan(Direct())
    assert len({with_code(direct, name, 3) for name in NAMES}) == len(NAMES)


def test_what_a_client_really_sends_has_no_name_in_it(ledger: Ledger) -> None:
    """Header and size are the same for all; only codes differ, and they are the mechanism's."""
    plan = a_plan()
    messages = [send(plan, ledger, name) for name in NAMES]
    assert len({message[:36] for message in messages}) == 1  # what follows is a checksum
    assert len({len(message) for message in messages}) == 1
    for message, name in itertools.product(messages, NAMES):
        codes = open_sealed(message, plan.envelope(part_of(plan, name), 0))
        assert seal(codes, plan.envelope(plan.clients[0], 0)) == message


def test_the_server_takes_no_name() -> None:
    assert list(inspect.signature(AnonymousServer.receive).parameters) == ["self", "message"]
    with pytest.raises(ParameterError, match="hides senders"):
        RoundServer(a_plan(), dimension=DIMENSION)
    for channel in (Direct(), SecureSum(minimum_clients=2)):
        plan = a_plan(channel)
        with pytest.raises(ParameterError, match="carry their senders"):
            AnonymousServer(plan, dimension=DIMENSION)
        with pytest.raises(ParameterError, match="channel 'shuffler'"):
            ShufflerStage(plan, SystemRandomness())


def test_nothing_of_the_servers_side_depends_on_who_sent_what() -> None:
    """Two rounds in which clients have exchanged their codes: same bytes, in every order drawn."""
    plan, codes = a_plan(), (1, 4, 4, 7)
    seen = []
    for owners in itertools.permutations(NAMES):
        stage = ShufflerStage(plan, SeededRandomness(1))
        for name, code in sorted(zip(owners, codes, strict=True), key=lambda pair: pair[1]):
            stage.receive(name, with_code(plan, name, code))
        seen.append(stage.close())
    assert all(released == seen[0] for released in seen)


def test_every_order_is_as_likely_as_any_other() -> None:
    plan = a_plan(names=NAMES[:3])
    messages = {name: with_code(plan, name, code) for code, name in enumerate(NAMES[:3])}
    orders: Counter[tuple[bytes, ...]] = Counter()
    for seed in range(1200):
        stage = ShufflerStage(plan, SeededRandomness(seed))
        for name, message in messages.items():
            stage.receive(name, message)
        orders[tuple(stage.close())] += 1
    assert len(orders) == 6
    chi_square = sum((count - 200.0) ** 2 / 200.0 for count in orders.values())
    assert chi_square < 25.7  # 5 degrees of freedom: once in 10^4


def test_uplinks_and_rounds_have_orders_of_their_own_and_system_keys_are_fresh() -> None:
    names = tuple(f"client-{number}" for number in range(30))
    plan = a_plan(names=names)

    def order(randomness: SeededRandomness | SystemRandomness, uplink: int) -> list[int]:
        stage = ShufflerStage(plan, randomness, uplink=uplink)
        for code, name in enumerate(names):
            stage.receive(name, with_code(plan, name, code % 12, uplink))
        envelope = plan.envelope(plan.clients[0], uplink)
        return [int(open_sealed(message, envelope)[0]) for message in stage.close()]

    assert order(SeededRandomness(1), 0) == order(SeededRandomness(1), 0)
    assert order(SeededRandomness(1), 0) != order(SeededRandomness(1), 1)
    assert order(SystemRandomness(), 0) != order(SystemRandomness(), 0)


# -- the stage -----------------------------------------------------------------------------


def test_everything_that_was_sent_arrives_and_duplicates_are_legitimate() -> None:
    plan = a_plan()
    stage = ShufflerStage(plan, SystemRandomness())
    for name, code in zip(NAMES, (5, 5, 5, 2), strict=True):
        stage.receive(name, with_code(plan, name, code))
    released = stage.close()
    assert Counter(released) == {
        with_code(plan, "ada", 5): 3,
        with_code(plan, "ada", 2): 1,
    }
    server = AnonymousServer(plan, dimension=DIMENSION)
    for message in released:
        server.receive(message)
    assert server.received == 4
    with pytest.raises(WireError, match="each of the 4 clients"):
        server.receive(released[0])


def test_whichever_client_was_not_asked_or_has_answered_is_turned_away() -> None:
    plan = a_plan()
    stage = ShufflerStage(plan, SystemRandomness())
    with pytest.raises(WireError, match="'eve' was not asked"):
        stage.receive("eve", with_code(plan, "ada", 1))
    stage.receive("ada", with_code(plan, "ada", 1))
    with pytest.raises(WireError, match="'ada' has answered"):
        stage.receive("ada", with_code(plan, "ada", 2))
    assert stage.received == 1


def test_a_marked_message_does_not_pass() -> None:
    plan = a_plan()
    stage = ShufflerStage(plan, SystemRandomness())
    good = with_code(plan, "ada", 1)
    for bad in (good + b"!", good[:-1], good[:7] + b"\1" + good[8:], with_code(plan, "ada", 1, 1)):
        with pytest.raises(WireError):
            stage.receive("ada", bad)
    assert stage.received == 0
    stage.receive("ada", good)


@pytest.mark.parametrize("arrived", [0, 1, 2, 3, 4])
def test_with_fewer_than_the_minimum_nothing_leaves(arrived: int) -> None:
    plan = a_plan()
    stage = ShufflerStage(plan, SystemRandomness())
    for name in NAMES[:arrived]:
        stage.receive(name, with_code(plan, name, 1))
    assert len(stage.close()) == (arrived if arrived >= 3 else 0)


def test_a_round_closes_once_and_a_late_message_is_refused() -> None:
    plan = a_plan()
    stage = ShufflerStage(plan, SystemRandomness())
    for name in NAMES[:3]:
        stage.receive(name, with_code(plan, name, 1))
    stage.close()
    with pytest.raises(WireError, match="late message of 'dora'"):
        stage.receive("dora", with_code(plan, "dora", 1))
    with pytest.raises(WireError, match="released once"):
        stage.close()


# -- the whole round -----------------------------------------------------------------------


@pytest.mark.parametrize("rotation", [None, Rotation.of_round("run", 1, DIMENSION)])
def test_the_result_is_the_mean_of_the_decoded_messages(
    ledger: Ledger, rotation: Rotation | None
) -> None:
    plan = a_plan(rotation=rotation)
    collected = open_round(plan, SystemRandomness(), dimension=DIMENSION)
    assert isinstance(collected, ShuffledRound)
    decoded = []
    for part in plan.clients:
        message = send(plan, ledger, part.client)
        collected.receive(part.client, message)
        decoded.append(CLDP.decode(open_sealed(message, plan.envelope(part, 0))))
    assert collected.received == 4
    assert collected.total_bytes == 4 * len(message)
    assert collected.payload_bytes == 4 * (len(message) - HEADER_BYTES)
    mean = np.mean(decoded, axis=0)
    expected = mean if rotation is None else rotation.inverse(mean)
    result = collected.result()
    assert result is not None
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(collected.result(), result)
    with pytest.raises(WireError):
        collected.receive("ada", message)


def test_too_few_answers_give_no_result(ledger: Ledger) -> None:
    collected = open_round(a_plan(), SystemRandomness(), dimension=DIMENSION)
    for name in NAMES[:2]:
        collected.receive(name, send(a_plan(), ledger, name))
    assert collected.result() is None
    assert collected.received == 2


def test_the_other_channels_have_the_server_that_knows_names() -> None:
    assert isinstance(
        open_round(a_plan(Direct()), SystemRandomness(), dimension=DIMENSION), RoundServer
    )


# -- charges -------------------------------------------------------------------------------


def test_a_message_for_one_channel_does_not_pass_in_another(ledger: Ledger) -> None:
    # Charged for a shuffle of many, it must not be read with its sender.
    message = send(a_plan(), ledger, "ada")
    server = RoundServer(a_plan(Direct()), dimension=DIMENSION)
    with pytest.raises(WireError, match="hash of the public parameters"):
        server.receive("ada", message)
    fewer = ShufflerStage(a_plan(Shuffler(minimum_clients=2)), SystemRandomness())
    with pytest.raises(WireError, match="hash of the public parameters"):
        fewer.receive("ada", message)


def test_a_plan_under_zero_out_charges_nothing(ledger: Ledger) -> None:
    with pytest.raises(PrivacyError, match="replace-one"):
        send(a_plan(adjacency=Adjacency.ZERO_OUT), ledger, "ada")
    assert ledger.num_charges == 0


def test_a_second_attempt_pays_for_both_as_if_they_were_seen(ledger: Ledger) -> None:
    """Where the others repeat theirs, two shuffles differ by this client's two messages alone."""
    plan = a_plan()
    send(plan, ledger, "ada")
    ledger.discard_messages("run", before_round=2)
    request = PrivatizationRequest(part=part_of(plan, "ada"), uplink=0, values=np.zeros(DIMENSION))
    for _ in range(2):  # the second call finds the stored message of attempt 1
        privatise_one(plan, request, ledger, SystemRandomness())
    hidden, seen = terms_of(CHANNEL, R)(CLDP), CLDP.privacy(R)
    assert basic_counts(compose_repeated(ledger.history("ada"))) == {hidden: 1, seen: 2}


def test_the_difference_of_two_shuffles_is_the_clients_two_messages() -> None:
    """What the double charge is for: the order hides nothing of a multiset's change."""
    plan = a_plan()
    shuffles = []
    for own in (1, 9):
        stage = ShufflerStage(plan, SystemRandomness())
        for name, code in zip(NAMES, (own, 2, 3, 4), strict=True):
            stage.receive(name, with_code(plan, name, code))
        shuffles.append(Counter(stage.close()))
    first, second = shuffles
    assert list((first - second).elements()) == [with_code(plan, "ada", 1)]
    assert list((second - first).elements()) == [with_code(plan, "ada", 9)]
