"""results/figures.md: asked, measured, command, date; what falls short first, in plain words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from figures.figure import OUT, Figure

Record = dict[str, Any]  # of one figure, as results/figures.json keeps it
REACHED, SHORT, NOT_JUDGED, NOT_MEASURED = "reached", "short", "not judged", "not measured"


def shown(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.5g}"
    return f"{text} {unit}".strip()


def page(
    themes: Mapping[str, Sequence[Figure]], records: Mapping[str, Record], machine: str
) -> str:
    return "\n".join(_lines(themes, records, machine)) + "\n"


def _lines(
    themes: Mapping[str, Sequence[Figure]], records: Mapping[str, Record], machine: str
) -> Iterator[str]:
    figures = [figure for theme in themes.values() for figure in theme]
    by_verdict: dict[str, list[tuple[Figure, Record]]] = {
        verdict: [] for verdict in (REACHED, SHORT, NOT_JUDGED, NOT_MEASURED)
    }
    for figure in figures:
        record = records.get(figure.name, {"verdict": NOT_MEASURED, "reason": "not tried yet"})
        by_verdict[record["verdict"]].append((figure, record))
    yield "# Figures"
    yield ""
    yield (
        f"What was asked of Sottovoce in numbers, and what was measured, by `make figures` "
        f"(docs/benchmarks.md says how). {machine}."
    )
    yield ""
    yield (
        f"Of {len(figures)} figures {len(by_verdict[REACHED])} are reached, "
        f"{len(by_verdict[SHORT])} fall short, {len(by_verdict[NOT_JUDGED])} are times of a busy "
        f"machine and not judged, {len(by_verdict[NOT_MEASURED])} were not measured."
    )
    yield from _short(by_verdict[SHORT])
    yield from _without_verdict(by_verdict)
    for theme, own in themes.items():
        yield f"\n## {theme[0].upper()}{theme[1:].replace('_', ' ')}\n"
        yield "| asked | bound | measured | verdict | command | date |"
        yield "|---|---|---|---|---|---|"
        for figure in own:
            yield _row(figure, records.get(figure.name))


def _short(found: Sequence[tuple[Figure, Record]]) -> Iterator[str]:
    if not found:
        return
    yield "\n## What falls short\n"
    for figure, record in found:
        reason = f" {figure.known_reason}" if figure.known_reason else ""
        yield (
            f"- **{figure.asked}**: asked {figure.bound} {figure.unit}".rstrip()
            + f", measured {shown(record['value'], figure.unit)}.{reason}"
        )


def _without_verdict(found: Mapping[str, Sequence[tuple[Figure, Record]]]) -> Iterator[str]:
    if found[NOT_JUDGED]:
        yield "\n## Measured on a busy machine, not judged\n"
        for figure, record in found[NOT_JUDGED]:
            yield f"- {figure.asked}: {shown(record['value'], figure.unit)} ({record['reason']})"
    if found[NOT_MEASURED]:
        yield "\n## Not measured\n"
        for figure, record in found[NOT_MEASURED]:
            yield f"- {figure.asked}: {record['reason']}"


def _row(figure: Figure, record: Record | None) -> str:
    cells = [figure.asked, f"{figure.bound} {figure.unit}".strip()]
    if record is None:
        cells += ["", NOT_MEASURED]
    else:
        value = record.get("value")
        cells += ["" if value is None else shown(value, figure.unit), record["verdict"]]
    cells.append(f"`{figure.source.command.replace(OUT, 'OUT')}`")
    cells.append(record["when"] if record and "when" in record else "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
