"""Spending of simulated clients, counted in memory.

It serves simulations whose randomness can be repeated and whose messages go nowhere: nothing has to
survive a crash, since running the simulation again makes the same charges. In a run every client
has one event, so its account is a number of rounds. The accountants are asked once for each pair of
event and number.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sottovoce.ledger.records import Budget
from sottovoce.privacy import compositions
from sottovoce.privacy.accounting import PrivacySpent, privacy_spent, within
from sottovoce.privacy.events import PrivacyEvent

Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Tally:
    """Counts in memory of the rounds for which each simulated client was charged.

    `clients_with_budget` says who can pay for a round; `charge` does not check it.

    Args:
        clients: Names of the clients.
        charged: For each client, in the same order, the event that one uplink is charged with.
        uplinks: Number of vectors that a client sends in a round.

    Examples:
        >>> from sottovoce.core.adjacency import Adjacency
        >>> from sottovoce.privacy.events import PureDp
        >>> event = PureDp(epsilon=1.0, adjacency=Adjacency.REPLACE_ONE)
        >>> tally = Tally(["a", "b"], [event, event], uplinks=1)
        >>> tally.charge(1, [0])
        >>> tally.rounds_charged("run")
        {'a': 1, 'b': 0}
    """

    def __init__(
        self,
        clients: Sequence[str],
        charged: Sequence[PrivacyEvent],
        *,
        uplinks: int,
    ) -> None:
        self._names = {name: number for number, name in enumerate(clients)}
        self._charged, self._uplinks = charged, uplinks
        self._budgets: dict[str, Budget] = {}
        self.set_budgets({})
        self.rounds = np.zeros(len(charged), dtype=np.int64)
        self._last_number, self._last_charged = 0, np.zeros(0, dtype=np.int64)

    def set_budgets(self, budgets: Mapping[str, Budget]) -> None:
        """Give clients their budgets; a budget cannot be changed later.

        Args:
            budgets: The budget of each client.

        Raises:
            LedgerError: A client already has another budget.
        """
        for client, budget in budgets.items():
            budget.check_not_replacing(self._budgets.get(client), client)
        self._budgets.update(budgets)
        given = [self._budgets.get(name) for name in self._names]
        self._kinds, self._kind_of = _kinds(self._charged, given)
        self._affordable: dict[tuple[int, int], bool] = {}
        self._spent: dict[tuple[int, int, float], PrivacySpent] = {}

    def clients_with_budget(self, number: int) -> Mask:
        """Return which clients could pay for a round before it was charged.

        Args:
            number: The round, either the next one or the last one that was charged.

        Returns:
            One boolean for each client, in the order of `clients`; True without a budget.
        """
        if not self._budgets:
            return np.ones(len(self.rounds), dtype=np.bool_)
        counts = self.rounds
        if number <= self._last_number:
            counts = counts.copy()
            counts[self._last_charged] -= 1
        codes, found = self._states(counts)
        verdicts = np.zeros(int(codes.max(initial=0)) + 1, dtype=np.bool_)
        for code in found:
            verdicts[code] = self._affords(*self._state(code))
        return verdicts[codes]

    def charge(self, number: int, clients: Sequence[int] | Indices) -> None:
        """Count a round for some clients; the caller has checked that they can pay.

        Args:
            number: The round.
            clients: Indices of the clients, each once.
        """
        self._last_number = number
        self._last_charged = np.asarray(clients, dtype=np.int64)
        self.rounds[self._last_charged] += 1

    @property
    def num_charges(self) -> int:
        """The number of charges that have been made: one for each client, round and uplink."""
        return int(self.rounds.sum()) * self._uplinks

    def spent(self, client: str, delta: float) -> PrivacySpent | None:
        """Return what a client has spent.

        Args:
            client: Name of the client.
            delta: Delta at which epsilon is computed.

        Returns:
            The composed guarantee; None without a charge.
        """
        number = self._names[client]
        count = int(self.rounds[number])
        return self._spending(int(self._kind_of[number]), count, delta) if count else None

    def history(self, client: str) -> list[tuple[PrivacyEvent, int]]:
        """Return the event charged to a client, with the number of its charges.

        Args:
            client: Name of one of the clients.

        Returns:
            One pair (event, number of charges), or an empty list without a charge. A round makes as
            many charges as the client sends vectors in it (`uplinks`).
        """
        number = self._names[client]
        event, _ = self._kinds[int(self._kind_of[number])]
        count = int(self.rounds[number]) * self._uplinks
        return [(event, count)] if count else []

    def rounds_charged(self, run: str) -> dict[str, int]:  # noqa: ARG002
        """Return in how many rounds each client was charged.

        Args:
            run: Ignored, since a tally holds one run.

        Returns:
            The number of rounds by client, also if it is 0.
        """
        return {name: int(self.rounds[number]) for name, number in self._names.items()}

    def largest_spent(
        self,
        delta: float,
        *,
        through: tuple[str, int] | None = None,  # noqa: ARG002
    ) -> PrivacySpent | None:
        """Return what the client that has spent most has spent.

        Args:
            delta: Delta at which epsilon is computed.
            through: Ignored, since only rounds that were run are counted here.

        Returns:
            The guarantee with the largest epsilon; None without a charge.
        """
        _, found = self._states(self.rounds)
        states = [self._state(code) for code in found]
        totals = [self._spending(kind, count, delta) for kind, count in states if count]
        return max(totals, key=lambda spent: spent.epsilon, default=None)

    def discard_messages(self, run: str, before_round: int) -> None:
        """Do nothing, since a tally stores no messages.

        Args:
            run: Ignored.
            before_round: Ignored.
        """

    def _states(self, counts: Indices) -> tuple[Indices, list[int]]:
        """Return a code of (event and budget, rounds) for each client, and the codes that occur."""
        codes = counts * len(self._kinds) + self._kind_of
        return codes, np.flatnonzero(np.bincount(codes)).tolist()

    def _state(self, code: int) -> tuple[int, int]:
        """Return the (event and budget, rounds) that a code stands for."""
        return code % len(self._kinds), code // len(self._kinds)

    def _affords(self, kind: int, count: int) -> bool:
        event, budget = self._kinds[kind]
        if budget is None:
            return True
        if (kind, count) not in self._affordable:
            after = compositions.compose_repeated([(event, (count + 1) * self._uplinks)])
            self._affordable[kind, count] = within(after, budget.delta, budget.epsilon)
        return self._affordable[kind, count]

    def _spending(self, kind: int, count: int, delta: float) -> PrivacySpent:
        key = kind, count, delta
        if key not in self._spent:
            event, _ = self._kinds[kind]
            self._spent[key] = privacy_spent(
                compositions.compose_repeated([(event, count * self._uplinks)]), delta
            )
        return self._spent[key]


def _kinds(
    charged: Sequence[PrivacyEvent], budgets: Sequence[Budget | None]
) -> tuple[list[tuple[PrivacyEvent, Budget | None]], Indices]:
    """Return the distinct (event, budget) pairs and the index of each client's pair.

    Most clients share their objects, and an object's identity is compared faster than its hash.
    """
    numbers: dict[tuple[PrivacyEvent, Budget | None], int] = {}
    known: dict[tuple[int, int], int] = {}
    found = []
    for event, budget in zip(charged, budgets, strict=True):
        identity = id(event), id(budget)
        if identity not in known:
            known[identity] = numbers.setdefault((event, budget), len(numbers))
        found.append(known[identity])
    return list(numbers), np.array(found, dtype=np.int64)
