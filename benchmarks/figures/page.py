"""The page results/figures.md: how many figures are in each state, which, and the table of all."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from figures.figure import OUT, Figure, Source

Record = dict[str, Any]  # of one figure, as results/figures.json keeps it
REACHED = "reached"
SHORT = "not reached"
REDUCED = "reduced"  # a part of the study ran; not judged, whatever its number is
NOT_LEARNED = "not learned"  # training without noise is below its floor, or a model at chance
NOT_MEASURED = "not measured"  # or on a busy machine, or not found
STATES = {
    REACHED: "The full study ran with the command in the table, and its number is in the bound.",
    SHORT: "The number is outside its bound.",
    REDUCED: "Only a part of the study ran, so its number is not judged.",
    NOT_LEARNED: "Training without noise is below what the study asks of it, or missing; or a "
    "model is no better than a constant prediction, by its 95% interval.",
    NOT_MEASURED: "There is no number, or none that can be judged.",
}


def shown(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.5g}"
    return f"{text} {unit}".strip()


def page(themes: Mapping[str, Sequence[Figure]], records: Mapping[str, Record]) -> str:
    return "\n".join(_lines(themes, records)) + "\n"


def _lines(themes: Mapping[str, Sequence[Figure]], records: Mapping[str, Record]) -> Iterator[str]:
    figures = [figure for theme in themes.values() for figure in theme]
    by_state: dict[str, list[tuple[Figure, Record]]] = {state: [] for state in STATES}
    for figure in figures:
        record = records.get(figure.name, {"state": NOT_MEASURED, "reason": "not tried yet"})
        by_state[record["state"]].append((figure, record))
    counts = [
        f"{len(found)} {'is' if len(found) == 1 else 'are'} {state}"
        for state, found in by_state.items()
    ]
    yield "# Figures"
    yield ""
    yield (
        f"Of {len(figures)} figures {', '.join(counts[:-1])} and {counts[-1]}. "
        "All that are not reached are named below."
    )
    yield ""
    yield (
        "They are what was asked of Sottovoce in numbers, and what was measured, by `make figures` "
        f"(docs/reference/benchmarks.md says how). {_machines(figures, records)}"
    )
    for state, found in by_state.items():
        if state != REACHED and found:
            yield f"\n## {state.capitalize()}\n\n{STATES[state]}\n"
            yield from (_named(figure, record) for figure, record in found)
    for theme, own in themes.items():
        yield f"\n## {theme[0].upper()}{theme[1:].replace('_', ' ')}\n"
        yield "| asked | bound | measured | state | command | date |"
        yield "|---|---|---|---|---|---|"
        for figure in own:
            yield _row(figure, records.get(figure.name))


def _named(figure: Figure, record: Record) -> str:
    """Return one line about a figure that is not reached."""
    told, reason = f"- **{figure.asked}**", record.get("reason", "")
    if "value" in record:
        told += f": asked {figure.bound} {figure.unit}".rstrip()
        told += f", measured {shown(record['value'], figure.unit)}"
    if record["state"] == SHORT:
        return f"{told}. {figure.known_reason}".rstrip()
    return f"{told}: {reason}"


def _row(figure: Figure, record: Record | None) -> str:
    cells = [figure.asked, f"{figure.bound} {figure.unit}".strip()]
    if record is None:
        cells += ["", NOT_MEASURED]
    else:
        value = record.get("value")
        cells += ["" if value is None else shown(value, figure.unit), record["state"]]
    cells += [_command(figure, record or {}), (record or {}).get("when", "")]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _command(figure: Figure, record: Record) -> str:
    """Return the command that ran; if today's is another one, that too, marked as not run."""
    ran, now = record.get("command"), figure.source.command
    parts = [f"`{ran}`"] if ran else []
    if ran != now:
        parts += [f"{'today, ' if ran else ''}not run: `{now}`"]
    return "; ".join(parts).replace(OUT, "OUT")


def _machines(figures: Sequence[Figure], records: Mapping[str, Record]) -> str:
    """Return the machines of the measurements; a kept result's machine is on its own page."""
    own = [figure.name for figure in figures if isinstance(figure.source, Source)]
    found = Counter(records[name]["machine"] for name in own if "machine" in records.get(name, {}))
    return " ".join(f"{count} figures: {machine}." for machine, count in found.most_common())
