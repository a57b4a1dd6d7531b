"""The page results/figures.md: asked, measured, command, date; figures that fall short first."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from figures.figure import OUT, Figure, Kept, Source

Record = dict[str, Any]  # of one figure, as results/figures.json keeps it
REACHED, SHORT, NOT_JUDGED, NOT_MEASURED = "reached", "short", "not judged", "not measured"
REDUCED = "reduced run, not judged"  # whatever its number is
AT_CHANCE = "at chance, not reached"  # a model no better than a constant prediction
VERDICTS = (REACHED, SHORT, AT_CHANCE, REDUCED, NOT_JUDGED, NOT_MEASURED)


def shown(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.5g}"
    return f"{text} {unit}".strip()


def page(themes: Mapping[str, Sequence[Figure]], records: Mapping[str, Record]) -> str:
    return "\n".join(_lines(themes, records)) + "\n"


def _lines(themes: Mapping[str, Sequence[Figure]], records: Mapping[str, Record]) -> Iterator[str]:
    figures = [figure for theme in themes.values() for figure in theme]
    by_verdict: dict[str, list[tuple[Figure, Record]]] = {verdict: [] for verdict in VERDICTS}
    for figure in figures:
        record = records.get(figure.name, {"verdict": NOT_MEASURED, "reason": "not tried yet"})
        by_verdict[record["verdict"]].append((figure, record))
    yield "# Figures"
    yield ""
    yield (
        f"What was asked of Sottovoce in numbers, and what was measured, by `make figures` "
        f"(docs/reference/benchmarks.md says how). {_machines(figures, records)}"
    )
    yield ""
    yield (
        f"Of {len(figures)} figures {len(by_verdict[REACHED])} are reached, "
        f"{len(by_verdict[SHORT])} fall short, {len(by_verdict[AT_CHANCE])} rest on a model at "
        f"chance, {len(by_verdict[REDUCED])} on a reduced run and are not judged, "
        f"{len(by_verdict[NOT_JUDGED])} are times of a busy machine and not judged, "
        f"{len(by_verdict[NOT_MEASURED])} were not measured."
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
    if found[AT_CHANCE]:
        yield "\n## At chance, not reached\n"
        yield "No better than a constant prediction, by the model's 95% interval:\n"
        for figure, record in found[AT_CHANCE]:
            yield f"- {figure.asked}: {record['reason']}"
    if found[REDUCED]:
        yield "\n## Reduced runs, not judged\n"
        for figure, record in found[REDUCED]:
            yield f"- {figure.asked}: {record['reason']}"
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
    cells += [_command(figure, record or {}), _circumstances(figure, record or {})]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _command(figure: Figure, record: Record) -> str:
    """Return the command that ran; if none did, the one that would, marked as such."""
    if "command" in record:
        return f"`{record['command'].replace(OUT, 'OUT')}`"
    return f"not run: `{figure.source.command.replace(OUT, 'OUT')}`"


def _circumstances(figure: Figure, record: Record) -> str:
    """Return when it was measured, and by what kind of run if models were trained or kept."""
    kind = figure.models or isinstance(figure.source, Kept) or record.get("run") == "reduced"
    run = f"{record['run']} run" if kind and "run" in record else ""
    return ", ".join(filter(None, [record.get("when", ""), run]))


def _machines(figures: Sequence[Figure], records: Mapping[str, Record]) -> str:
    """Return the machines of the measurements; a kept result's machine is on its own page."""
    own = [figure.name for figure in figures if isinstance(figure.source, Source)]
    found = Counter(records[name]["machine"] for name in own if "machine" in records.get(name, {}))
    return " ".join(f"{count} figures: {machine}." for machine, count in found.most_common())
