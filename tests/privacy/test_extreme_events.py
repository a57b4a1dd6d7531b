"""Events with extreme parameters: an epsilon or a refusal of ours, never another error."""

import math

import pytest
from some_events import sampled

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball
from sottovoce.mechanisms.release import ShuffledMessages, release_event
from sottovoce.mechanisms.seeded_sign import SeededSign
from sottovoce.privacy.accounting import find_accountant, privacy_spent
from sottovoce.privacy.compositions import without_trust
from sottovoce.privacy.events import (
    Allocated,
    FiniteTable,
    GaussianNoise,
    NonPrivate,
    OneBit,
    PrivacyEvent,
    Repeated,
    Shuffled,
    SummedBits,
    ZeroConcentrated,
)
from sottovoce.privacy.renyi import renyi_divergence

ZERO_OUT, REPLACE_ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
TABLE = FiniteTable(rows=((0.5, 0.5), (0.6, 0.4), (0.3, 0.7)), zero=0, adjacency=ZERO_OUT)


def many(event: PrivacyEvent) -> PrivacyEvent:
    for _ in range(20):
        event = Repeated(event=event, count=2**53)
    return event


@pytest.mark.parametrize(
    "event",
    [
        Repeated(
            event=Allocated(event=GaussianNoise(mu=1e-14, adjacency=ZERO_OUT), steps=2), count=2
        ),
        many(TABLE),
        Shuffled(
            event=FiniteTable(rows=((1.0, 0.0), (1.0, 0.0)), zero=0, adjacency=REPLACE_ONE),
            clients=100,
        ),
    ],
    ids=["hardly any noise seen", "counts beyond float64", "messages that tell nothing"],
)
def test_an_epsilon_is_found(event: PrivacyEvent) -> None:
    assert privacy_spent(event, 1e-5).epsilon >= 0.0


def test_a_delta_is_found_at_any_epsilon() -> None:
    bit = OneBit(shift=0.1, dimension=1, adjacency=ZERO_OUT, against_zero=True)
    assert find_accountant("bellman").delta(bit, 1000.0) <= 1.0
    rare = sampled(OneBit(shift=6.5, dimension=100, adjacency=ZERO_OUT), 1e-100)
    assert find_accountant("moments").epsilon(rare, 1e-95) >= 0.0


def test_many_seeds_behind_a_shuffler_have_no_ratios_worth_stating() -> None:
    mechanism = SeededSign(
        input_domain=L2Ball(dimension=1 << 20, radius=1.0),
        noise_multiplier=0.07,
        blocks=128,
        generator="chacha20-1",
        timing="constant",
    )
    visibility = ShuffledMessages(minimum_clients=1000)
    hidden = release_event(mechanism, adjacency=REPLACE_ONE, visibility=visibility)
    assert isinstance(hidden, Shuffled)
    assert hidden.ratios is None


def test_more_clients_never_hide_less() -> None:
    def epsilon(clients: int, dimension: int) -> float:
        event = SummedBits(
            shift=1.0,
            dimension=dimension,
            logit_bound=1.0,
            clients=clients,
            adjacency=REPLACE_ONE,
        )
        return privacy_spent(event, 1e-5).epsilon

    for dimension in (1, 10):
        few, more = epsilon(6, dimension), epsilon(7, dimension)
        assert more <= few * (1.0 + 1e-6)


def test_a_smaller_sample_never_tells_more() -> None:
    def epsilon(rate: float) -> float:
        levels = ZeroConcentrated(rho=0.1, adjacency=REPLACE_ONE, zero_centered=True)
        return privacy_spent(Repeated(event=sampled(levels, rate), count=50), 1e-5).epsilon

    assert epsilon(1e-10) <= epsilon(1e-9) * (1.0 + 1e-6)


def test_several_releases_of_bits_under_one_coin_may_follow_each_other() -> None:
    """The theorem for exponential families is proved for one release, or for Gaussian noise."""
    bits = OneBit(shift=1.0, dimension=9, adjacency=REPLACE_ONE, zero_centered=True)
    twice = renyi_divergence(sampled(Repeated(event=bits, count=2), 0.1), 3.0)
    together = OneBit(shift=math.sqrt(2.0), dimension=18, adjacency=REPLACE_ONE, zero_centered=True)
    assert twice > renyi_divergence(sampled(together, 0.1), 3.0)


def test_noise_that_is_added_to_a_sum_is_in_no_message() -> None:
    event = Allocated(event=GaussianNoise(mu=1.0, adjacency=ZERO_OUT), steps=10)
    assert without_trust(event) == NonPrivate(adjacency=ZERO_OUT)
