"""The command `sottovoce watch`, which shows the state of a run while it trains."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.output import Json, print_json, say
from sottovoce.cli.output import show_seconds as show_seconds
from sottovoce.core.printable_text import printable_data

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sottovoce.reporting.live import Reading

_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 40
_BAR_WIDTH = 20
_SITES_SHOWN = 12
_STATE_COLORS = {"finished": "green", "running": "cyan", "waiting": "yellow", "silent": "yellow"}


def sparkline(values: Sequence[float | None], width: int = _SPARK_WIDTH) -> str:
    """Return values as block characters, whose height goes from the lowest to the highest value.

    Args:
        values: The values; entries that are None are left out.
        width: The most characters; where there are more values, each character shows the last of
            an equal share of them.

    Returns:
        The characters; empty if there are no values.
    """
    known = [value for value in values if value is not None]
    if len(known) > width:
        known = [known[(n + 1) * len(known) // width - 1] for n in range(width)]
    if not known:
        return ""
    low, high = min(known), max(known)
    span = (high - low) or 1.0
    return "".join(_BLOCKS[round((value - low) / span * (len(_BLOCKS) - 1))] for value in known)


def show_bytes(count: float) -> str:
    """Return a number of bytes as a text with its unit, in powers of a thousand: "1.5 kB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000.0
    return f"{count:.3g} TB"


def epsilon_note(state: Mapping[str, Any]) -> str:
    """Return a text that says what was spent, of what budget, and what is left.

    Args:
        state: The state of a run, as `live.describe` returns it.

    Returns:
        The text; "no privacy" without a guarantee, and only what was spent without a budget.
    """
    from sottovoce.core.display import show_epsilon, show_remaining
    from sottovoce.runs.site_counts import BY_SERVER

    if not state["private"]:
        return "no privacy"
    spent = f"epsilon {show_epsilon(state['epsilon'], 2)}"
    if state["has_sites"]:
        spent += f" {BY_SERVER}"
    if state["epsilon_budget"] is None:
        return spent
    of = ", budget" if state["has_sites"] else " of"
    left = show_remaining(state["epsilon_left"], 2)
    return f"{spent}{of} {state['epsilon_budget']:.15g}, {left} left"


def replies_note(state: Mapping[str, Any]) -> str:
    """Return how many clients answered in the last round, as a text; empty before the first.

    Args:
        state: The state of a run, as `live.describe` returns it.
    """
    last = state["last_round"]
    return f"{last['clients_received']} of {last['clients_asked']} answered" if last else ""


def line(state: Mapping[str, Any]) -> str:
    """Return the state of a run in one line, for logs and pipes.

    Args:
        state: The state, as `live.describe` returns it.
    """
    from sottovoce.runs.site_counts import figures_note

    of = f" of {state['rounds']}" if state["rounds"] else ""
    parts = [f"round {state['rounds_done']}{of}"]
    if state["accuracy"] is not None:
        parts.append(figures_note(state, 3))
    if state["loss"] is not None:
        parts.append(f"loss {state['loss']:.4g}")
    if state.get("private_evaluation"):
        parts.append(state["private_evaluation"])
    if state["last_round"]:
        parts.append(epsilon_note(state))
        parts.append(f"{show_bytes(state['bytes_up'])} up, {show_bytes(state['bytes_down'])} down")
        parts.append(replies_note(state))
    if state["seconds_left"] is not None:
        parts.append(f"{show_seconds(state['seconds_left'])} left")
    return "  ".join(parts)


def ending(state: Mapping[str, Any]) -> str:
    """Return one line that says how a run ended, after how many rounds.

    Args:
        state: The state of a run that has ended, as `live.describe` returns it, perhaps with a
            `detail` from the federation.
    """
    if state["state"] == "halted":
        return f"halted after {state['rounds_done']} of {state['rounds']} rounds: {state['halted']}"
    detail = f": {state['detail']}" if state.get("detail") else ""
    return f"{state['state']} after {state['rounds_done']} of {state['rounds']} rounds{detail}"


def panel(state: Mapping[str, Any], accuracies: Sequence[float | None]) -> "RenderableType":
    """Return the view of a run for a terminal, to be printed by rich.

    Args:
        state: The state, as `live.describe` returns it.
        accuracies: The accuracy of each round; None where it was not measured.
    """
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    state = printable_data(state)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, value in _fields(state, accuracies):
        grid.add_row(Text(name), Text(value) if isinstance(value, str) else value)
    notes = [Text(f"! {warning}", style="yellow") for warning in state["warnings"]]
    color = _STATE_COLORS.get(state["state"], "red")
    return Panel(
        Group(grid, *notes),
        title=Text.assemble((state["name"], "bold"), "  ", (state["state"], color)),
        title_align="left",
        subtitle=Text(state["folder"], style="dim"),
        subtitle_align="right",
        border_style=color,
    )


def _fields(
    state: Mapping[str, Any], accuracies: Sequence[float | None]
) -> "list[tuple[str, RenderableType]]":
    from rich.text import Text

    from sottovoce.runs.site_counts import figures_of

    found: list[tuple[str, RenderableType]] = []
    if state["rounds"]:
        found.append(("rounds", _bar(state["rounds_done"], state["rounds"], "cyan")))
    if state["rounds_per_second"] is not None:
        found.append(("speed", _speed(state)))
    if state["accuracy"] is not None:
        curve = Text(sparkline(accuracies), style="cyan")
        first, *others = figures_of(state).items()
        found.append((first[0], Text.assemble(f"{first[1]:.3f}  ", curve)))
        found += [(name, f"{value:.3f}") for name, value in others]
    if state["loss"] is not None:
        found.append(("loss", f"{state['loss']:.4g}"))
    if state.get("private_evaluation"):
        found.append(("private", state["private_evaluation"]))
    if state.get("clip_norm") is not None:
        found.append(("clip norm", f"{state['clip_norm']:.4g}"))
    if state["last_round"]:
        found.append(("privacy", _privacy(state)))
        found += [(direction, _traffic(state, direction)) for direction in ("up", "down")]
        found.append(("replies", _replies(state)))
        if state["sites"]:
            found.append(("counts", _counts(state["sites"])))
    if state["halted"] or state.get("detail"):
        found.append((state["state"], Text(state["halted"] or state["detail"], style="red")))
    federation = state.get("federation")
    if federation:
        found.append(("link", f"{federation['link']} at {federation['address']}"))
        found.append(("sites", _sites(federation["sites"])))
    return found


def _bar(done: float, of: float, color: str) -> "RenderableType":
    from rich.text import Text

    filled = int(_BAR_WIDTH * min(1.0, done / of))
    bar = ("━" * filled, color), ("━" * (_BAR_WIDTH - filled), "bright_black")
    return Text.assemble(*bar, f"  {done:g} of {of:g}")


def _speed(state: Mapping[str, Any]) -> str:
    speed = state["rounds_per_second"]
    rate = f"{speed:.3g} rounds/s" if speed >= 0.2 else f"{1.0 / speed:.3g} s a round"
    left = state["seconds_left"]
    return rate if left is None else f"{rate}, {show_seconds(left)} left"


def _privacy(state: Mapping[str, Any]) -> "RenderableType":
    from rich.text import Text

    note = epsilon_note(state) + (f" (delta {state['delta']:g})" if state["delta"] else "")
    if not state["private"]:
        return Text(note, style="red")
    if state["epsilon_budget"] is None:
        return note
    filled = min(_BAR_WIDTH, -int(-_BAR_WIDTH * state["epsilon"] // state["epsilon_budget"]))
    bar = ("━" * filled, "magenta"), ("━" * (_BAR_WIDTH - filled), "bright_black")
    return Text.assemble(*bar, f"  {note}")


def _traffic(state: Mapping[str, Any], direction: str) -> str:
    each = state[f"bytes_{direction}_per_client"]
    share = "" if each is None else f", {show_bytes(each)} a client"
    return f"{show_bytes(state[f'bytes_{direction}'])}{share}"


def _replies(state: Mapping[str, Any]) -> str:
    missing = state["replies_asked"] - state["replies_received"]
    note = f"{replies_note(state)} in the last round"
    if missing:
        rounds = state["rounds_with_missing_replies"]
        note += f"; {missing} missing so far, in {rounds} rounds"
    return note


def _counts(sites: Mapping[str, Mapping[str, Any]]) -> "RenderableType":
    """Return a table of what the server counted, what sites answered and what they say."""
    from rich.table import Table
    from rich.text import Text

    from sottovoce.runs.site_counts import HEADINGS, site_table_rows

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in ("site", *HEADINGS.values()):
        table.add_column(heading)
    rows, more = site_table_rows(sites, _SITES_SHOWN)
    for row in rows:
        table.add_row(*map(Text, row))
    if more:
        table.add_row(Text(more))
    return table


def _sites(sites: Mapping[str, str]) -> "RenderableType":
    from rich.text import Text

    here = [site for site, state in sites.items() if state == "online"]
    away = [f"{site} ({state})" for site, state in sites.items() if state != "online"]
    there = f"{len(here)} of {len(sites)} connected"
    return Text.assemble(there, ("; missing: " + ", ".join(away) if away else "", "yellow"))


_SITES_EVERY_SECONDS = 5.0
_READINGS_KEPT = 30
_FEDERATION_FILE, _COLLECTOR_FILE = "federation.toml", "collector.toml"


def watch(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="The folder of a run, which may not exist yet; of a federation or collector its "
            "last run.",
        ),
    ],
    once: Annotated[bool, typer.Option("--once", help="Print the state and exit.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.05, max=3600, help="Seconds between two readings.")
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """Show rounds, accuracy, epsilon, bytes and missing replies of a run; nothing is changed.

    The view is updated until the run ends; Ctrl-C ends the view only.
    """
    watched = _Watched(run)
    with contextlib.suppress(KeyboardInterrupt):  # ends the view; the run continues
        if once:
            _print_once(watched, as_json)
        elif as_json or not _is_terminal():
            _print_rounds(watched, interval, as_json)
        else:
            _show_live(watched, interval)


class _Watched:
    """A run folder, and the federation or collector that it belongs to, if any."""

    def __init__(self, path: Path) -> None:
        from sottovoce.core.errors import OutputError

        self._run: Path | None = path
        self._federation: Path | None = None
        self._collector: Path | None = None
        above = path.absolute().parent.parent  # of DIR/runs/NAME
        if (path / _FEDERATION_FILE).is_file() and (path / "link").is_dir():
            self._run, self._federation = None, path
        elif (path / _COLLECTOR_FILE).is_file():
            self._run, self._collector = None, path
        elif (above / _FEDERATION_FILE).is_file():
            self._federation = above
        elif (above / _COLLECTOR_FILE).is_file():
            self._collector = above
        elif path.is_file():
            raise OutputError(f"{path} is a file; name the folder of a run or of a federation")
        self._status: dict[str, Any] | None = None
        self._asked_at = -float("inf")
        self._readings: list[tuple[float, int]] = []
        self._reading: Reading | None = None

    @property
    def waits_for(self) -> str:
        """That there is no run yet, in words."""
        return f"no run in {self._run or self._federation or self._collector} yet"

    def look(self) -> dict[str, Any]:
        """Read the files and return the state."""
        from sottovoce.reporting.live import describe, read

        status = self._federation_status()
        reading = self._reading = read(self._folder())
        state = describe(reading, rounds_per_second=self._speed(reading))
        if status is not None:
            if reading.header is None:
                state |= {
                    "name": status["federation"],
                    "folder": str(self._run or self._federation),
                }
            state["federation"] = {key: status[key] for key in ("link", "address", "sites")}
            state["warnings"] += [status["problem"]] if status["problem"] else []
            if not reading.has_ended:
                state |= _ended_otherwise(status["runs"], reading.folder)
        if self._collector is not None and not reading.has_ended:
            from sottovoce.deployment.operators.collector_runs import runs_of
            from sottovoce.deployment.operators.folders import CollectorFolder

            rows = runs_of(CollectorFolder.read(self._collector))
            state |= _ended_otherwise(rows, reading.folder)
        return state

    @property
    def accuracies(self) -> list[float | None]:
        """The accuracy after each round, as last read."""
        return [row.get("accuracy") for row in self._reading.rows] if self._reading else []

    def rounds_after(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield the state after each round since round `number`, except for the last one."""
        from sottovoce.reporting.live import describe

        assert self._reading is not None
        speed, rows = self._speed(self._reading), self._reading.rows
        for count in range(1, len(rows)):
            if rows[count - 1]["round"] > number:
                earlier = dataclasses.replace(self._reading, rows=rows[:count], result=None)
                yield describe(earlier, rounds_per_second=speed)

    def _folder(self) -> Path:
        if self._run is not None:
            return self._run
        if self._collector is not None:
            from sottovoce.deployment.operators.collector_runs import latest_run_folder
            from sottovoce.deployment.operators.folders import CollectorFolder

            collector = CollectorFolder.read(self._collector)
            return latest_run_folder(collector) or collector.runs_folder / "none yet"
        from sottovoce.deployment.machines.federation import Federation
        from sottovoce.flower.runs import latest_folder

        assert self._federation is not None
        federation = Federation.read(self._federation)
        return latest_folder(federation) or federation.runs_folder / "none yet"

    def _speed(self, reading: "Reading") -> float | None:
        """Return the rounds per second over the last readings; None before two rounds.

        The time before the first round is not counted: it is spent on reading data and on waiting
        for sites.
        """
        now, done = time.monotonic(), reading.rounds_done
        if self._readings and done < self._readings[-1][1]:
            self._readings.clear()  # resumed from a checkpoint, or another run
        if done and (not self._readings or done > self._readings[-1][1]):
            self._readings = [*self._readings[-_READINGS_KEPT:], (now, done)]
        if not self._readings:
            return None
        (first, at_first), (last, at_last) = self._readings[0], self._readings[-1]
        return (at_last - at_first) / (last - first) if at_last - at_first >= 2 else None

    def _federation_status(self) -> dict[str, Any] | None:
        """Return the federation's state, read every few seconds; a link may be unreachable."""
        from sottovoce.core.errors import SottovoceError

        if self._federation is None:
            return None
        if time.monotonic() - self._asked_at < _SITES_EVERY_SECONDS:
            return self._status
        try:
            from sottovoce.deployment.machines.federation import Federation
            from sottovoce.flower.runs import status_of

            self._status = status_of(Federation.read(self._federation))
        except (SottovoceError, OSError) as error:
            if self._run is None and self._status is None:
                raise
            if self._status is not None:
                self._status = {**self._status, "problem": str(error)}
        except ModuleNotFoundError:
            if self._run is None:
                raise
        self._asked_at = time.monotonic()
        return self._status


def _ended_otherwise(runs: Sequence[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Return how a run without a result ended, if the link or the collector says so."""
    for run in reversed(runs):
        if run["folder"] == str(folder.absolute()):
            if run["state"] in ("finished:failed", "finished:stopped"):
                return {"state": run["state"].partition(":")[2], "detail": run["details"]}
            return {}
    return {}


def _is_terminal() -> bool:
    from rich.console import Console

    return Console().is_terminal


def _has_ended(state: dict[str, Any]) -> bool:
    return state["state"] not in ("waiting", "running", "silent")


def _states(watched: _Watched, interval: float) -> Iterator[dict[str, Any]]:
    while True:
        state = watched.look()
        yield state
        if _has_ended(state):
            return
        time.sleep(interval)


def _print_once(watched: _Watched, as_json: bool) -> None:
    from sottovoce.core.errors import OutputError

    state = watched.look()
    if state["state"] == "waiting" and "federation" not in state:
        raise OutputError(f"{watched.waits_for}; leave out --once to wait for it")
    if as_json:
        print_json(state)
        return
    from rich.console import Console

    Console().print(panel(state, watched.accuracies))


def _print_rounds(watched: _Watched, interval: float, as_json: bool) -> None:
    """Print a line for each new round, and one for the end."""
    shown = None
    for state in _states(watched, interval):
        if shown is None and state["state"] == "waiting":
            say(f"{watched.waits_for}; waiting for it", err=True)
        here = (state["state"], state["rounds_done"])
        if here == shown:
            continue
        if shown is not None:
            for earlier in watched.rounds_after(shown[1]):
                say(json.dumps(earlier) if as_json else line(earlier))
        if as_json:
            say(json.dumps(state, allow_nan=False))
        else:
            _print_line(state, new_round=shown is None or state["rounds_done"] != shown[1])
        shown = here


def _print_line(state: dict[str, Any], *, new_round: bool) -> None:
    if new_round and state["rounds_done"]:
        say(line(state))
    if _has_ended(state):
        for warning in state["warnings"]:
            say(f"warning: {warning}", err=True)
        say(ending(state))


def _show_live(watched: _Watched, interval: float) -> None:
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        for state in _states(watched, interval):
            if state["state"] == "waiting" and "federation" not in state:
                live.update(f"{watched.waits_for}; waiting for it (Ctrl-C ends)", refresh=True)
            else:
                live.update(panel(state, watched.accuracies), refresh=True)
