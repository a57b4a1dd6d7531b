"""`sottovoce watch`: a run that works, or has ended, in the terminal."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import watch_view
from sottovoce.cli.output import Json, print_json, say

if TYPE_CHECKING:
    from sottovoce.reporting.live import Reading

_SITES_EVERY_SECONDS = 5.0
_LOOKS_KEPT = 30
_FEDERATION_FILE = "federation.toml"


def watch(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run's folder, or a federation's: its last run.")
    ],
    once: Annotated[bool, typer.Option("--once", help="Print the state and exit.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.05, max=3600, help="Seconds between two looks.")
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """Rounds, accuracy, epsilon, bytes and stragglers of a run while it works; it is only read."""
    watched = _Watched(run)
    with contextlib.suppress(KeyboardInterrupt):  # the run goes on, and so does its user
        if once:
            _print_once(watched, as_json)
        elif as_json or not _is_terminal():
            _print_rounds(watched, interval, as_json)
        else:
            _show_live(watched, interval)


class _Watched:
    """What is looked at: a run folder, and the federation around it if there is one."""

    def __init__(self, path: Path) -> None:
        from sottovoce.core.errors import OutputError

        self._run: Path | None = path
        self._federation: Path | None = None
        if (path / _FEDERATION_FILE).is_file() and (path / "link").is_dir():
            self._run, self._federation = None, path
        elif (path.absolute().parent.parent / _FEDERATION_FILE).is_file():  # DIR/runs/NAME
            self._federation = path.absolute().parent.parent
        elif path.is_file():
            raise OutputError(f"{path} is a file; name a run's folder, or a federation's")
        self._status: dict[str, Any] | None = None
        self._asked_at = -float("inf")
        self._looks: list[tuple[float, int]] = []
        self._reading: Reading | None = None

    @property
    def waits_for(self) -> str:
        return f"no run in {self._run or self._federation} yet"

    def look(self) -> dict[str, Any]:
        """The state now."""
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
                state |= _ended_otherwise(status, reading.folder)
        return state

    @property
    def accuracies(self) -> list[float | None]:
        return [row.get("accuracy") for row in self._reading.rows] if self._reading else []

    def rounds_after(self, number: int) -> Iterator[dict[str, Any]]:
        """The states after the rounds that went by between two looks, without the last."""
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
        from sottovoce.deployment.machines.federation import Federation
        from sottovoce.flower.runs import latest_folder

        assert self._federation is not None
        federation = Federation.read(self._federation)
        return latest_folder(federation) or federation.runs_folder / "none yet"

    def _speed(self, reading: "Reading") -> float | None:
        """Rounds a second, as seen of late; none before two rounds went by.

        The time before the first round does not count: data is read, and sites are waited for.
        """
        now, done = time.monotonic(), reading.rounds_done
        if self._looks and done < self._looks[-1][1]:
            self._looks.clear()  # resumed from a checkpoint, or another run
        if done and (not self._looks or done > self._looks[-1][1]):
            self._looks = [*self._looks[-_LOOKS_KEPT:], (now, done)]
        if not self._looks:
            return None
        (first, at_first), (last, at_last) = self._looks[0], self._looks[-1]
        return (at_last - at_first) / (last - first) if at_last - at_first >= 2 else None

    def _federation_status(self) -> dict[str, Any] | None:
        """Who is there, asked now and then; a link that does not answer is no reason to stop."""
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


def _ended_otherwise(status: dict[str, Any], folder: Path) -> dict[str, Any]:
    """How the link says that a run without a result ended, if it did."""
    for run in reversed(status["runs"]):
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
        raise OutputError(f"{watched.waits_for}; without --once it is waited for")
    if as_json:
        print_json(state)
        return
    from rich.console import Console

    Console().print(watch_view.panel(state, watched.accuracies))


def _print_rounds(watched: _Watched, interval: float, as_json: bool) -> None:
    """A line for each round from now on, and one for the end."""
    shown = None
    for state in _states(watched, interval):
        if shown is None and state["state"] == "waiting":
            say(f"{watched.waits_for}; waiting for it", err=True)
        here = (state["state"], state["rounds_done"])
        if here == shown:
            continue
        if shown is not None:
            for earlier in watched.rounds_after(shown[1]):
                say(json.dumps(earlier) if as_json else watch_view.line(earlier))
        if as_json:
            say(json.dumps(state, allow_nan=False))
        else:
            _print_line(state, new_round=shown is None or state["rounds_done"] != shown[1])
        shown = here


def _print_line(state: dict[str, Any], *, new_round: bool) -> None:
    if new_round and state["rounds_done"]:
        say(watch_view.line(state))
    if _has_ended(state):
        for warning in state["warnings"]:
            say(f"warning: {warning}", err=True)
        say(watch_view.ending(state))


def _show_live(watched: _Watched, interval: float) -> None:
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        for state in _states(watched, interval):
            if state["state"] == "waiting" and "federation" not in state:
                live.update(f"{watched.waits_for}; waiting for it (Ctrl-C ends)", refresh=True)
            else:
                live.update(watch_view.panel(state, watched.accuracies), refresh=True)
