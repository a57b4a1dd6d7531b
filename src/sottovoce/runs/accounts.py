"""The privacy accounts of a run, recomputed from its ledger or read from its metrics."""

from collections.abc import Mapping, Sequence
from typing import Any

from sottovoce.core.display import show_epsilon
from sottovoce.core.errors import LedgerError
from sottovoce.core.files import finite_or_none
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Budget
from sottovoce.privacy import compositions
from sottovoce.privacy.accounting import PrivacySpent, privacy_spent
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.runs.record import RunRecord, algorithm_facts
from sottovoce.runs.site_counts import have_site_replies, site_counts, totals

_MARKS = 40  # The number of rounds for which every accountant is asked.
_SLACK = 1e-9  # Relative; accountants reproduce their numbers up to rounding.


def accounts_of(record: RunRecord) -> dict[str, Any]:
    """Return what every client has spent, and the bounds on epsilon by round.

    Where the run stores messages, everything is computed again from its ledger. Otherwise charges
    were counted in memory, and the figures are those in result.json and metrics.jsonl.

    Args:
        record: The run, as its folder holds it.

    Returns:
        A dictionary. An epsilon of None is infinite.

        client    the client with the largest epsilon at the run's delta; None without charges or
                  without a ledger
        budget    that client's budget (without a ledger: of every client); None if there is none,
                  if it has another delta, or if budgets differ
        bounds    a list of {round, bounds: {accountant: epsilon}} for that client, or, without a
                  ledger, for the client with the largest epsilon after each round
        epsilon   the largest epsilon of any client at the run's delta
        clients   a row for each client; without a ledger empty before the end of the run
        sites     sums of `site_counts` over all clients; None if sites are not recorded
        ledger    the numbers of charges and clients in the ledger; None without one
        warnings  sentences about epsilons in result.json that are smaller than the ledger's

    Raises:
        LedgerError: The ledger is damaged, or lacks charges that the run recorded.
    """
    # A round is charged before its metrics are written, so a ledger may hold charges without rows.
    begun = record.rows or record.result is not None or record.folder.has_ledger
    if record.stores_messages and begun:
        with record.folder.ledger() as ledger, ledger.snapshot():
            return _from_ledger(record, ledger)
    return _from_metrics(record)


def _from_ledger(record: RunRecord, ledger: Ledger) -> dict[str, Any]:
    problems = ledger.verify()
    if problems:
        raise LedgerError(
            f"the ledger of {record.folder.path} is damaged: {problems[0]}; restore it from a "
            "backup, because its charges cannot be trusted"
        )
    histories, budgets = ledger.histories(), ledger.budgets()
    deltas = _deltas(record, budgets)
    run = str(record.header.get("run", record.spec.hash))
    rounds_charged = ledger.rounds_charged(run)
    _check_nothing_is_missing(record, rounds_charged)
    spent = {
        name: privacy_spent(event, deltas.get(name, record.spec.privacy.delta))
        for name, event in histories.items()
    }
    clients = _client_rows(record, budgets, deltas, spent, rounds_charged)
    noted = record.has_sites and have_site_replies(record.rows)
    if noted:
        counts = site_counts(record.rows, [row["client"] for row in clients])
        # `rounds` stays the ledger's count, which includes interrupted rounds.
        clients = [{**row, **counts[row["client"]], "rounds": row["rounds"]} for row in clients]
    at_run_delta = {
        name: privacy_spent(event, record.spec.privacy.delta).epsilon
        for name, event in histories.items()
    }
    top = max(at_run_delta, key=lambda name: at_run_delta[name], default=None)
    bounds = [] if top is None else _bounds(record, ledger.charges_by_round(top, run))
    largest = max(at_run_delta.values(), default=0.0)
    return {
        "client": top,
        "budget": _budget_at(budgets.get(top or ""), record.spec.privacy.delta),
        "bounds": bounds,
        "epsilon": finite_or_none(largest),
        "clients": clients,
        "sites": totals(clients) if noted else None,
        "ledger": {"charges": ledger.num_charges, "clients": len(histories)},
        "warnings": _disagreements(record, clients, largest),
    }


def _check_nothing_is_missing(record: RunRecord, rounds_charged: Mapping[str, int]) -> None:
    """Refuse a ledger with fewer charges than result.json or metrics.jsonl recorded.

    An older copy of a ledger is consistent in itself, so only the other files can reveal it.
    """
    told = (record.result or {}).get("clients", [])
    noted = sum(row["rounds"] for row in told) or sum(row["clients_asked"] for row in record.rows)
    short = any(rounds_charged.get(row["client"], 0) < row["rounds"] for row in told)
    if short or sum(rounds_charged.values()) < noted:
        raise LedgerError(
            f"the ledger of {record.folder.path} lacks charges of rounds that the run recorded: it "
            f"has {sum(rounds_charged.values())} for all clients, the run at least {noted}; "
            "restore it from a backup, together with its -wal file if there is one"
        )


def _budget_at(budget: Budget | None, delta: float) -> float | None:
    """Return the budget if it holds at `delta`; epsilons at two deltas cannot be compared."""
    return budget.epsilon if budget and budget.delta == delta else None


def _from_metrics(record: RunRecord) -> dict[str, Any]:
    """Return the accounts of a run whose charges were counted in memory."""
    rows, result = record.rows, record.result
    marked = [rows[number - 1] for number in spread_rounds(len(rows))]
    return {
        "client": None,
        "budget": _common_budget(record),
        "bounds": [
            {"round": row["round"], "bounds": row.get("bounds") or {"smallest": row["epsilon"]}}
            for row in marked
        ],
        "epsilon": result["epsilon"] if result else (rows[-1]["epsilon"] if rows else 0.0),
        "clients": [dict(row) for row in result["clients"]] if result else [],
        "sites": None,
        "ledger": None,
        "warnings": [],
    }


def _common_budget(record: RunRecord) -> float | None:
    """Return the epsilon that every client may spend at the run's delta; None if they differ."""
    if record.result is not None:
        budgets = {(row["budget"], row["delta"]) for row in record.result["clients"]}
        budget, delta = budgets.pop() if len(budgets) == 1 else (None, None)
        return budget if delta == record.spec.privacy.delta else None
    if not algorithm_facts(record.header).enforces_budget or record.spec.privacy.groups:
        return None
    return record.spec.privacy.epsilon


def spread_rounds(rounds: int, most: int = _MARKS) -> list[int]:
    """Return the first, the last and evenly spread rounds in between, at most `most` + 1.

    Args:
        rounds: The number of the last round; the first is 1.
        most: How many rounds to spread evenly.

    Returns:
        The numbers of the rounds in increasing order; empty if `rounds` is 0.
    """
    count = min(rounds, most)
    return sorted({1, *(-(-(i + 1) * rounds // count) for i in range(count))}) if rounds else []


def _deltas(record: RunRecord, budgets: Mapping[str, Budget]) -> dict[str, float]:
    """Return the delta at which each client is accounted: that of its budget or its group."""
    stated = {row["client"]: row["delta"] for row in (record.result or {}).get("clients", [])}
    return {**stated, **{name: budget.delta for name, budget in budgets.items()}}


def _client_rows(
    record: RunRecord,
    budgets: Mapping[str, Budget],
    deltas: Mapping[str, float],
    spent: Mapping[str, PrivacySpent],
    rounds: Mapping[str, int],
) -> list[dict[str, Any]]:
    """Return a row for each client, in the run's order; `ran_out` is None before the run's end."""
    told = {row["client"]: row for row in (record.result or {}).get("clients", [])}
    names = [one["client"] for one in record.header.get("clients", [])]
    found = []
    for name in dict.fromkeys([*names, *spent]):
        budget = budgets.get(name)
        before = told.get(name, {})
        found.append(
            {
                "client": name,
                "group": before.get("group"),
                "budget": budget.epsilon if budget else None,
                "delta": deltas.get(name, record.spec.privacy.delta),
                "epsilon": finite_or_none(spent[name].epsilon) if name in spent else 0.0,
                "rounds": rounds.get(name, 0),
                "ran_out": before.get("ran_out"),
            }
        )
    return found


def _bounds(
    record: RunRecord, charges: Sequence[tuple[int, PrivacyEvent, int]]
) -> list[dict[str, Any]]:
    """Return every accountant's bound on what one client has spent, at some of the run's rounds.

    Rounds that are charged but not in the metrics (interrupted, or about to be repeated) count as
    spent.
    """
    found = []
    last_charged = max((number for number, _, _ in charges), default=0)
    for last in spread_rounds(max(record.rounds_done, last_charged)):
        counts: dict[PrivacyEvent, int] = {}
        for number, event, count in charges:
            if number <= last:
                counts[event] = counts.get(event, 0) + count
        if counts:
            spent = privacy_spent(
                compositions.compose_repeated(counts.items()), record.spec.privacy.delta
            )
            bounds = {name: finite_or_none(bound) for name, bound in spent.bounds}
            found.append({"round": last, "bounds": bounds})
    return found


def _disagreements(
    record: RunRecord, clients: Sequence[Mapping[str, Any]], largest: float
) -> list[str]:
    """Return a warning where result.json claims a smaller epsilon than the ledger gives."""
    result = record.result
    if result is None or result["epsilon"] is None:
        return []
    found = []
    if largest > result["epsilon"] * (1.0 + _SLACK):
        found.append(
            f"result.json says epsilon {show_epsilon(result['epsilon'])}, but the charges in the "
            f"ledger give {show_epsilon(largest)}; the ledger's value is shown"
        )
    told = {row["client"]: row["epsilon"] for row in result["clients"]}
    low = [
        row["client"]
        for row in clients
        if told.get(row["client"]) is not None
        and (row["epsilon"] is None or row["epsilon"] > told[row["client"]] * (1.0 + _SLACK))
    ]
    if low and not found:
        found.append(
            f"result.json says a smaller epsilon than the ledger for {len(low)} clients, such as "
            f"'{low[0]}'; the ledger's values are shown"
        )
    return found
