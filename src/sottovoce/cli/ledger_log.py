"""The command `sottovoce ledger log`, which verifies and prints a site's audit log."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli.output import Json, print_json, print_table, print_warning, say

_COLUMNS = ["time", "what", "run", "round", "epsilon", "total", "left", "note"]
_MOST_RUNS = 10


def log(
    path: Annotated[Path, typer.Argument(metavar="SITE_DIR", help="A site's folder, or its log.")],
    run_name: Annotated[
        str | None,
        typer.Option(
            help="Show only runs and questions whose names begin so, such as a spec's hash."
        ),
    ] = None,
    refused: Annotated[bool, typer.Option("--refused", help="Show only refusals.")] = False,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Show lines from this time on, UTC: 2026-05-31T12."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a site charged, answered and refused; exit with 1 if the log was altered.

    Epsilon is that of the round at the policy's delta; total and left are computed by the site's
    privacy filter. Changes of the policy are listed, too.
    """
    from sottovoce.core.errors import OutputError, ParameterError
    from sottovoce.deployment import audit_file
    from sottovoce.deployment.audit_log import LOG_NAME
    from sottovoce.ledger import seal

    file = path / LOG_NAME if path.is_dir() else path
    if not file.is_file():
        seal.check_not_moved(file, seal.read(file.with_name(seal.SEAL_NAME)))
        raise OutputError(
            f"{path} has no {LOG_NAME}; name the folder of a site whose node was started"
        )
    start = None if since is None else audit_file.seconds_of(since)
    if since is not None and start is None:
        raise ParameterError(
            "--since must be a time such as 2026-05-31T12:00 (in UTC, if it names no zone), got "
            f"{since!r}"
        )
    entries, problems = audit_file.verify_lines(file)
    missing = _without_line(file.parent, entries)
    shown = [entry for entry in entries if _is_wanted(entry, run_name, refused, start)]
    if as_json:
        document = {"ok": not problems, "problems": problems, "charges_without_line": missing}
        print_json({**document, "entries": shown})
    else:
        print_table(_COLUMNS, [_cells(entry) for entry in shown])
        for problem in problems:
            say(problem)
        of = "" if len(shown) == len(entries) else f"{len(shown)} of "
        say(f"{of}{len(entries)} lines{'' if problems else '; the chain is whole'}")
        if run_name is not None:
            _say_which_runs(entries, run_name)
        if missing:
            print_warning(
                f"the ledger has {missing} charges without a line in this log: the node ended "
                "before it wrote them, or the end of the log is missing; start the node to add them"
            )
    if problems:
        raise typer.Exit(1)


def _without_line(folder: Path, entries: list[dict[str, Any]]) -> int:
    """Return how many charges of the ledger in the same folder have no line in the log."""
    from sottovoce.deployment.audit_file import LogState
    from sottovoce.ledger.ledger import LEDGER_NAME
    from sottovoce.ledger.reader import LedgerReader

    if not (folder / LEDGER_NAME).is_file():
        return 0
    state = LogState()
    for entry in entries:
        state.take_entry(entry)
    with LedgerReader(folder / LEDGER_NAME) as ledger:
        return max(0, ledger.num_charges - state.charges)


def _say_which_runs(entries: list[dict[str, Any]], run: str) -> None:
    """Print the names of runs if none begins as asked."""
    if any(_is_wanted(entry, run, False, None) for entry in entries):
        return
    runs = list(dict.fromkeys(str(entry["run"]) for entry in entries if "run" in entry))
    latest = ", ".join(runs[: -_MOST_RUNS - 1 : -1])
    say(
        f"no run has a name that begins with '{run}'; the name of a run is the hash of its spec "
        f"and a random part. Runs and questions, the latest first: {latest or 'none'}"
        f"{', ...' if len(runs) > _MOST_RUNS else ''}"
    )


def _is_wanted(entry: dict[str, Any], run: str | None, refused: bool, start: float | None) -> bool:
    from sottovoce.deployment.audit_file import REFUSED, seconds_of

    if run is not None and not str(entry.get("run", "")).startswith(run):
        return False
    if refused and entry.get("what") != REFUSED:
        return False
    return start is None or (seconds_of(entry.get("time")) or 0.0) >= start


def _cells(entry: dict[str, Any]) -> list[str]:
    from sottovoce.core.display import show_epsilon, show_remaining

    def number(key: str) -> str:
        value = entry.get(key)
        if key in entry and value is None:
            return "infinite"
        if not isinstance(value, int | float):
            return ""
        return show_remaining(value) if key == "left" else show_epsilon(value)

    time, *plain = (str(entry.get(key, "")) for key in _COLUMNS[:4])
    seconds = re.sub(r"\.\d+", "", time)
    return [seconds, *plain, number("epsilon"), number("total"), number("left"), _note(entry)]


def _note(entry: dict[str, Any]) -> str:
    changes = entry.get("changes")
    parts = [str(entry[key]) for key in ("mechanism", "reason") if key in entry]
    if isinstance(changes, dict):
        parts += [f"{key}: {_change(change)}" for key, change in changes.items()]
    if entry.get("times", 1) != 1:
        parts.append(f"(for {entry['times']} orders)")
    if entry.get("late"):
        parts.append("written later")
    if "unlisted" in entry:
        parts.append(f"{entry['unlisted']} refusals or repeated answers have no line")
    return "; ".join(parts)


def _change(change: Any) -> str:
    old, new = change if isinstance(change, list) and len(change) == 2 else (None, change)
    return f"{new}" if old is None else f"{old} -> {'default' if new is None else new}"
