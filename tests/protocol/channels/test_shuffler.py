"""The shuffler's charge: pure, between any two whole inputs, for the fewest clients; or refused."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, L1Ball, L2Ball
from sottovoce.core.errors import ParameterError, PrivacyError, UnsupportedEventError
from sottovoce.mechanisms.cldp import Cldp
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.mechanisms.mechanism import BoundedDensity, Mechanism
from sottovoce.mechanisms.mvu import Mvu
from sottovoce.mechanisms.skellam import Skellam
from sottovoce.privacy.compositions import reveal_messages
from sottovoce.privacy.events import Shuffled, basic_counts
from sottovoce.privacy.shuffling import local_epsilon, shuffled_delta
from sottovoce.protocol.channels.channel import Direct, terms_of
from sottovoce.protocol.channels.secure_sum import SecureSum
from sottovoce.protocol.channels.shuffler import Shuffler

BALL = L2Ball(dimension=20, radius=1.0)
CLDP = Cldp(input_domain=BALL, epsilon=1.0)
ONE_BIT = GaussHermite(input_domain=BALL, levels=2, noise_multiplier=4.0)
R = Adjacency.REPLACE_ONE


@pytest.mark.parametrize(
    "mechanism",
    [
        CLDP,
        ONE_BIT,
        Cldp(input_domain=L1Ball(dimension=20, radius=1.0), epsilon=1.0),
        Mvu(
            input_domain=Box(dimension=1, lower=0.0, upper=1.0),
            epsilon=1.0,
            input_bits=1,
            output_bits=1,
        ),
    ],
    ids=["sphere", "bits", "cross-polytope", "table"],
)
def test_the_event_is_the_local_one_among_the_fewest_clients(mechanism: Mechanism) -> None:
    event = terms_of(Shuffler(minimum_clients=30), R)(mechanism)
    ratios = mechanism.density_ratios() if isinstance(mechanism, BoundedDensity) else None
    assert event == Shuffled(event=mechanism.privacy(R), clients=30, ratios=ratios)
    assert (ratios is None) == (mechanism is ONE_BIT)
    assert basic_counts(reveal_messages(event)) == basic_counts(mechanism.privacy(R))
    assert 0.0 < local_epsilon(event) < np.inf


@pytest.mark.parametrize(
    ("mechanism", "name"),
    [
        (Gaussian(input_domain=BALL, noise_multiplier=1.0), "GaussianNoise"),
        (GaussHermite(input_domain=BALL, levels=4, noise_multiplier=1.0), "ZeroConcentrated"),
        (
            Skellam(input_domain=BALL, noise_multiplier=1.0, bits=8, steps_per_radius=8),
            "RenyiCurve",
        ),
    ],
)
def test_shuffling_claimed_for_noise_without_a_pure_epsilon_is_refused(
    mechanism: Mechanism, name: str
) -> None:
    with pytest.raises(
        UnsupportedEventError, match=f"pure local.*{name} has no finite pure epsilon.*'cldp'"
    ):
        terms_of(Shuffler(minimum_clients=30), R)(mechanism)


def test_zero_out_is_refused_with_the_adjacency_that_is_charged() -> None:
    with pytest.raises(PrivacyError, match=r"privacy\.adjacency = 'replace-one'"):
        terms_of(Shuffler(minimum_clients=30), Adjacency.ZERO_OUT)(CLDP)


def test_one_record_of_several_is_refused_and_here_is_why() -> None:
    """The others' inputs need not be near the victim's: their messages may be no clones at all.

    One bit, 100 records, so that replacing one moves the logit by at most .8. If all others sit at
    the far end and send 1, a 0 is the victim's own, and its total variation stays as it was.
    """
    ball = L2Ball(dimension=1, radius=1.0, records=100)
    bit = GaussHermite(input_domain=ball, levels=2, noise_multiplier=5.0)
    with pytest.raises(PrivacyError, match=r"privacy\.level = 'client'"):
        terms_of(Shuffler(minimum_clients=1000), R)(bit)
    event = Shuffled(event=bit.privacy(R), clients=1000)
    claimed = shuffled_delta(local_epsilon(event), 1000, 0.0)
    far, here, moved = (bit.law([u]).table[0, 0] for u in (0.99, -0.01, 0.01))  # P(code 0)
    assert far < 1e-8
    nobody_else_sends_a_0 = (1.0 - far) ** 999
    assert abs(here - moved) * nobody_else_sends_a_0 > 5.0 * claimed


@pytest.mark.parametrize("bad", [1, 0, -3, 2.5, True])
def test_a_shuffle_of_fewer_than_two_is_refused(bad: Any) -> None:
    with pytest.raises(ParameterError, match="minimum_clients"):
        Shuffler(minimum_clients=bad)


def test_unequal_weights_or_mechanisms_are_refused() -> None:
    channel = Shuffler(minimum_clients=2)
    channel.check_cohort([(CLDP, 1.0)] * 3)
    for other in ((CLDP, 2.0), (dataclasses.replace(CLDP, epsilon=2.0), 1.0)):
        with pytest.raises(ParameterError, match="same mechanism and weight"):
            channel.check_cohort([(CLDP, 1.0), other])


def test_a_cohort_too_small_is_not_asked() -> None:
    assert not Shuffler(minimum_clients=3).serves(2)
    assert Shuffler(minimum_clients=3).serves(3)


def test_only_a_shuffler_hides_the_sender() -> None:
    assert Shuffler(minimum_clients=2).hides_sender
    assert not Direct().hides_sender
    assert not SecureSum(minimum_clients=2).hides_sender
