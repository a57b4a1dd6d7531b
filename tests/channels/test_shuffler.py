import pytest

from sottovoce.adjacency import Adjacency
from sottovoce.channels.channel import Shuffler
from sottovoce.domains import L1Ball
from sottovoce.errors import ParameterError
from sottovoce.mechanisms.laplace import Laplace
from sottovoce.privacy.events import Shuffled

LAPLACE = Laplace(input_domain=L1Ball(dimension=3, radius=1.0), noise_multiplier=1.0)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_event_is_the_local_one_shuffled(adjacency: Adjacency) -> None:
    event = Shuffler(clients=100).event(LAPLACE, adjacency)
    assert event == Shuffled(event=LAPLACE.privacy(adjacency), clients=100)


def test_nobody_is_no_crowd() -> None:
    with pytest.raises(ParameterError, match="clients"):
        Shuffler(clients=0)
