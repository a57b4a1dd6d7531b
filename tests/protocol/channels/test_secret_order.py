"""What a message costs whose place in an epoch nobody knows."""

import dataclasses
from typing import Any

import pytest

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import ParameterError, PrivacyError, UnsupportedEventError
from sottovoce.mechanisms.cldp import Cldp
from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.protocol.channels.channel import terms_of
from sottovoce.protocol.channels.secret_order import SecretOrder
from sottovoce.protocol.channels.shuffler import Shuffler

BALL = L2Ball(dimension=20, radius=1.0)
CLDP = Cldp(input_domain=BALL, epsilon=1.0)
R = Adjacency.REPLACE_ONE


def test_a_message_costs_what_it_would_among_as_many_in_one_shuffle() -> None:
    order, shuffler = SecretOrder(minimum_clients=600), Shuffler(minimum_clients=600)
    assert order.visibility == shuffler.visibility
    assert terms_of(order, R)(CLDP) == terms_of(shuffler, R)(CLDP)


def test_what_a_shuffler_does_not_hide_a_secret_order_does_not_either() -> None:
    order = SecretOrder(minimum_clients=600)
    with pytest.raises(PrivacyError, match="replace-one"):
        terms_of(order, Adjacency.ZERO_OUT)(CLDP)
    with pytest.raises(UnsupportedEventError, match="GaussianNoise has no finite pure epsilon"):
        terms_of(order, R)(Gaussian(input_domain=BALL, noise_multiplier=1.0))
    records = Cldp(input_domain=dataclasses.replace(BALL, records=10), epsilon=1.0)
    with pytest.raises(PrivacyError, match=r"privacy\.level = 'client'"):
        terms_of(order, R)(records)
    with pytest.raises(ParameterError, match="a secret order needs the same mechanism and weight"):
        order.check_cohort([(CLDP, 1.0), (CLDP, 2.0)])
    order.check_cohort([(CLDP, 1.0), (CLDP, 1.0)])


def test_a_round_may_be_small_for_the_epoch_hides_it() -> None:
    order = SecretOrder(minimum_clients=600)
    assert order.serves(1)
    assert not order.serves(0)
    assert order.fewest_messages == 1
    assert Shuffler(minimum_clients=600).fewest_messages == 600
    assert order.hides_sender


@pytest.mark.parametrize("bad", [1, 0, 2.5, True])
def test_an_epoch_of_fewer_than_two_is_refused(bad: Any) -> None:
    with pytest.raises(ParameterError, match="minimum_clients"):
        SecretOrder(minimum_clients=bad)
