"""A site's audit log: one line for each charge, answer, refusal and change of its policy.

The file audit.jsonl is in the ledger's folder. A line is on disk before the message that it is
about leaves. If it cannot be written, nothing leaves and the charge stays; a server that asks again
gets the stored bytes. Every line has `time` (UTC) and `what`:

charged          run, round, mechanism; epsilon, the cost of the round at the policy's delta; total
                 and left, by the site's privacy filter; charges, the number in the ledger, and
                 link, their digest. `late`: the line was written afterwards, because the process
                 ended between the charge and the line; it has no mechanism, and total and left
                 only if no charge came after it
answered again   stored bytes, or a charge that had released nothing: nothing new was charged
refused          reason, which is public
policy changed   changes: the old and the new value of each key of [policy]
started, stopped the process that answers
warning          about, reason

Everyone who reaches the link can cause refusals as often as they like, so these lines are limited.
Lines that differ from the one before come at most 20 at once and then one a minute. A line with the
run and the reason of the last one is repeated only when all 20 are available again, at the earliest
after a minute. `times` says for how many orders a line stands, including those before it that have
no line.
"""

import dataclasses
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.core import files, printable_text
from sottovoce.core.display import show_epsilon
from sottovoce.core.errors import PolicyError, SottovoceError
from sottovoce.core.printable_text import printable
from sottovoce.deployment import audit_file
from sottovoce.deployment.audit_file import Entry, LogState, Throttle, time_text
from sottovoce.deployment.policy import Policy
from sottovoce.ledger.reader import LedgerReader
from sottovoce.ledger.records import FIRST_EVENT_ACCOUNT, PendingCharge
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.compositions import compose_repeated
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.version import __version__

LOG_NAME = "audit.jsonl"
_LOG = printable_text.logger()
_LONGEST_TEXT = 300
_CLOCK_SECONDS = 60.0  # tolerance: a clock that is adjusted by less was not wrong
_BUDGET, _DELTA, _NOISE, _CHAIN, _LEDGER = "budget", "delta", "noise floor", "log", "ledger"
_ROUND = "round"


@dataclass(slots=True)
class _Open:
    """A log that this process writes: the state of its content, and which file it is."""

    state: LogState
    identity: tuple[int, int]


_OPEN: dict[Path, _Open] = {}
_THROTTLES: dict[Path, Throttle] = {}
_GUARD = threading.RLock()


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderName:
    """The run, round and mechanism that a line states of a server's order; None if unknown."""

    run: str | None = None
    round: int | None = None
    mechanism: str | None = None

    def plain(self) -> Entry:
        """Return the fields as JSON data, with text cut to 300 characters."""
        given = {"run": self.run, "round": self.round, "mechanism": self.mechanism}
        return {
            key: _short(value) if isinstance(value, str) else value for key, value in given.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLog:
    """The audit log of one site under its current policy."""

    path: Path
    policy: Policy

    def check(self, ledger: LedgerReader, pending: Sequence[PendingCharge]) -> None:
        """Raise if the charges would exceed the policy's `rounds_per_day`; nothing is charged here.

        Called before training and again inside the transaction that charges. Rounds in the ledger
        that have no line yet count as charged now.

        Args:
            ledger: The site's ledger.
            pending: The charges to be made.

        Raises:
            PolicyError: The limit of rounds within 24 hours is reached.
            OutputError: The log cannot be opened, so nothing may be charged.
        """
        with _GUARD, audit_file.open_locked(self.path) as handle:
            state = self._read(handle)
            limit = self.policy.rounds_per_day
            if limit is None or not pending:
                return
            unlisted = {(run, number) for run, number, _ in ledger.charges_after(state.charges)}
            now = audit_file.wall_clock()
            charged = state.rounds_within_a_day(now) | unlisted
        asked = {(due.release.run, due.release.round) for due in pending}
        if len(charged | asked) > limit:
            raise PolicyError(
                f"{len(charged)} rounds were charged within 24 hours, and 'rounds_per_day' is "
                f"{limit}; {_retry_remedy(state, now)}"
            )

    def answered(
        self, ledger: LedgerReader, order: OrderName, *, charged: bool, records: int | None = None
    ) -> None:
        """Write what an answer cost before it leaves; raise OutputError if that fails.

        Also writes a change of the policy, earlier charges that have no line yet, and new warnings.
        `charged` says whether this answer was charged. `records` is the site's number of records,
        if known.
        """
        with _GUARD, audit_file.open_locked(self.path) as handle:
            state = self._read(handle)
            self._append(handle, state, self._policy_changes(state))
            with ledger.snapshot():
                entries = self._charges(ledger, state, order, charged=charged)
            total = None
            if entries:
                total = entries[-1].get("total")
                entries[-1] |= {} if records is None else {"records": records}
            elif not charged:  # if it was charged, another process has written its line
                entries = self._again(order)
            found = self._warnings(state, records or state.records, total)
            new = {about: text for about, text in found.items() if about not in state.warned}
            self._append(handle, state, [*entries, *_warning_lines(new)])

    def refused(self, reason: str, order: OrderName) -> bool:
        """Write a refusal; return False if it gets no line because there were too many.

        An error while writing is logged and does not raise: the refusal stands without it, and True
        is returned.
        """
        with _GUARD:
            times = self._throttle.listed((audit_file.REFUSED, order.run, reason))
            if times is None:
                return False
            try:
                with audit_file.open_locked(self.path) as handle:
                    state = self._read(handle)
                    fields = {**order.plain(), "reason": _short(reason), "times": times}
                    line = _entry(audit_file.REFUSED, **fields)
                    self._append(handle, state, [*self._policy_changes(state), line])
            except SottovoceError as error:
                _LOG.error("a refusal could not be written to the audit log: %s", error)
        return True

    def started(self, ledger: Path, *, records: int | None = None) -> list[str]:
        """Write that the site starts to answer, and return the warnings for its owner.

        Also writes a change of the policy, the warnings, and charges that have no line yet.
        `records` is the site's number of records, used if no answer has stated it.

        Raises:
            OutputError: The log cannot be written, so nothing could be answered.
        """
        with _GUARD, audit_file.open_locked(self.path) as handle:
            state = self._read(handle)
            line = _entry(audit_file.STARTED, version=__version__)
            self._append(handle, state, [*self._policy_changes(state), line])
            found, late = self._account(ledger, state, records)
            self._append(handle, state, [*late, *_warning_lines(found)])
        return list(found.values())

    def stopped(self) -> None:
        """Write a line to the audit log that says that the site no longer answers orders.

        Its field `unlisted`, left out if 0, is the number of refusals and repeated answers since
        the last line about one of these. They have no line because such lines are limited. Raises
        OutputError if the line cannot be written.
        """
        with _GUARD, audit_file.open_locked(self.path) as handle:
            unlisted = self._throttle.unlisted
            line = _entry(audit_file.STOPPED, **({"unlisted": unlisted} if unlisted else {}))
            self._append(handle, self._read(handle), [line])
            self._throttle.unlisted = 0

    def warnings(self, ledger: Path, *, records: int | None = None) -> list[str]:
        """Return the current warnings for the site's owner, as sentences; no line is written.

        `records` is the site's number of records, used if no line of the log states it.
        """
        state = LogState()
        for line in audit_file.read_lines(self.path, state.position):
            state.take(line)
        found, late = self._account(ledger, state, records)
        noticed = [entry["reason"] for entry in late if entry["what"] == audit_file.WARNING]
        return [*noticed, *found.values()]

    def check_writable(self) -> None:
        """Raise OutputError if the log cannot be written; a missing file is created, empty."""
        with audit_file.open_locked(self.path):
            pass

    # -- helpers ---------------------------------------------------------------------------

    @property
    def _throttle(self) -> Throttle:
        return _THROTTLES.setdefault(self.path.absolute(), Throttle())

    def _read(self, handle: int) -> LogState:
        """Return the state of the log up to its end, including lines of other processes."""
        identity = audit_file.identity(handle)
        known = _OPEN.pop(self.path.absolute(), None)
        if known is None or known.identity != identity[:2] or identity[2] < _size(known):
            known = _Open(state=LogState(), identity=identity[:2])
        for line in audit_file.read_tail(handle, known.state.position):
            known.state.take(line)
        _OPEN[self.path.absolute()] = known
        return known.state

    def _append(self, handle: int, state: LogState, entries: Sequence[Entry]) -> None:
        try:
            audit_file.append(handle, state.position, entries)
        except BaseException:
            _OPEN.pop(
                self.path.absolute(), None
            )  # an incomplete line may be there, so the file is read again
            raise
        for entry in entries:
            state.take_entry(entry)

    def _policy_changes(self, state: LogState) -> list[Entry]:
        """Return one line if the policy differs from the one in the log, else none."""
        now = _plain(self.policy)
        changes = {
            key: [state.policy.get(key), now.get(key)]
            for key in {**state.policy, **now}
            if state.policy.get(key) != now.get(key)
        }
        return [_entry(audit_file.POLICY, changes=changes)] if changes else []

    def _charges(
        self, ledger: LedgerReader, state: LogState, order: OrderName, *, charged: bool
    ) -> list[Entry]:
        """Return a line for each round that the ledger has charged and the log does not have."""
        entries: list[Entry] = []
        count, new = ledger.num_charges, ledger.charges_after(state.charges)
        if not _is_same(ledger, state):
            text = (
                f"the ledger has {count} charges, and they are not the {state.charges} of this "
                "log: it may be an older copy, without what was spent since. Restore the newest "
                "ledger"
            )
            link = ledger.head_after(count)
            entries += _warning_lines({_LEDGER: text}, charges=count, link=link)
            # The line of this order's own charge is still written.
            every = ledger.charges_after(0) if charged else []
            new = [one for one in every if one[:2] == (order.run, order.round)]
        by_round: dict[tuple[str, int], list[PrivacyEvent]] = {}
        for run, number, event in new:
            by_round.setdefault((run, number), []).append(event)
        known = count - len(new)
        for (run, number), events in by_round.items():
            known += len(events)
            mine = (run, number) == (order.run, order.round)
            cost = compose_repeated([(event, 1) for event in events])
            fields = {"run": run, "round": number, "mechanism": order.mechanism if mine else None}
            fields["epsilon"] = privacy_spent(cost, self.policy.delta).epsilon
            fields["delta"] = self.policy.delta
            fields |= self._total(ledger) if known == count else {}
            fields |= {} if mine else {"late": True}
            fields |= {"charges": known, "link": ledger.head_after(known)}
            entries.append(_entry(audit_file.CHARGED, **fields))
        return entries

    def _again(self, order: OrderName) -> list[Entry]:
        times = self._throttle.listed((audit_file.AGAIN, order.run, order.round))
        return [_entry(audit_file.AGAIN, **order.plain(), times=times)] if times else []

    def _total(self, ledger: LedgerReader) -> dict[str, float]:
        """Return what the site's filter counts as spent over all runs, and what is left."""
        history = ledger.history_of_all(self.policy.level)
        spent = self.policy.filter(ledger.budget(FIRST_EVENT_ACCOUNT)).spent(history)
        return {"total": spent, "left": max(0.0, self.policy.epsilon_total - spent)}

    def _account(
        self, path: Path, state: LogState, records: int | None
    ) -> tuple[dict[str, str], list[Entry]]:
        """Return all warnings by topic, and lines for charges that have none yet."""
        records = state.records or records
        if not path.is_file():
            return self._warnings(state, records, None), []
        try:
            with LedgerReader(path) as ledger, ledger.snapshot():
                late = self._charges(ledger, state, OrderName(), charged=False)
                total = self._total(ledger)["total"]
        except (
            SottovoceError
        ) as error:  # nothing is answered on this ledger, but the node may wait for a repair
            return {_LEDGER: str(error), **self._warnings(state, records, None)}, []
        return self._warnings(state, records, total), late

    def _warnings(
        self, state: LogState, records: int | None, total: float | None
    ) -> dict[str, str]:
        """Return the warnings by topic; `total` is what was spent, None if that is unknown."""
        policy, found = self.policy, {}
        if policy.mechanisms_without_noise_floor:
            found[_NOISE] = (
                f"'smallest_noise_multiplier' does not apply to "
                f"{', '.join(policy.mechanisms_without_noise_floor)}, which have no noise "
                "multiplier, nor to questions; use 'epsilon_per_round' and 'epsilon_if_sampled' "
                "to limit those"
            )
        if policy.epsilon_per_round > policy.epsilon_total:
            found[_ROUND] = (
                f"'epsilon_per_round' is {policy.epsilon_per_round:g}, but 'epsilon_total' is "
                f"{policy.epsilon_total:g}, which is smaller and so limits a round, too; lower "
                "'epsilon_per_round'"
            )
        if records is not None and policy.delta >= 1.0 / records:
            found[_DELTA] = (
                f"delta is {policy.delta:g}, and there are {records} records: with a delta of "
                f"1/{records} or more, a message may reveal one of them entirely and still satisfy "
                f"the policy; set delta well below {1.0 / records:.1g}"
            )
        if state.problems:
            found[_CHAIN] = (
                f"{self.path} was altered: {state.problems} of its lines do not follow from those "
                "before; run 'sottovoce ledger log' to see them"
            )
        if total is not None and total >= policy.warn_at * policy.epsilon_total:
            found[_BUDGET] = self._budget_warning(total)
        return found

    def _budget_warning(self, total: float) -> str:
        limit = self.policy.epsilon_total
        share = "all" if total >= limit else f"{math.floor(100.0 * total / limit)}%"
        return (
            f"{share} of the site's budget is used: its filter counts epsilon "
            f"{show_epsilon(total)} of {limit:g} at delta {self.policy.delta:g} "
            f"(warn_at = {self.policy.warn_at:g})"
        )


def _retry_remedy(state: LogState, now: float) -> str:
    """Return what to do about a day's rounds that are used up.

    If the clock was far ahead once, rounds may be refused for years; the text says so.
    """
    if state.latest <= now + _CLOCK_SECONDS:
        return "ask again later"
    return (
        f"the latest charge in the log is of {time_text(state.latest)}, which is in the future, so "
        "the 24 hours start then: the site's clock was ahead, or is behind now. See "
        "'A charge in the future' in docs/how-to/operate-a-federation.md for what to do"
    )


def _size(known: _Open) -> int:
    return known.state.position.num_bytes


def _entry(what: str, **fields: Any) -> Entry:
    kept = {key: value for key, value in fields.items() if value is not None}
    return {"time": time_text(audit_file.wall_clock()), "what": what, **files.finite(kept)}


def _is_same(ledger: LedgerReader, state: LogState) -> bool:
    """Return whether the ledger starts with the charges that the log has."""
    return state.charges == 0 or ledger.head_after(state.charges) == state.link


def _warning_lines(found: dict[str, str], **fields: Any) -> list[Entry]:
    """Return lines for warnings, and write the warnings to the process's log."""
    for text in found.values():
        _LOG.warning("%s", text)
    return [
        _entry(audit_file.WARNING, about=about, reason=text, **fields)
        for about, text in found.items()
    ]


def _short(text: str) -> str:
    return printable(text[:_LONGEST_TEXT])


def _plain(policy: Policy) -> dict[str, Any]:
    """Return the policy as JSON data."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in dataclasses.asdict(policy).items()
        if value is not None
    }
