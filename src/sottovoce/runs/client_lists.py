"""Tables with a row for each client, and the compressed files that hold long ones.

Up to `MOST_INLINE` clients are listed in run.json and result.json themselves, where a person can
read them. Of more clients these files hold only a summary, and the rows are stored as columns in a
compressed file in the same folder:

    run.json             "clients": {"count": 60000, "file": "run-clients.json.gz", ...}
    run-clients.json.gz  {"client": ["client-0", ...], "weight": [1.0, ...], ...}
"""

import gzip
import hashlib
import io
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.core import bounded_json, files
from sottovoce.core.errors import OutputError
from sottovoce.core.files import finite_or_none
from sottovoce.ledger.records import SpendingRecord
from sottovoce.mechanisms.mechanism import bits_per_coordinate

if TYPE_CHECKING:  # It imports torch.
    from sottovoce.runs.resolve import Resolved


def client_table(
    resolved: "Resolved", record: SpendingRecord, able: Collection[str], *, most_rounds: int
) -> list[dict[str, Any]]:
    """Return budget and spending of each client at its own delta.

    Args:
        resolved: The run.
        record: What the clients were charged.
        able: The clients that had budget for the last round that was run; if the run halted, for
            the next one, which too few clients could pay for.
        most_rounds: The largest number of rounds in which one client can be asked.

    Returns:
        A row for each client, in the run's order. `budget` is None without a budget. `epsilon` is
        0 without a charge, and None if it is infinite. `rounds` counts the rounds of this run that
        were charged. `ran_out` is true for a client that is not in `able`, unless it has already
        paid for `most_rounds`, as in an epoch in which it is asked once. `group` counts the tables
        of `privacy.groups` from 1; 0 is for clients that no table names.
    """
    rounds = record.rounds_charged(resolved.run)
    rows = {}
    for group in resolved.groups:
        for name in group.clients:
            spent = record.spent(name, group.delta)
            budget = resolved.budgets.get(name)
            rows[name] = {
                "client": name,
                "group": group.number,
                "budget": budget.epsilon if budget else None,
                "delta": group.delta,
                "epsilon": finite_or_none(spent.epsilon) if spent else 0.0,
                "rounds": rounds.get(name, 0),
                "ran_out": name not in able and rounds.get(name, 0) < most_rounds,
            }
    return [rows[part.client] for part in resolved.parts]


def group_table(resolved: "Resolved", clients: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return budget and spending of each group of clients that share a budget and a mechanism.

    Args:
        resolved: The run.
        clients: The rows of its clients, as `client_table` returns them.

    Returns:
        A row for each group. `clients` and `ran_out` are numbers of clients; `epsilon` and `rounds`
        are the largest of any of them, and an epsilon of None is infinite.
    """
    found = []
    for group in resolved.groups:
        rows = [row for row in clients if row["group"] == group.number]
        epsilons = [row["epsilon"] for row in rows]
        part = next(part for part in resolved.parts if part.client == group.clients[0])
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


MOST_INLINE = 100
SUFFIX = "-clients.json.gz"
_MOST_BYTES = 1 << 30  # Of the unpacked columns: some hundred bytes for millions of clients.
_MOST_CLIENTS = 10**8
_MOST_CLIENT_BYTES, _MOST_COLUMNS = 4096, 64  # Of one client.
_LEVEL = 6


def store_clients(path: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """Write a long list of clients to its own file, and return the table with a summary instead.

    The list is written first, so that a file never names a list that does not exist.

    Args:
        path: The file that is going to hold the table.
        table: The table, with an entry `clients`.

    Returns:
        The table as `path` is to store it, which the caller writes; unchanged, and no list is
        written, if there are at most `MOST_INLINE` clients or the list has more than 1 GiB.
    """
    rows = table.get("clients", ())
    if len(rows) <= MOST_INLINE:
        return dict(table)
    assert all(row.keys() == rows[0].keys() for row in rows), "columns have an entry in every row"
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    content = json.dumps(columns, separators=(",", ":")).encode()
    if len(content) > _MOST_BYTES:
        return dict(table)
    # No time stamp, so that the same run writes the same bytes.
    packed = gzip.compress(content, _LEVEL, mtime=0)
    files.write_atomic(_list_path(path), packed, mode=files.PRIVATE)
    summary = {
        "count": len(rows),
        "file": _list_path(path).name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "ranges": {
            name: [min(values), max(values)]
            for name, values in columns.items()
            if all(type(value) in (int, float) for value in values)
        },
    }
    return {**table, "clients": summary}


def restore_clients(path: Path, table: dict[str, Any]) -> dict[str, Any]:
    """Return the table of `path` with its whole list of clients.

    Args:
        path: The file that holds the table.
        table: The table as stored, perhaps with a summary of the clients.

    Returns:
        The table as it was given to `store_clients`; unchanged if it has no summary.

    Raises:
        OutputError: The file with the list is missing, damaged, or belongs to another table.
    """
    summary = table.get("clients")
    if not isinstance(summary, dict):
        return table
    stored = _list_path(path)
    if not stored.is_file():
        raise OutputError(
            f"{stored}, the list of clients of {path.name}, is missing; restore it from a backup"
        )
    with files.explain_os_errors("read", stored):
        packed = stored.read_bytes()
    rows = _rows(packed, summary.get("sha256"), summary.get("count"))
    if rows is None or len(rows) != summary.get("count"):
        raise OutputError(
            f"{stored} (a list of clients) is damaged, or belongs to another {path.name}; restore "
            "it from a backup"
        )
    return {**table, "clients": rows}


def _list_path(path: Path) -> Path:
    return path.with_name(path.stem + SUFFIX)


def _rows(packed: bytes, digest: object, count: object) -> Sequence[dict[str, Any]] | None:
    """Return a row for each client; None if the columns do not match the digest."""
    if type(count) is not int or not 0 <= count <= _MOST_CLIENTS:
        return None
    # The folder may come from anyone, so a small file must not unpack to gigabytes.
    most_bytes = min(_MOST_BYTES, (count + 1) * _MOST_CLIENT_BYTES)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            content = file.read(most_bytes + 1)
        if len(content) > most_bytes or hashlib.sha256(content).hexdigest() != digest:
            return None
        columns = bounded_json.loads(
            content, most_bytes=most_bytes, most_values=(count + 1) * _MOST_COLUMNS
        )
        return [
            dict(zip(columns, row, strict=False)) for row in zip(*columns.values(), strict=True)
        ]
    except (*files.ARRAY_DAMAGE, AttributeError, RecursionError):
        return None
