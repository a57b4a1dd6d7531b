"""Measures every figure that was asked for: `make figures` writes results/figures.md and .json.

    python benchmarks/measure_figures.py [--only THEME-OR-NAME] [--within MINUTES] [--again]

A source (one command) runs once for all figures that read it, in a process of its own. What was
measured at this commit of the code is not measured again (its output is kept under build/figures),
unless the machine was busy then and is not now; --again measures it all the same. Exit 1 if a
source failed or a number was not found; a figure that falls short stands on the page, and is no
error.
"""

import argparse
import fnmatch
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from figures import page, register, running
from figures.figure import (
    ROOT,
    Figure,
    Kept,
    Output,
    Source,
    UnreadableError,
    models_at_chance,
    read,
)
from figures.page import AT_CHANCE, NOT_JUDGED, NOT_MEASURED, REACHED, REDUCED, SHORT, Record
from figures.running import Measurement, NotMeasuredError

from sottovoce.core.files import write_atomic

RESULTS = ROOT / "results"
WORKSHOP = ROOT / "build" / "figures"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="*", help="a theme, a figure's name, or a pattern")
    parser.add_argument("--within", type=float, help="leave out sources that take more minutes")
    parser.add_argument("--again", action="store_true", help="measure what was measured, too")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the page goes")
    given = parser.parse_args(arguments)
    themes = register.themes()
    chosen = [
        figure
        for theme, own in themes.items()
        for figure in own
        if fnmatch.fnmatch(theme, given.only) or fnmatch.fnmatch(figure.name, given.only)
    ]
    if not chosen:
        parser.error(f"no theme or figure is called {given.only}; themes: {', '.join(themes)}")
    path = given.results / "figures.json"
    records: dict[str, Record] = json.loads(path.read_text()) if path.exists() else {}
    known = {figure.name for own in themes.values() for figure in own}
    records = {name: record for name, record in records.items() if name in known}
    failures = 0
    for source in dict.fromkeys(figure.source for figure in chosen):
        own = [figure for figure in chosen if figure.source == source]
        if isinstance(source, Source) and (reason := _left_out(source, given.within)):
            for figure in own:
                records.setdefault(figure.name, {"verdict": NOT_MEASURED, "reason": reason})
            continue
        found, failed = measured(source, own, again=given.again)
        failures += failed
        records.update(found)
        for figure in own:
            print(f"{figure.name}: {_brief(figure, records[figure.name])}", flush=True)
        _write(path, themes, records)
    _write(path, themes, records)
    print(f"wrote {path.with_suffix('.md')}")
    return 1 if failures else 0


def measured(
    source: Source | Kept, figures: Sequence[Figure], *, again: bool = False
) -> tuple[dict[str, Record], int]:
    """Return the records of a source's figures, and how many of them are errors."""
    if isinstance(source, Kept):
        return _kept(source, figures)
    print(f"$ {source.command}", flush=True)
    folder = WORKSHOP / source.name
    try:
        found = _measurement(source, figures, folder, again)
    except NotMeasuredError as error:
        reason = str(error)
        record = {"verdict": NOT_MEASURED, "reason": reason, "failed": True}
        return {figure.name: dict(record) for figure in figures}, len(figures)
    when = f"{found.date} ({found.commit})"
    about = {
        "when": when,
        "command": source.command,
        "machine": found.machine,
        "load": round(found.load, 2),
        "others": round(found.others, 3),
        "stolen": round(found.stolen, 3),
    }
    busy = (
        f"others had {found.others:.0%} of the cores and the host {found.stolen:.0%}"
        if found.busy
        else ""
    )
    return _judged(figures, found.output, about, busy=busy, reduced=source.reduced)


def _measurement(
    source: Source, figures: Sequence[Figure], folder: Path, again: bool
) -> Measurement:
    """Return the measurement of this commit, or make a new one."""
    commit = running.code_commit()
    found = None if again else running.kept(source, folder, commit)
    wants_quiet = any(figure.timed for figure in figures)
    if found and not (found.busy and wants_quiet and not running.busy_now()):
        return found
    return running.measure(source, folder, commit)


def _kept(source: Kept, figures: Sequence[Figure]) -> tuple[dict[str, Record], int]:
    path = ROOT / source.path
    if not path.exists():
        record = {"verdict": NOT_MEASURED, "reason": f"no {source.path} is kept", "failed": True}
        return {figure.name: dict(record) for figure in figures}, len(figures)
    when = f"kept result of {running.kept_date(source.path)}"
    about = {"when": when, "command": source.command, "machine": source.machine}
    output = Output(text=path.read_text(), folder=path.parent)
    return _judged(figures, output, about, busy="", reduced=source.reduced)


def _judged(
    figures: Sequence[Figure], output: Output, about: dict[str, Any], *, busy: str, reduced: str
) -> tuple[dict[str, Record], int]:
    records: dict[str, Record] = {}
    for figure in figures:
        try:
            value = read(figure, output)
            at_chance = models_at_chance(figure, output)
        except UnreadableError as error:
            reason = f"its number was not found: {error}"
            records[figure.name] = {"verdict": NOT_MEASURED, "reason": reason, "failed": True}
            continue
        record: Record = {"asked": figure.asked, "bound": str(figure.bound), "value": value}
        record |= {"unit": figure.unit, **about}
        record["run"] = "reduced" if reduced else "full"
        if reduced and not figure.about_reduced:
            also = f" At chance: {'; '.join(at_chance)}." if at_chance else ""
            record |= {"verdict": REDUCED, "reason": f"{reduced.removesuffix('.')}.{also}"}
        elif at_chance:
            record |= {"verdict": AT_CHANCE, "reason": "; ".join(at_chance)}
        elif busy and not figure.judged_though_busy(value):
            record |= {"verdict": NOT_JUDGED, "reason": busy}
        else:
            record["verdict"] = REACHED if figure.bound.holds(value) else SHORT
        records[figure.name] = record
    return records, sum("failed" in record for record in records.values())


def _left_out(source: Source, within: float | None) -> str:
    if within is not None and source.minutes > within:
        return f"takes about {source.minutes:g} minutes"
    if source.needs_data and not os.environ.get("SOTTOVOCE_DATA"):
        return "needs real data: SOTTOVOCE_DATA=FOLDER says where they lie"
    return ""


def _brief(figure: Figure, record: Record) -> str:
    if "value" not in record:
        return f"{record['verdict']}: {record['reason']}"
    value = page.shown(record["value"], figure.unit)
    return f"{record['verdict']}: {value} (asked: {figure.bound})"


def _write(path: Path, themes: dict[str, tuple[Figure, ...]], records: dict[str, Record]) -> None:
    write_atomic(path, (json.dumps(records, indent=1, sort_keys=True) + "\n").encode())
    write_atomic(path.with_suffix(".md"), page.page(themes, records).encode())


if __name__ == "__main__":
    sys.exit(main())
