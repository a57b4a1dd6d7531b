"""The page results/benchmarks.md: one part for each kind of machine, kept in a JSON file beside it.

Whoever measures on one kind of machine replaces the part of that kind only; the others stay as they
were, with their dates. A part is a table:

    processor, system, software, date      what the numbers belong to
    rows                                   the speeds, as texts by the names of the columns
    details                                further sections in Markdown
"""

import datetime
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.core.files import write_atomic

Part = dict[str, Any]
KINDS = ("x86", "ARM", "H200")
COLUMNS = (
    "what", "measured", "to numpy", "to torch", "limit", "reached", "processor", "kernels",
    "command",
)  # fmt: skip
# The rows of `benchmarks/gpu.py` that measure what a row of the page does: how their names begin.
_ON_GPU = {
    "client, 1 bit": "one bit, d = 1000000",
    "client, 1 bit, ten million": "one bit, d = 10000000",
    "client, 2 bits": "privatise, gauss_hermite 4",
    "client, 4 bits": "privatise, gauss_hermite 16",
    "client, MVU table of 3 bits": "privatise, mvu 3 bits",
    "client, Gaussian on a grid, 16 bits": "privatise, discrete_gaussian 16 bits",
    "server, 1 bit": "counts, 1000 of 10000000",
    "server, 2 bits": "counts of 4 levels, 1000 of 10000000",
    "server, 4 bits": "counts of 16 levels, 1000 of 10000000",
}


def kind_of_machine() -> str | None:
    """Return the kind of this machine's processor: x86 or ARM; None for others."""
    name = platform.machine().lower()
    if name in ("x86_64", "amd64"):
        return "x86"
    return "ARM" if name in ("aarch64", "arm64") else None


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def read_parts(page: Path) -> dict[str, Part]:
    """Return the parts of a page by the kind of machine; none if there is no page yet."""
    file = page.with_suffix(".json")
    found: dict[str, Part] = json.loads(file.read_text()) if file.exists() else {}
    return found


def write_page(page: Path, parts: Mapping[str, Part], *, note: str = "") -> None:
    """Write the page and the file beside it."""
    order = sorted(parts, key=lambda kind: (KINDS.index(kind) if kind in KINDS else 99, kind))
    kept = {kind: parts[kind] for kind in order}
    lines = "\n".join(_lines(kept, note)) + "\n"
    write_atomic(page.with_suffix(".json"), (json.dumps(kept, indent=1) + "\n").encode())
    write_atomic(page, lines.encode())


def gpu_part(report: Mapping[str, Any], date: str) -> Part:
    """Return the part of a GPU from the report that `benchmarks/gpu.py --report` writes."""
    device = str(report["device"])
    measured = {row["name"]: row for row in report["measured"]}
    rows = []
    for what, beginning in _ON_GPU.items():
        found = [row for name, row in measured.items() if _begins(name, beginning)]
        if found:
            best = max(found, key=lambda row: row["share_of_floor"])
            rows.append(_gpu_row(what, best, device))
    heads = ["what", "time", "coordinates/s", "share of the floor", "processor"]
    listed = [
        [
            name,
            f"{1e3 * row['seconds']:.3f} ms",
            _rate(row["coordinates_per_second"]),
            f"{row['share_of_floor']:.1%}",
            device,
        ]
        for name, row in measured.items()
    ]
    checked = f"{report['checks']} results were compared with the CPU's, bit for bit: "
    return {
        "processor": device,
        "system": "CUDA",
        "software": f"torch {report['torch']}, triton {report['triton']}",
        "date": date,
        "rows": rows,
        "details": [f"{checked}{len(report['wrong'])} wrong.", "", *table(heads, listed)],
    }


def _begins(name: str, beginning: str) -> bool:
    """Return whether a name begins so, and not only a longer number in it."""
    name = name.replace("privatize", "privatise")
    return name.startswith(beginning) and not name[len(beginning) :][:1].isdigit()


def _rate(coordinates_per_second: float) -> str:
    size, unit = (1e12, "T") if coordinates_per_second >= 1e12 else (1e9, "G")
    return f"{coordinates_per_second / size:.3g} {unit}"


def _gpu_row(what: str, row: Mapping[str, Any], device: str) -> dict[str, str]:
    return {
        "what": what,
        "measured": f"{_rate(row['coordinates_per_second'])} coordinates/s",
        "limit": "the bytes that must move, at the rate of a copy",
        "reached": f"{row['share_of_floor']:.{1 if row['share_of_floor'] < 0.01 else 0}%}",
        "processor": device,
        "kernels": "cuda",
        "command": f"`python benchmarks/gpu.py` ({row['name']})",
    }


def _lines(parts: Mapping[str, Part], note: str) -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    yield (
        "Written by `make bench`, which replaces the part of the machine that it runs on and keeps "
        "the others with their dates. Every result was checked before it was timed. Ratios are "
        "within one run; absolute numbers are those of one machine, and of whatever else ran on "
        "it. [docs/reference/benchmarks.md](../docs/reference/benchmarks.md) says how to read them."
    )
    yield from ([f"\n{note}"] if note else [])
    yield "\n## Machines\n"
    facts = ("processor", "system", "software", "date")
    yield from table(
        ["", *facts], [[kind, *(one[f] for f in facts)] for kind, one in parts.items()]
    )
    yield "\n## Speed\n"
    yield "The speed, its share of the machine's own limit, and the kernels; empty: not measured.\n"
    whats = dict.fromkeys(row["what"] for one in parts.values() for row in one["rows"])
    yield from table(
        ["what", *parts], [[what, *(_cell(one, what) for one in parts.values())] for what in whats]
    )
    for kind, one in parts.items():
        yield f"\n## {kind}: {one['processor']}, {one['date']}\n"
        rows = [[row.get(column, "") for column in COLUMNS] for row in one["rows"]]
        used = [i for i, _ in enumerate(COLUMNS) if any(row[i] for row in rows)]
        yield from table([COLUMNS[i] for i in used], [[row[i] for i in used] for row in rows])
        yield ""
        yield from one["details"]


def _cell(part: Part, what: str) -> str:
    for row in part["rows"]:
        if row["what"] == what:
            reached = f"{row['reached']} of the limit" if row.get("reached") else ""
            shown = [row.get("measured", ""), reached, row.get("kernels", "")]
            return ", ".join(text for text in shown if text)
    return ""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
