"""Lists with an entry for each client, kept beside run.json and result.json where they are long.

Up to `MOST_INLINE` clients stand in the file itself, where a person can read them. Of more, the
file has a summary alone, and the entries are in a compressed file of columns beside it:

    run.json             "clients": {"count": 60000, "file": "run-clients.json.gz", ...}
    run-clients.json.gz  {"client": ["client-0", ...], "weight": [1.0, ...], ...}

Who has spent what in a run: one row for each client, and one for each group.
"""

import gzip
import hashlib
import io
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.core import bounded_json, files
from sottovoce.core.errors import OutputError
from sottovoce.core.files import finite_or_none
from sottovoce.ledger.records import SpendingRecord
from sottovoce.mechanisms.mechanism import bits_per_coordinate
from sottovoce.runs.resolve import Resolved


def client_table(
    resolved: Resolved, record: SpendingRecord, able: Collection[str], *, most_rounds: int
) -> list[dict[str, Any]]:
    """Budget and spending of each client at its own delta.

    Whoever is not `able` to pay for the last round has run out, unless it has paid for as many as
    it could be asked in: of an epoch one, whichever it was.

    `group` counts the spec's tables from 1; 0 are clients that no table names.
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


def group_table(resolved: Resolved, clients: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same for each group: the most that one of its clients has spent."""
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
_MOST_BYTES = 1 << 30  # of columns, unpacked: some hundred bytes for each of millions of clients
_MOST_CLIENTS = 10**8
_MOST_CLIENT_BYTES, _MOST_COLUMNS = 4096, 64  # of one client
_LEVEL = 6


def put_beside(path: Path, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return `table`, which `path` is to hold, with a summary in place of a long list of clients.

    The list is written first, so that a file never names a list that is not there.
    """
    rows = table.get("clients", ())
    if len(rows) <= MOST_INLINE:
        return dict(table)
    assert all(row.keys() == rows[0].keys() for row in rows), "columns have an entry in every row"
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    content = json.dumps(columns, separators=(",", ":")).encode()
    if len(content) > _MOST_BYTES:
        return dict(table)
    # Without a time, so that the same run leaves the same bytes.
    packed = gzip.compress(content, _LEVEL, mtime=0)
    files.write_atomic(_beside(path), packed, mode=files.PRIVATE)
    summary = {
        "count": len(rows),
        "file": _beside(path).name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "ranges": {
            name: [min(values), max(values)]
            for name, values in columns.items()
            if all(type(value) in (int, float) for value in values)
        },
    }
    return {**table, "clients": summary}


def bring_back(path: Path, table: dict[str, Any]) -> dict[str, Any]:
    """Return what `path` was given to hold: `table` with the list of clients that is beside it."""
    summary = table.get("clients")
    if not isinstance(summary, dict):
        return table
    beside = _beside(path)
    if not beside.is_file():
        raise OutputError(f"{beside} is missing, and {path.name} names it; restore it")
    with files.explained("read", beside):
        packed = beside.read_bytes()
    rows = _rows(packed, summary.get("sha256"), summary.get("count"))
    if rows is None or len(rows) != summary.get("count"):
        raise OutputError(f"{beside} is damaged, or not of this {path.name}; restore it")
    return {**table, "clients": rows}


def _beside(path: Path) -> Path:
    return path.with_name(path.stem + SUFFIX)


def _rows(packed: bytes, digest: object, count: object) -> Sequence[dict[str, Any]] | None:
    """Return an entry for each client; None if the columns are not those of the digest."""
    if type(count) is not int or not 0 <= count <= _MOST_CLIENTS:
        return None
    most_bytes = min(_MOST_BYTES, (count + 1) * _MOST_CLIENT_BYTES)  # whoever made the folder
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            content = file.read(most_bytes + 1)
        if len(content) > most_bytes or hashlib.sha256(content).hexdigest() != digest:
            return None
        columns = bounded_json.loads(
            content, most_bytes=most_bytes, most_values=(count + 1) * _MOST_COLUMNS
        )
        # Each row has an entry of every column.
        return [
            dict(zip(columns, row, strict=False)) for row in zip(*columns.values(), strict=True)
        ]
    except (*files.ARRAY_DAMAGE, AttributeError, RecursionError):
        return None
