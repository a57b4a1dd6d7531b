"""What a site's audit log says so far: the state that its next line follows from."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sottovoce.deployment.audit_file import Entry, Line, Position

DAY_SECONDS = 24 * 3600.0
_LAST_TIME = 253402300799.0  # 9999-12-31T23:59:59Z, after which there is no text for a time
# Lines that anybody who reaches the link can cause: so many at once, and then one a minute.
_BURST_LINES, _SECONDS_A_LINE = 20.0, 60.0

CHARGED, AGAIN, REFUSED = "charged", "answered again", "refused"
POLICY, STARTED, STOPPED, WARNING = "policy changed", "started", "stopped", "warning"


def wall_clock() -> float:
    """Seconds since 1970, by the machine's clock."""
    return time.time()


def steady_clock() -> float:
    """Seconds that only grow, for as long as this process lives."""
    return time.monotonic()


def time_text(seconds: float) -> str:
    """A time in UTC, to the millisecond, as lines have it."""
    shown = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return shown.replace("+00:00", "Z")


def seconds_of(text: object) -> float | None:
    """The time that a line has; None for anything else."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    return min(found.timestamp(), _LAST_TIME)


@dataclass(slots=True)
class LogState:
    """The log as far as it was read.

    `charges` is how many of the ledger's charges have their line, and `link` the digest of the last
    of them, by which the ledger is known to be the same. `latest` is the largest time of
    any line: a clock that was set back does not bring a round's day to its end, nor make a round
    forgotten, for every line counts as of the latest time up to it.
    """

    position: Position = field(default_factory=Position)
    charges: int = 0
    link: str | None = None
    latest: float = 0.0
    rounds: dict[tuple[str, int], float] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    warned: set[str] = field(default_factory=set)
    records: int | None = None
    problems: int = 0

    def take(self, line: Line) -> None:
        """Follow one line; what no line of ours has is passed over."""
        self.problems += line.problem is not None
        if line.entry is not None:
            self.take_entry(line.entry)

    def take_entry(self, entry: Entry) -> None:
        if entry.get("what") == "charged":  # others tell no rounds: a wrong clock costs nothing
            self.latest = max(self.latest, seconds_of(entry.get("time")) or 0.0)
        charges, records = entry.get("charges"), entry.get("records")
        if type(charges) is int and 0 <= charges < 2**63:  # as a ledger counts
            self.charges, self.link = charges, entry.get("link")
        if type(records) is int and records > 0:
            self.records = records
        match entry.get("what"):
            case "charged":
                run, number = entry.get("run"), entry.get("round")
                if isinstance(run, str) and type(number) is int:
                    # The first time counts: a later line of a round is not another round, unless
                    # that was more than a day ago.
                    first = self.rounds.pop((run, number), self.latest)
                    is_old = first <= self.latest - DAY_SECONDS
                    self.rounds[run, number] = self.latest if is_old else first
                    self._forget()
            case "policy changed" if isinstance(changes := entry.get("changes"), Mapping):
                self.policy.update({key: new for key, (_, new) in _pairs(changes)})
                self.warned.clear()  # what was warned of may be another thing now
            case "warning":
                self.warned.add(str(entry.get("about")))

    def rounds_within_a_day(self, now: float) -> set[tuple[str, int]]:
        """The rounds of the last 24 hours, by the clock or by the log, whichever is later."""
        since = max(now, self.latest) - DAY_SECONDS
        return {key for key, at in self.rounds.items() if at > since}

    def _forget(self) -> None:
        """Drop rounds that are a day old by the log itself: the clock alone may be wrong."""
        since = self.latest - DAY_SECONDS
        oldest = min(self.rounds.values())
        if oldest <= since - DAY_SECONDS:  # a day's rounds at once: not all of them at every line
            self.rounds = {key: at for key, at in self.rounds.items() if at > since}


def _pairs(changes: Mapping[str, Any]) -> list[tuple[str, tuple[Any, Any]]]:
    found = []
    for key, value in changes.items():
        if isinstance(value, list) and len(value) == 2:
            found.append((key, (value[0], value[1])))
    return found


@dataclass(slots=True)
class Throttle:
    """How many lines others may still cause: a bucket that fills by one a minute."""

    tokens: float = _BURST_LINES
    filled_at: float = field(default_factory=lambda: steady_clock())
    unlisted: int = 0
    last: tuple[object, ...] | None = None

    def listed(self, key: tuple[object, ...]) -> int | None:
        """Count one more; how many the next line stands for, None where there is to be none.

        What is the same as the last one that was listed is listed again once the bucket is full:
        a minute after it, as long as nothing else comes.
        """
        now = steady_clock()
        gained = (now - self.filled_at) / _SECONDS_A_LINE
        self.tokens, self.filled_at = min(_BURST_LINES, self.tokens + gained), now
        self.unlisted += 1
        is_new = key != self.last
        if self.tokens < (1.0 if is_new else _BURST_LINES):
            return None
        self.tokens -= 1.0
        times, self.unlisted, self.last = self.unlisted, 0, key
        return times
