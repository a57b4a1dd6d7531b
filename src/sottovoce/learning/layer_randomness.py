"""Random numbers of layers such as dropout, from the clients' own randomness.

Torch's layers draw from its global generator. `LayerRandomness` puts a state of its own there while
gradients are computed, and the earlier state back afterwards.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

import torch

from sottovoce.core.randomness import Randomness

_SEED_BITS = 32


class LayerRandomness:
    """The seeds of random layers in a round.

    Args:
        randomness: The clients' own randomness.
        run: Name of the run.
        number: The round.
    """

    def __init__(self, randomness: Randomness, run: str, number: int) -> None:
        self._stream: Callable[[str, int], int] = lambda client, turn: int(
            randomness.stream("layers", run, client, number, turn).draws(_SEED_BITS, 1)[0]
        )
        self._turns: Counter[str] = Counter()

    @contextlib.contextmanager
    def of_client(self, client: str) -> Iterator[None]:
        """Set the seed of torch's generators in the block; a group has that of its first client.

        Each block of a client has a seed of its own.
        """
        seed = self._stream(client, self._turns[client])
        self._turns[client] += 1
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield
