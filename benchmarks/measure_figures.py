"""Measures every figure that was asked for: `make figures` writes results/figures.md and .json.

    python benchmarks/measure_figures.py [--only THEME-OR-NAME] [--within MINUTES] [--again]

A source (one command) runs once for all figures that read it, in a process of its own. What was
measured at this commit of the code is not measured again (its output is kept under build/figures),
unless the machine was busy then and is not now; --again measures it all the same. Pages under
results/ are always read again, and numbers that were measured before are judged again: --within 0
does nothing else. Exit 1 if a source failed, a page was refused or a number was not found; a figure
that is not reached is named on the page, and is no error.
"""

import argparse
import fnmatch
import json
import os
import sys
from collections.abc import Mapping, Sequence
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
from figures.page import NOT_LEARNED, NOT_MEASURED, REACHED, REDUCED, SHORT, Record
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
    figures = {figure.name: figure for own in themes.values() for figure in own}
    records = {name: judged(figures[name], one) for name, one in records.items() if name in figures}
    wanted = [one for one in figures.values() if one in chosen or isinstance(one.source, Kept)]
    failures = 0
    for source in dict.fromkeys(figure.source for figure in wanted):
        own = [figure for figure in wanted if figure.source == source]
        if isinstance(source, Source) and (reason := _left_out(source, given.within)):
            for figure in own:
                if "value" not in records.get(figure.name, {}):
                    records[figure.name] = {"state": NOT_MEASURED, "reason": reason}
            continue
        found, failed = measured(source, own, again=given.again)
        failures += failed
        records.update(found)
        for figure in own:
            if figure in chosen:
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
        return _unread(figures, str(error))
    about = {
        "when": f"{found.date} ({found.commit})",
        "command": source.command,
        "machine": found.machine,
        "load": round(found.load, 2),
        "others": round(found.others, 3),
        "stolen": round(found.stolen, 3),
    }
    return _records(figures, found.output, {**about, "reduced": source.reduced})


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
    path, page = ROOT / source.path, source.page
    if not path.exists():
        return _unread(figures, f"no {source.path} is kept")
    if page.refused:
        return _unread(figures, f"{source.path} is refused: {page.refused}")
    about = {
        "when": f"kept result of {running.kept_date(source.path)}",
        "command": source.command,
        "machine": page.machine,
        "reduced": source.reduced,
        "not_learned": page.not_learned,
    }
    return _records(figures, Output(text=path.read_text(), folder=path.parent), about)


def _unread(figures: Sequence[Figure], reason: str) -> tuple[dict[str, Record], int]:
    record = {"state": NOT_MEASURED, "reason": reason, "failed": True}
    return {figure.name: dict(record) for figure in figures}, len(figures)


def _records(
    figures: Sequence[Figure], output: Output, about: Mapping[str, Any]
) -> tuple[dict[str, Record], int]:
    """Return what is known of each figure, judged, and how many numbers were not found."""
    records: dict[str, Record] = {}
    for figure in figures:
        try:
            value = read(figure, output)
            at_chance = models_at_chance(figure, output)
        except UnreadableError as error:
            records |= _unread([figure], f"its number was not found: {error}")[0]
            continue
        learned = [about.get("not_learned", "")]
        learned += [f"At chance: {'; '.join(at_chance)}."] if at_chance else []
        own = {**about, "value": value, "not_learned": " ".join(filter(None, learned))}
        records[figure.name] = judged(figure, own)
    return records, sum("failed" in record for record in records.values())


def judged(figure: Figure, record: Record) -> Record:
    """Return a record with its state, by what is asked of the figure today."""
    if "value" not in record:
        return record
    value, reduced = record["value"], record.get("reduced", "").rstrip(".")
    not_learned, busy = record.get("not_learned", ""), _busy(record)
    reason = ""
    if reduced and not figure.about_reduced:
        state, reason = REDUCED, f"{reduced}. {not_learned}".strip()
    elif not_learned:
        state, reason = NOT_LEARNED, not_learned
    elif busy and not figure.judged_though_busy(value):
        state, reason = NOT_MEASURED, f"on a busy machine: {busy}"
    else:
        state = REACHED if figure.bound.holds(value) else SHORT
    known = {name: one for name, one in record.items() if one != "" and name != "reason"}
    known |= {"asked": figure.asked, "bound": str(figure.bound), "unit": figure.unit}
    return {**known, "state": state, **({"reason": reason} if reason else {})}


def _busy(record: Record) -> str:
    """Return who else used the machine, if that was too much to judge times; empty otherwise."""
    others, stolen = record.get("others", 0.0), record.get("stolen", 0.0)
    if not running.was_busy(others, stolen):
        return ""
    return f"others had {others:.0%} of the cores and the host {stolen:.0%}"


def _left_out(source: Source, within: float | None) -> str:
    if within is not None and source.minutes > within:
        return f"takes about {source.minutes:g} minutes"
    if source.needs_data and not os.environ.get("SOTTOVOCE_DATA"):
        return "needs real data: SOTTOVOCE_DATA=FOLDER says where they lie"
    return ""


def _brief(figure: Figure, record: Record) -> str:
    if "value" not in record:
        return f"{record['state']}: {record['reason']}"
    value = page.shown(record["value"], figure.unit)
    return f"{record['state']}: {value} (asked: {figure.bound})"


def _write(path: Path, themes: dict[str, tuple[Figure, ...]], records: dict[str, Record]) -> None:
    write_atomic(path, (json.dumps(records, indent=1, sort_keys=True) + "\n").encode())
    write_atomic(path.with_suffix(".md"), page.page(themes, records).encode())


if __name__ == "__main__":
    sys.exit(main())
