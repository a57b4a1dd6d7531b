"""What the clients of a simulation send, as arrays, so that a round needs no loop over clients."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.randomness import LabelParts
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.protocol.plan import ClientPlan

Positions = NDArray[np.int64]


def as_positions(clients: Sequence[int] | Positions) -> Positions:
    """Return positions of clients as an array."""
    return np.asarray(clients, dtype=np.int64)


class SimulatedRoster:
    """The names, weights and mechanisms of all clients.

    Args:
        parts: The part of each client in the plan.

    Attributes:
        names: The name of each client.
        weights: The weight of each client.
        mechanisms: The different mechanisms.
        kinds: The position in `mechanisms` of each client's mechanism.
    """

    def __init__(self, parts: Sequence[ClientPlan]) -> None:
        self.names = [part.client for part in parts]
        self.weights = np.array([part.weight for part in parts], dtype=np.float64)
        self.mechanisms: list[Mechanism] = []
        self.kinds = np.zeros(len(parts), dtype=np.int64)
        known: dict[int, int] = {}
        numbers: dict[Mechanism, int] = {}
        for i, part in enumerate(parts):
            if id(part.mechanism) not in known:
                known[id(part.mechanism)] = self._number(part.mechanism, numbers)
            self.kinds[i] = known[id(part.mechanism)]

    def _number(self, mechanism: Mechanism, numbers: dict[Mechanism, int]) -> int:
        """Return the number of a mechanism; equal ones have the same if they can be hashed."""
        try:
            number = numbers.setdefault(mechanism, len(self.mechanisms))
        except TypeError:
            number = len(self.mechanisms)
        if number == len(self.mechanisms):
            self.mechanisms.append(mechanism)
        return number

    def shared_mechanism(self, members: Positions) -> Mechanism | None:
        """Return the mechanism of clients that share mechanism and weight, else None.

        Args:
            members: The positions of at least one client.
        """
        if self._all_alike:
            return self.mechanisms[0]
        kinds, weights = self.kinds[members], self.weights[members]
        if (kinds == kinds[0]).all() and (weights == weights[0]).all():
            return self.mechanisms[int(kinds[0])]
        return None

    def groups(self, members: Positions) -> list[tuple[Mechanism, Positions]]:
        """Return each mechanism of some clients, and where in `members` those are that have it."""
        if len(self.mechanisms) == 1:
            return [(self.mechanisms[0], np.arange(len(members), dtype=np.int64))]
        kinds = self.kinds[members]
        present = np.flatnonzero(np.bincount(kinds))
        return [(self.mechanisms[kind], np.flatnonzero(kinds == kind)) for kind in present.tolist()]

    def payload_bytes(self, members: Positions) -> int:
        """Return the bytes of one vector's codes, summed over some clients."""
        if len(self.mechanisms) == 1:
            return len(members) * int(self._bytes_of_kinds[0])
        return int(self._bytes_of_kinds[self.kinds[members]].sum())

    @cached_property
    def _all_alike(self) -> bool:
        """Whether all clients share mechanism and weight."""
        return len(self.mechanisms) == 1 and bool((self.weights == self.weights[0]).all())

    @cached_property
    def labels(self) -> LabelParts:
        """The names of all clients as parts of labels."""
        return LabelParts(self.names)

    @cached_property
    def _bytes_of_kinds(self) -> Positions:
        found = [
            (one.code_format().payload_bits(one.input_domain.dimension) + 7) // 8
            for one in self.mechanisms
        ]
        return np.array(found, dtype=np.int64)
