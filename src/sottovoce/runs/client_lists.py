"""Lists with an entry for each client, kept beside run.json and result.json where they are long.

Up to `MOST_INLINE` clients stand in the file itself, where a person can read them. Of more, the
file has a summary alone, and the entries are in a compressed file of columns beside it:

    run.json             "clients": {"count": 60000, "file": "run-clients.json.gz", ...}
    run-clients.json.gz  {"client": ["client-0", ...], "weight": [1.0, ...], ...}
"""

import gzip
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.core import bounded_json, files
from sottovoce.core.errors import OutputError

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
