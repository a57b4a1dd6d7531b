"""Which records a client uses in each of its local steps.

An epoch of a client is a random order of its own records, cut into minibatches of `batch_size`
records; the last one may be smaller. The order comes from the client's own randomness for the
round, the keystream with the label ("minibatches", run, client, round): each epoch reads two draws
of 32 bits for each record, and sorts the records by them. So minibatches depend on nothing but this
keystream and the number of the client's records.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.core.randomness import Keystream, Randomness, SeededRandomness

Indices = NDArray[np.int64]
Changes = NDArray[np.uint8]
NO_RECORD = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Minibatches:
    """The records of each local step of some clients.

    Attributes:
        records: The numbers of the records in their client's data, (clients, steps, width). Unused
            places are -1, and follow the used ones; a step without any record is not taken.
        repeats: How often all these steps are taken, one after the other.
        changes: How each record is changed in each step (`augmentation` defines the numbers),
            (clients, repeats, steps, width); None if records are used as they are.

    Examples:
        >>> Minibatches.full([2, 1], steps=3).records[:, 0].tolist()
        [[0, 1], [0, -1]]
    """

    records: Indices
    repeats: int = 1
    changes: Changes | None = None

    @classmethod
    def full(cls, sizes: Sequence[int], *, steps: int) -> "Minibatches":
        """Return steps that use all records of each client.

        Args:
            sizes: The number of records of each client.
            steps: The number of steps.

        Returns:
            The same minibatch for each step of a client.
        """
        numbers = np.arange(max(sizes, default=0))
        own = numbers < np.asarray(sizes, dtype=np.int64)[:, None]
        return cls(records=np.where(own, numbers, NO_RECORD)[:, None], repeats=steps)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, clients: slice) -> "Minibatches":
        changes = None if self.changes is None else self.changes[clients]
        return Minibatches(records=self.records[clients], repeats=self.repeats, changes=changes)

    @property
    def width(self) -> int:
        """The most records of a step."""
        return int(self.records.shape[2])

    @property
    def ends_once(self) -> bool:
        """Whether a client that takes no step any more takes none in all later steps."""
        return self.repeats == 1 or self.records.shape[1] <= 1

    def used(self) -> "Minibatches":
        """Return these minibatches without steps and places that no client uses."""
        taken = self.records != NO_RECORD
        steps = int(taken.any(axis=(0, 2)).sum())
        width = int(taken.any(axis=(0, 1)).sum())
        changes = None if self.changes is None else self.changes[:, :, :steps, :width]
        return Minibatches(
            records=self.records[:, :steps, :width], repeats=self.repeats, changes=changes
        )

    def padded(self, clients: int) -> "Minibatches":
        """Return these minibatches with further clients, which take no step."""
        more = ((0, clients), (0, 0), (0, 0))
        changes = self.changes
        if changes is not None:
            changes = np.pad(changes, (*more, (0, 0)))
        records = np.pad(self.records, more, constant_values=NO_RECORD)
        return Minibatches(records=records, repeats=self.repeats, changes=changes)

    def of_client(self, client: int) -> list[Indices]:
        """Return the records of each step of one client, without the steps that are not taken.

        Args:
            client: The position of the client.

        Returns:
            One array for each step, of one turn of the `repeats`.
        """
        rows = self.records[client]
        return [row[row != NO_RECORD] for row in rows if len(row) and row[0] != NO_RECORD]

    def steps_of(self, client: int) -> Iterator[tuple[Indices, Changes | None]]:
        """Yield the records of each step of one client with their changes, in all repeats."""
        own = self.of_client(client)
        for turn in range(self.repeats):
            for step, records in enumerate(own):
                if self.changes is None:
                    yield records, None
                else:
                    yield records, self.changes[client, turn, step, : len(records)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSchedule:
    """How many gradient steps a client takes in a round, and on how many records each.

    Attributes:
        steps: The number of steps; minibatches continue over reshuffled epochs.
        epochs: The number of epochs, which replaces `steps`; None to count steps.
        batch_size: The number of records of a step; None for all of them, so that an epoch is one
            step.

    Raises:
        ParameterError: A value is out of its range, or both `steps` and `epochs` are given.

    Examples:
        >>> LocalSchedule(epochs=2, batch_size=10).num_steps(25)
        6
    """

    steps: int = 1
    epochs: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        parameter_rules.integer("local_steps", self.steps, low=1, high=10**6)
        if self.batch_size is not None:
            parameter_rules.integer("batch_size", self.batch_size, low=1, high=2**31)
        if self.epochs is not None:
            parameter_rules.integer("local_epochs", self.epochs, low=1, high=10**6)
            if self.steps != 1:
                raise ParameterError(
                    f"local_steps = {self.steps} and local_epochs = {self.epochs} both say how "
                    "long a client trains; give one of them"
                )

    @property
    def is_one_step(self) -> bool:
        """Whether a client takes one step, however many records it has."""
        if self.epochs is None:
            return self.steps == 1
        return self.epochs == 1 and self.batch_size is None

    def num_steps(self, num_samples: int) -> int:
        """Return how many steps a client takes.

        Args:
            num_samples: The number of the client's records.

        Returns:
            The number of steps.
        """
        if self.epochs is None:
            return self.steps
        return self.epochs * self._steps_of_epoch(num_samples)

    def draw(
        self,
        randomness: Randomness,
        run: str,
        number: int,
        clients: Sequence[str],
        sizes: Sequence[int],
    ) -> Minibatches:
        """Draw the minibatches of some clients in a round.

        Args:
            randomness: The clients' own randomness.
            run: Name of the run.
            number: The round, counted from 1.
            clients: Names of the clients.
            sizes: The number of records of each client.

        Returns:
            The records of each step. A client's minibatches do not depend on the other clients.
        """
        size = self.batch_size
        if size is None:
            return Minibatches.full(sizes, steps=self.epochs or self.steps)
        most = max(map(self.num_steps, sizes), default=0)
        width = min(size, max(sizes, default=0))
        records = np.full((len(sizes), most, width), NO_RECORD)
        for count in sorted(set(sizes) - {0}):
            places = [place for place, own in enumerate(sizes) if own == count]
            streams = _keystreams(randomness, run, number, [clients[place] for place in places])
            order = _orders(streams, self._num_epochs(count), count)
            epoch = np.full((*order.shape[:2], self._steps_of_epoch(count) * size), NO_RECORD)
            epoch[:, :, :count] = order
            steps = epoch.reshape(len(places), -1, size)[:, : self.num_steps(count), :width]
            records[places, : steps.shape[1]] = steps
        return Minibatches(records=records)

    def _num_epochs(self, num_samples: int) -> int:
        """Return how many epochs the steps of a client begin."""
        if self.epochs is not None:
            return self.epochs
        return -(-self.steps // self._steps_of_epoch(num_samples))

    def _steps_of_epoch(self, num_samples: int) -> int:
        return 1 if self.batch_size is None else -(-num_samples // self.batch_size)


def _keystreams(
    randomness: Randomness, run: str, number: int, clients: Sequence[str]
) -> Sequence[Keystream]:
    if isinstance(randomness, SeededRandomness):  # Keys of many labels in one call.
        return randomness.streams_of(("minibatches", run), clients, (number,))
    return [randomness.stream("minibatches", run, client, number) for client in clients]


def _orders(streams: Sequence[Keystream], epochs: int, count: int) -> Indices:
    """Return a random order of `count` records for each client and epoch."""
    draws = np.stack([stream.draws(32, 2 * epochs * count) for stream in streams])
    halves = draws.reshape(len(streams), epochs, count, 2).astype(np.uint64)
    keys = halves[..., 0] << np.uint64(32) | halves[..., 1]
    return np.argsort(keys, axis=2, kind="stable")
