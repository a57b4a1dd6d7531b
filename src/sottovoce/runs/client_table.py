"""Who has spent what in a run: one row for each client, and one for each group."""

from collections.abc import Collection
from typing import Any

from sottovoce.core.files import finite_or_none
from sottovoce.ledger.records import SpendingRecord
from sottovoce.mechanisms.mechanism import bits_per_coordinate
from sottovoce.runs.parts import Assembly


def client_table(
    assembly: Assembly, record: SpendingRecord, able: Collection[str], *, most_rounds: int
) -> list[dict[str, Any]]:
    """Budget and spending of each client at its own delta.

    Whoever is not `able` to pay for the last round has run out, unless it has paid for as many as
    it could be asked in: of an epoch one, whichever it was.

    `group` counts the spec's tables from 1; 0 are clients that no table names.
    """
    rounds = record.rounds_charged(assembly.run)
    rows = {}
    for group in assembly.groups:
        for name in group.clients:
            spent = record.spent(name, group.delta)
            budget = assembly.budgets.get(name)
            rows[name] = {
                "client": name,
                "group": group.number,
                "budget": budget.epsilon if budget else None,
                "delta": group.delta,
                "epsilon": finite_or_none(spent.epsilon) if spent else 0.0,
                "rounds": rounds.get(name, 0),
                "ran_out": name not in able and rounds.get(name, 0) < most_rounds,
            }
    return [rows[part.client] for part in assembly.parts]


def group_table(assembly: Assembly, clients: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same for each group: the most that one of its clients has spent."""
    found = []
    for group in assembly.groups:
        rows = [row for row in clients if row["group"] == group.number]
        epsilons = [row["epsilon"] for row in rows]
        part = next(part for part in assembly.parts if part.client == group.clients[0])
        found.append(
            {
                "group": group.number,
                "clients": len(rows),
                "mechanism": {"kind": group.mechanism.kind, **group.mechanism.parameters},
                "bits_per_coordinate": bits_per_coordinate(part.mechanism),
                "budget": rows[0]["budget"],
                "delta": group.delta,
                "epsilon": None if None in epsilons else max(epsilons),
                "rounds": max(row["rounds"] for row in rows),
                "ran_out": sum(row["ran_out"] for row in rows),
            }
        )
    return found
