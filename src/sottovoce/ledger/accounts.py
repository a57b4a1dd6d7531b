"""Spending and budgets of some clients, read in a few queries and checked for each new charge.

Most clients share a history, so each distinct question is put to the accountants once.
"""

from collections.abc import Iterable, Sequence

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.display import show_epsilon
from sottovoce.core.errors import AdjacencyMismatchError, BudgetExhaustedError, LedgerError
from sottovoce.ledger.database import Database
from sottovoce.ledger.records import Budget, PendingCharge
from sottovoce.privacy import compositions
from sottovoce.privacy.accounting import privacy_spent, within
from sottovoce.privacy.event_json import from_json, to_json
from sottovoce.privacy.events import PrivacyEvent

# Number of charges by event, in the order of first use. The key None stands for an event whose
# row is missing.
History = dict[str | None, int]
Before = tuple[str, int]  # (run, round): charges of that run from that round on are not counted


class Accounts:
    """A snapshot of the spending and budgets of some clients.

    Charges that are passed to `add` count from then on; nothing is written. With `before` =
    (run, round), charges of that run from that round on are not counted.
    """

    def __init__(self, db: Database, clients: Iterable[str], *, before: Before | None = None):
        names = list(dict.fromkeys(clients))
        counted = _counted(db, names)
        self._budgets = budgets(db, names)
        self._histories = _histories(db, counted, before)
        self._units = {name: {str(one.unit)} for name, one in self._budgets.items()}
        for client, _, unit, _ in counted:
            self._units.setdefault(client, set()).add(unit)
        self._verdicts: dict[tuple[object, ...], str | None] = {}

    def refusal(self, due: PendingCharge, text: str) -> BudgetExhaustedError | None:
        """Return the error for a charge that its client's budget does not cover; None if it does.

        The error is not raised, and nothing is charged. A client without a budget is never refused.
        `text` is the event as the ledger stores it. Raises AdjacencyMismatchError if the client is
        accounted under another unit or adjacency.
        """
        release = due.release
        client = release.client
        check_unit(client, release.unit, self._units.get(client, ()))
        history = self._histories.get(client, {})
        budget = self._budgets.get(client)
        # Equal budgets are one object here, and comparing identities is faster than values.
        key = (tuple(history.items()), text, id(budget))
        if key not in self._verdicts:
            self._verdicts[key] = _verdict(str(release), history, due.event, budget)
        reason = self._verdicts[key]
        return BudgetExhaustedError(f"{release}: {reason}") if reason else None

    def add(self, due: PendingCharge, text: str) -> None:
        """Count a charge in this snapshot; the ledger is not changed.

        `text` is the event as the ledger stores it.
        """
        client = due.release.client
        history = self._histories.setdefault(client, {})
        history[text] = history.get(text, 0) + 1
        self._units.setdefault(client, {str(due.release.unit)})


def serialize_events(pending: Sequence[PendingCharge]) -> list[str]:
    """Return the event of each pending charge as the JSON text that the ledger stores."""
    # Most pending charges share one event object, which is then written once.
    written: dict[int, str] = {}
    for due in pending:
        if id(due.event) not in written:
            written[id(due.event)] = to_json(due.event)
    return [written[id(due.event)] for due in pending]


def _verdict(who: str, history: History, event: PrivacyEvent, budget: Budget | None) -> str | None:
    """Return why one more event would exceed the budget; None if it would not."""
    past = composition(history)
    check_adjacency(who, event.adjacency, past, budget)
    if budget is None:
        return None
    after = compositions.compose_repeated([*past, (event, 1)])
    if within(after, budget.delta, budget.epsilon):
        return None
    spent = privacy_spent(after, budget.delta)
    return (
        f"epsilon would reach {show_epsilon(spent.epsilon)} at delta {budget.delta:g} "
        f"({budget.adjacency}), above the budget of {budget.epsilon:.15g}; nothing is charged or "
        "sent. Ask this client for fewer or noisier releases; a budget cannot be raised"
    )


def composition(history: History) -> list[tuple[PrivacyEvent, int]]:
    """Return (event, count) for each JSON text and count of a history, in the same order.

    Raises LedgerError for a text that is not an event.
    """
    return [(from_json(text), count) for text, count in history.items()]


def check_adjacency(
    who: str,
    adjacency: Adjacency,
    past: Iterable[tuple[PrivacyEvent, int]],
    budget: Budget | None,
) -> None:
    """Raise AdjacencyMismatchError unless a client's charges and budget have this adjacency.

    Epsilons under two adjacencies bound different things and do not add up. `past` holds (event,
    count) of the charges, a budget of None is not checked, and `who` starts the message.
    """
    if budget is not None and budget.adjacency is not adjacency:
        raise AdjacencyMismatchError(
            f"{who}: the event is charged under {adjacency}, but the budget is under "
            f"{budget.adjacency}; use {budget.adjacency} for this run"
        )
    for event, _ in past:
        if event.adjacency is not adjacency:
            raise AdjacencyMismatchError(
                f"{who}: adjacency {adjacency} was given, but the client has charges under "
                f"{event.adjacency} in this ledger; use {event.adjacency}. A new ledger is no "
                "remedy: it would omit what was spent"
            )


def check_unit(client: str, unit: Unit, present: Iterable[str]) -> None:
    """Raise AdjacencyMismatchError unless a client's charges protect this unit.

    Epsilons per sample and per client bound different things and do not add up. `present` are the
    units of the client's charges and budget; if there are none, any unit passes.
    """
    for other in present:
        if other != unit:
            raise AdjacencyMismatchError(
                f"client '{client}' is accounted per {other} in this ledger, but this charge is "
                f"per {unit}; use the unit '{other}'. A new ledger is no remedy: it would omit "
                "what was spent"
            )


def budgets(db: Database, clients: Sequence[str]) -> dict[str, Budget]:
    """Return the budgets by client, without clients that have none.

    Raises LedgerError for a damaged budget.
    """
    made: dict[tuple[object, ...], Budget] = {}
    found = {}
    for client, *row in db.select_in(
        "SELECT client, epsilon, delta, adjacency, unit FROM budgets WHERE client IN ({names})",
        clients,
    ):
        key = tuple(row)
        if key not in made:
            made[key] = _budget(client, *row)
        found[client] = made[key]
    return found


def _budget(client: str, epsilon: float, delta: float, adjacency: str, unit: str) -> Budget:
    try:
        return Budget(epsilon=epsilon, delta=delta, adjacency=Adjacency(adjacency), unit=Unit(unit))
    except ValueError as error:
        raise LedgerError(
            f"the budget of client '{client}' is damaged: {error}; restore the ledger from a backup"
        ) from None


def histories(
    db: Database, clients: Sequence[str] | None = None, *, before: Before | None = None
) -> dict[str, History]:
    """Return how often each event was charged to each of `clients`, or to every client for None.

    The result is {client: {event as JSON text: count}}, without clients that have no charge. With
    `before` = (run, round), charges of that run from that round on are not counted.
    """
    return _histories(db, _counted(db, clients), before)


def _counted(db: Database, clients: Sequence[str] | None) -> list[tuple[str, int, str, int]]:
    """Return (client, event, unit, count) of some clients, or of all."""
    statement = "SELECT client, event, unit, count FROM spending"
    if clients is None:
        rows = db.all(f"{statement} ORDER BY client, event")
    else:
        rows = list(
            db.select_in(f"{statement} WHERE client IN ({{names}}) ORDER BY client, event", clients)
        )
    for row in rows:
        check_counted(*row)
    return rows


def check_counted(client: object, event: object, unit: object, count: object) -> None:
    """Raise LedgerError for a row of `spending` that this program cannot have written.

    SQLite stores values of any type in any column, so the types are checked here.
    """
    kinds = type(client), type(event), type(unit), type(count)
    if kinds != (str, int, str, int) or not isinstance(count, int) or count < 1:
        raise LedgerError(
            f"the table 'spending' is damaged (client {client!r}, count {count!r}); restore the "
            "ledger from a backup"
        )


def _histories(
    db: Database, counted: Sequence[tuple[str, int, str, int]], before: Before | None
) -> dict[str, History]:
    later = {}
    if before is not None:
        rows = db.all(
            "SELECT client, event, unit, COUNT(*) FROM charges WHERE run = ? AND round >= ? "
            "GROUP BY client, event, unit",
            before,
        )
        later = {tuple(key): count for *key, count in rows}
    numbers = sorted({event for _, event, _, _ in counted})
    texts = dict(db.select_in("SELECT id, json FROM events WHERE id IN ({names})", numbers))
    found: dict[str, History] = {}
    for client, event, unit, count in counted:
        left = count - later.get((client, event, unit), 0) if later else count
        if left:
            history = found.setdefault(client, {})
            text = texts.get(event)
            history[text] = history.get(text, 0) + left
    return found
