"""Secure sums: only sums of clamped bits, only of enough clients, only once; charged as such."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from one_message import privatise_one

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import ParameterError, PrivacyError, WireError
from sottovoce.core.randomness import SeededRandomness, SystemRandomness
from sottovoce.ledger.ledger import Ledger
from sottovoce.mechanisms.clamped_sign import ClampedSign
from sottovoce.mechanisms.discrete_gaussian import DiscreteGaussian
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.packing import PackedCodes
from sottovoce.mechanisms.poisson_binomial import PoissonBinomial
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.privacy import events
from sottovoce.privacy.compositions import compose_repeated
from sottovoce.privacy.events import OneBit, basic_counts
from sottovoce.protocol.channels.channel import Channel, Direct, terms_of
from sottovoce.protocol.channels.secure_sum import SecureSum, check_sum_fits
from sottovoce.protocol.client import PrivatizationRequest
from sottovoce.protocol.message import open_sealed
from sottovoce.protocol.plan import ClientPlan, RoundPlan
from sottovoce.protocol.server import RoundServer

DIMENSION = 50
BALL = L2Ball(dimension=DIMENSION, radius=1.0)
SIGN = ClampedSign(input_domain=BALL, noise_multiplier=0.5, logit_bound=1.0)
Z = Adjacency.ZERO_OUT
NAMES = ("ada", "bob", "carl", "dora")


def a_plan(channel: Channel, *parts: ClientPlan, rotation: Rotation | None = None) -> RoundPlan:
    clients = parts or tuple(ClientPlan(client=n, mechanism=SIGN, weight=2.0) for n in NAMES)
    return RoundPlan(
        unit=Unit.CLIENT,
        run="run",
        round=1,
        adjacency=Z,
        clients=clients,
        channel=channel,
        rotation=rotation,
    )


def send(plan: RoundPlan, ledger: Ledger, client: str) -> bytes:
    (part,) = (part for part in plan.clients if part.client == client)
    values = np.linspace(-0.2, 0.2, DIMENSION) * (1 + NAMES.index(client))
    request = PrivatizationRequest(part=part, uplink=0, values=values)
    return privatise_one(plan, request, ledger, SeededRandomness(5))


# -- events --------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_event_holds_the_shift_the_clamp_and_the_fewest_clients(adjacency: Adjacency) -> None:
    event = terms_of(SecureSum(minimum_clients=30), adjacency)(SIGN)
    local = SIGN.privacy(adjacency)
    assert event == events.SummedBits(
        shift=local.shift,
        dimension=DIMENSION,
        logit_bound=1.0,
        clients=30,
        adjacency=adjacency,
        against_zero=adjacency is Adjacency.ZERO_OUT,
    )
    assert event.local() == dataclasses.replace(local, zero_centered=False)  # sums are not sampled
    assert terms_of(Direct(), adjacency)(SIGN) == local


@pytest.mark.parametrize(
    "mechanism",
    [
        GaussHermite(input_domain=BALL, levels=2, noise_multiplier=1.0),  # bits without a clamp
        GaussHermite(input_domain=BALL, levels=4, noise_multiplier=1.0),
        Gaussian(input_domain=BALL, noise_multiplier=1.0),
    ],
    ids=["one bit", "two bits", "gaussian"],
)
def test_any_other_mechanism_is_refused(mechanism: Mechanism) -> None:
    with pytest.raises(PrivacyError, match=r"for clamped bits and rounded.*'clamped_sign'"):
        terms_of(SecureSum(minimum_clients=3), Z)(mechanism)


@pytest.mark.parametrize("bad", [1, 0, -3, 2.5, True])
def test_a_sum_of_fewer_than_two_is_refused(bad: Any) -> None:
    with pytest.raises(ParameterError, match="minimum_clients"):
        SecureSum(minimum_clients=bad)


def test_unequal_weights_or_mechanisms_are_refused() -> None:
    first = ClientPlan(client="ada", mechanism=SIGN, weight=1.0)
    other = ClampedSign(input_domain=BALL, noise_multiplier=0.6, logit_bound=1.0)
    for second in (
        ClientPlan(client="bob", mechanism=SIGN, weight=2.0),
        ClientPlan(client="bob", mechanism=other, weight=1.0),
    ):
        with pytest.raises(ParameterError, match="same mechanism and weight"):
            a_plan(SecureSum(minimum_clients=2), first, second)
        a_plan(Direct(), first, second)


def test_the_ledger_is_charged_with_the_channels_event(ledger: Ledger) -> None:
    channel = SecureSum(minimum_clients=3)
    send(a_plan(channel), ledger, "ada")
    send(a_plan(Direct()), ledger, "bob")
    assert ledger.history("ada") == [(terms_of(channel, Z)(SIGN), 1)]
    ((event, count),) = ledger.history("bob")
    assert isinstance(event, OneBit)
    assert count == 1
    assert ledger.verify() == []


# -- the trusted server --------------------------------------------------------------------


@pytest.mark.parametrize("rotation", [None, Rotation.of_round("run", 1, DIMENSION)])
def test_the_decoded_sum_is_the_mean_of_the_decoded_messages(
    ledger: Ledger, rotation: Rotation | None
) -> None:
    plan = a_plan(SecureSum(minimum_clients=3), rotation=rotation)
    server = RoundServer(plan, dimension=DIMENSION)
    decoded = []
    for part in plan.clients:
        message = send(plan, ledger, part.client)
        server.receive(part.client, message)
        decoded.append(SIGN.decode(open_sealed(message, plan.envelope(part, 0))))
    mean = np.mean(decoded, axis=0)
    result = server.result()
    assert result is not None
    expected = mean if rotation is None else rotation.inverse(mean)
    np.testing.assert_allclose(result, expected, rtol=1e-13, atol=1e-14)


def test_too_few_answers_release_nothing(ledger: Ledger) -> None:
    plan = a_plan(SecureSum(minimum_clients=3))
    server = RoundServer(plan, dimension=DIMENSION)
    assert server.result() is None
    for client in NAMES[:2]:
        server.receive(client, send(plan, ledger, client))
        assert server.result() is None
    server.receive("carl", send(plan, ledger, "carl"))
    assert server.result() is not None


def test_a_round_has_one_sum_for_two_would_differ_by_one_client(ledger: Ledger) -> None:
    plan = a_plan(SecureSum(minimum_clients=3))
    server = RoundServer(plan, dimension=DIMENSION)
    for client in NAMES[:3]:
        server.receive(client, send(plan, ledger, client))
    first = server.result()
    assert first is not None
    with pytest.raises(WireError, match="has been released"):
        server.receive("dora", send(plan, ledger, "dora"))
    assert server.received == 3
    first[:] = 99.0  # the caller's copy
    again = server.result()
    assert again is not None
    assert np.abs(again).max() <= SIGN.noise_stddev * (1.0 + 1e-12)


def test_a_message_for_one_channel_does_not_pass_in_another(ledger: Ledger) -> None:
    # Charged for a sum of many, it must not be read on its own.
    message = send(a_plan(SecureSum(minimum_clients=3)), ledger, "ada")
    for channel in (Direct(), SecureSum(minimum_clients=2)):
        server = RoundServer(a_plan(channel), dimension=DIMENSION)
        with pytest.raises(WireError, match="hash of the public parameters"):
            server.receive("ada", message)


def test_a_second_attempt_pays_for_both_as_if_they_were_seen(ledger: Ledger) -> None:
    """Where the others repeat theirs, two sums differ by this client's two messages alone."""
    plan = a_plan(SecureSum(minimum_clients=3))
    send(plan, ledger, "ada")
    ledger.discard_messages("run", before_round=2)
    (part,) = (part for part in plan.clients if part.client == "ada")
    request = PrivatizationRequest(part=part, uplink=0, values=np.zeros(DIMENSION))
    for _ in range(2):  # the second call finds the stored message of attempt 1
        privatise_one(plan, request, ledger, SystemRandomness())
    hidden, seen = terms_of(SecureSum(minimum_clients=3), Z)(SIGN), SIGN.privacy(Z)
    assert basic_counts(compose_repeated(ledger.history("ada"))) == {hidden: 1, seen: 2}
    ledger.discard_messages("run", before_round=2)
    privatise_one(plan, request, ledger, SystemRandomness())
    assert basic_counts(compose_repeated(ledger.history("ada"))) == {hidden: 1, seen: 3}


def test_messages_of_two_mechanisms_do_not_add_up() -> None:
    collector = SecureSum(minimum_clients=2).collector(DIMENSION, [(SIGN, 1.0)] * 2)
    bits = PackedCodes(bytes(7), count=DIMENSION, levels=2)
    collector.add(SIGN, 1.0, bits)
    other = ClampedSign(input_domain=BALL, noise_multiplier=0.7, logit_bound=1.0)
    with pytest.raises(WireError, match="got one of another"):
        collector.add(other, 1.0, bits)


def test_a_cohort_too_small_for_a_sum_is_not_asked() -> None:
    assert not SecureSum(minimum_clients=3).serves(2)
    assert SecureSum(minimum_clients=3).serves(3)
    assert Direct().serves(0)


# -- codes of several bits -------------------------------------------------------------------

SEVERAL = PoissonBinomial(input_domain=BALL, noise_multiplier=0.5, trials=7, logit_bound=1.0)
GRID = DiscreteGaussian(input_domain=BALL, noise_multiplier=0.5, bits=8, steps_per_radius=12.0)


@pytest.mark.parametrize("mechanism", [SIGN, SEVERAL, GRID], ids=lambda one: type(one).__name__)
def test_a_sum_of_codes_of_several_bits_decodes_to_the_mean(
    ledger: Ledger, mechanism: Mechanism
) -> None:
    parts = tuple(ClientPlan(client=name, mechanism=mechanism, weight=2.0) for name in NAMES)
    plan = a_plan(SecureSum(minimum_clients=3), *parts)
    server = RoundServer(plan, dimension=DIMENSION)
    decoded = []
    for part in plan.clients:
        message = send(plan, ledger, part.client)
        server.receive(part.client, message)
        decoded.append(mechanism.decode(open_sealed(message, plan.envelope(part, 0))))
    result = server.result()
    assert result is not None
    np.testing.assert_allclose(result, np.mean(decoded, axis=0), rtol=1e-12, atol=1e-13)
    terms = terms_of(SecureSum(minimum_clients=3), Z)
    (charged,) = ledger.history("ada")
    assert charged == (terms(mechanism), 1)
    assert basic_counts(terms.local(mechanism)) == {mechanism.privacy(Z): 1}


def test_the_sum_of_one_bit_codes_keeps_its_last_bits() -> None:
    ones = np.arange(11, dtype=np.uint32)
    low, high = SIGN.decode(np.array([0, 1], dtype=np.uint8))
    np.testing.assert_array_equal(SIGN.decode_sum(ones, 10), low + (high - low) * (ones / 10))


def test_a_sum_on_a_grid_is_a_residue() -> None:
    codes = np.array([[3, 250, 0], [255, 7, 128]], dtype=np.uint8)
    total = codes.sum(axis=0, dtype=np.int64)
    whole = GRID.decode_sum(total, 2)
    np.testing.assert_array_equal(whole, GRID.decode_sum(total % 256, 2))
    np.testing.assert_allclose(whole, np.array([1.0, 0.5, -64.0]) / 12.0)


def test_a_sum_that_could_wrap_around_is_refused_with_the_grid_that_fits() -> None:
    assert GRID.sum_bits(4) == 8
    with pytest.raises(ParameterError, match=r"steps_per_radius of at most 3\.\d") as refused:
        GRID.sum_bits(20)
    finest = float(str(refused.value).split()[-1])
    coarser = dataclasses.replace(GRID, steps_per_radius=finest * (1.0 - 1e-5))
    assert coarser.sum_bits(20) == 8
    with pytest.raises(ParameterError, match="cannot hold a sum over 255 clients"):
        GRID.sum_bits(255)
    parts = tuple(ClientPlan(client=f"{i}", mechanism=GRID, weight=1.0) for i in range(20))
    with pytest.raises(ParameterError, match="wrap around"):
        a_plan(SecureSum(minimum_clients=3), *parts)


def test_a_sum_of_more_than_32_bits_is_refused() -> None:
    wide = [(PoissonBinomialOfManyBits(), 1.0)]
    with pytest.raises(ParameterError, match="33 bits per coordinate, above the limit of 32"):
        check_sum_fits(wide)  # type: ignore[arg-type]


class PoissonBinomialOfManyBits:
    """Sums of 33 bits, which no mechanism of this package has for a testable number of clients."""

    def summed_event(self, adjacency: Adjacency, clients: int) -> None: ...

    def sum_bits(self, clients: int) -> int:
        return 32 + clients

    def decode_sum(self, total: Any, clients: int) -> None: ...


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_noise_on_a_grid_is_divided_by_the_clients_that_are_counted_on(
    adjacency: Adjacency,
) -> None:
    event = terms_of(SecureSum(minimum_clients=30), adjacency)(GRID)
    assert isinstance(event, events.SummedNoise)
    assert event.clients == 30
    assert event.local() == dataclasses.replace(GRID.privacy(adjacency), zero_centered=False)
    assert 0.0 < event.excess < 1e-100  # The noise is 6 steps wide.
