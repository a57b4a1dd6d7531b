"""A site's audit log: what it charged, answered, refused and was told to allow, line by line.

audit.jsonl lies beside the ledger. A line is on disk before the message that it is about leaves:
where it cannot be written nothing leaves, the charge stays, and whoever asks again gets the stored
bytes. Every line has `time` (UTC) and `what`:

charged          run, round, mechanism; epsilon, which the round costs at the policy's delta; total
                 and left, as the site's filter counts; charges, how many the ledger has, and link,
                 their digest. `late`: it was noticed afterwards, for the process ended between
                 the charge and the line
answered again   stored bytes, or a charge that had released nothing: nothing new was charged
refused          reason, which is public
policy changed   changes: for each key of [policy] its old and its new value
started, stopped the process that answers
warning          about, reason

Whoever reaches the link can be refused, and ask again, as often as they like: lines that differ
from the one before come 20 at once and then one a minute; what has the run and the reason of the
last one gets another line when the 20 are there again, a minute later at the earliest. `times` says
for how many orders a line stands, those before it that have none included.
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
from sottovoce.ledger.records import FIRST_EVENT, Due
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.compositions import multiset
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.version import __version__

LOG_NAME = "audit.jsonl"
_LOG = printable_text.logger()
_LONGEST_TEXT = 300
_CLOCK_SECONDS = 60.0  # a clock that is adjusted by less was not wrong
_BUDGET, _DELTA, _NOISE, _CHAIN, _LEDGER = "budget", "delta", "noise floor", "log", "ledger"
_ROUND = "round"


@dataclass(slots=True)
class _Open:
    """A log that this process writes: what it says so far, and who is held back."""

    state: LogState
    identity: tuple[int, int]


_OPEN: dict[Path, _Open] = {}
_THROTTLES: dict[Path, Throttle] = {}
_GUARD = threading.RLock()


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderName:
    """What a line says of the order that it is about, as far as it is known."""

    run: str | None = None
    round: int | None = None
    mechanism: str | None = None

    def plain(self) -> Entry:
        given = {"run": self.run, "round": self.round, "mechanism": self.mechanism}
        return {
            key: _short(value) if isinstance(value, str) else value for key, value in given.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLog:
    """The log of one site under the policy that it has now."""

    path: Path
    policy: Policy

    def check(self, ledger: LedgerReader, dues: Sequence[Due]) -> None:
        """Refuse rounds beyond `rounds_per_day`; whoever charges asks within the transaction.

        Rounds in the ledger that have no line yet count as charged now.

        Raises:
            PolicyError: there were enough rounds today.
            OutputError: the log cannot be opened, so that nothing may be charged.
        """
        with _GUARD, audit_file.opened(self.path) as handle:
            state = self._read(handle)
            limit = self.policy.rounds_per_day
            if limit is None or not dues:
                return
            unlisted = {(run, number) for run, number, _ in ledger.charges_after(state.charges)}
            now = audit_file.wall_clock()
            charged = state.rounds_within_a_day(now) | unlisted
        asked = {(due.release.run, due.release.round) for due in dues}
        if len(charged | asked) > limit:
            raise PolicyError(
                f"{len(charged)} rounds were charged within 24 hours, and 'rounds_per_day' is "
                f"{limit}; {_when_again(state, now)}"
            )

    def answered(
        self, ledger: LedgerReader, order: OrderName, *, charged: bool, records: int | None = None
    ) -> None:
        """Write down what an answer cost, before it leaves; OutputError where that fails.

        `charged`: this answer was charged. `records` is how many the site has, if it knows.
        """
        with _GUARD, audit_file.opened(self.path) as handle:
            state = self._read(handle)
            self._append(handle, state, self._policy_changes(state))
            with ledger.snapshot():
                entries = self._charges(ledger, state, order, charged=charged)
            total = None
            if entries:
                total = entries[-1].get("total")
                entries[-1] |= {} if records is None else {"records": records}
            elif not charged:  # else somebody else's line has it already
                entries = self._again(order)
            found = self._warnings(state, records or state.records, total)
            new = {about: text for about, text in found.items() if about not in state.warned}
            self._append(handle, state, [*entries, *_warning_lines(new)])

    def refused(self, reason: str, order: OrderName) -> bool:
        """Write down a refusal; True if it has a line of its own. A refusal never fails by it."""
        with _GUARD:
            times = self._throttle.listed((audit_file.REFUSED, order.run, reason))
            if times is None:
                return False
            try:
                with audit_file.opened(self.path) as handle:
                    state = self._read(handle)
                    fields = {**order.plain(), "reason": _short(reason), "times": times}
                    line = _entry(audit_file.REFUSED, **fields)
                    self._append(handle, state, [*self._policy_changes(state), line])
            except SottovoceError as error:
                _LOG.error("a refusal is not in the audit log: %s", error)
        return True

    def started(self, ledger: Path, *, records: int | None = None) -> list[str]:
        """Write down that answers begin; what the site should be warned of, every time.

        `records` is how many the site has, where no answer has told.

        Raises:
            OutputError: the log cannot be written, so that nothing could be answered.
        """
        with _GUARD, audit_file.opened(self.path) as handle:
            state = self._read(handle)
            line = _entry(audit_file.STARTED, version=__version__)
            self._append(handle, state, [*self._policy_changes(state), line])
            found, late = self._account(ledger, state, records)
            self._append(handle, state, [*late, *_warning_lines(found)])
        return list(found.values())

    def stopped(self) -> None:
        """Write down that answers end, and how many refusals have no line."""
        with _GUARD, audit_file.opened(self.path) as handle:
            unlisted = self._throttle.unlisted
            line = _entry(audit_file.STOPPED, **({"unlisted": unlisted} if unlisted else {}))
            self._append(handle, self._read(handle), [line])
            self._throttle.unlisted = 0

    def warnings(self, ledger: Path, *, records: int | None = None) -> list[str]:
        """What the site should be warned of now; nothing is written."""
        state = LogState()
        for line in audit_file.read_lines(self.path, state.position):
            state.take(line)
        found, late = self._account(ledger, state, records)
        noticed = [entry["reason"] for entry in late if entry["what"] == audit_file.WARNING]
        return [*noticed, *found.values()]

    def check_writable(self) -> None:
        """Refuse a log that no answer could be written to: OutputError."""
        with audit_file.opened(self.path):
            pass

    # -- inside ----------------------------------------------------------------------------

    @property
    def _throttle(self) -> Throttle:
        return _THROTTLES.setdefault(self.path.absolute(), Throttle())

    def _read(self, handle: int) -> LogState:
        """What the log says up to its end, others' lines included."""
        identity = audit_file.identity(handle)
        known = _OPEN.pop(self.path.absolute(), None)
        if known is None or known.identity != identity[:2] or identity[2] < _size(known):
            known = _Open(state=LogState(), identity=identity[:2])
        for line in audit_file.tail(handle, known.state.position):
            known.state.take(line)
        _OPEN[self.path.absolute()] = known
        return known.state

    def _append(self, handle: int, state: LogState, entries: Sequence[Entry]) -> None:
        try:
            audit_file.append(handle, state.position, entries)
        except BaseException:
            _OPEN.pop(self.path.absolute(), None)  # half a line may be there: read it again
            raise
        for entry in entries:
            state.take_entry(entry)

    def _policy_changes(self, state: LogState) -> list[Entry]:
        """One line if the policy is not the one that the log knows."""
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
        """A line for each round that the ledger has charged and the log does not know."""
        entries: list[Entry] = []
        count, new = ledger.num_charges, ledger.charges_after(state.charges)
        if not _is_same(ledger, state):
            text = (
                f"the ledger has {count} charges, and they are not those that this log knows "
                f"({state.charges}): an older copy of it has forgotten what was spent since"
            )
            link = ledger.head_after(count)
            entries += _warning_lines({_LEDGER: text}, charges=count, link=link)
            # This order's own line is written all the same.
            every = ledger.charges_after(0) if charged else []
            new = [one for one in every if one[:2] == (order.run, order.round)]
        by_round: dict[tuple[str, int], list[PrivacyEvent]] = {}
        for run, number, event in new:
            by_round.setdefault((run, number), []).append(event)
        known = count - len(new)
        for (run, number), events in by_round.items():
            known += len(events)
            mine = (run, number) == (order.run, order.round)
            cost = multiset([(event, 1) for event in events])
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
        """What was spent over all runs, as the filter counts, and what is left of the total."""
        history = ledger.everything(self.policy.level)
        spent = self.policy.filter(ledger.budget(FIRST_EVENT)).spent(history)
        return {"total": spent, "left": max(0.0, self.policy.epsilon_total - spent)}

    def _account(
        self, path: Path, state: LogState, records: int | None
    ) -> tuple[dict[str, str], list[Entry]]:
        """All warnings, by what they are about, and lines for charges that have none yet."""
        records = state.records or records
        if not path.is_file():
            return self._warnings(state, records, None), []
        try:
            with LedgerReader(path) as ledger, ledger.snapshot():
                late = self._charges(ledger, state, OrderName(), charged=False)
                total = self._total(ledger)["total"]
        except SottovoceError as error:  # nothing is answered on it; the node may still wait
            return {_LEDGER: str(error), **self._warnings(state, records, None)}, []
        return self._warnings(state, records, total), late

    def _warnings(
        self, state: LogState, records: int | None, total: float | None
    ) -> dict[str, str]:
        """What to warn of, where so much was spent in all (None: nothing new)."""
        policy, found = self.policy, {}
        if policy.beyond_noise_floor:
            found[_NOISE] = (
                f"'smallest_noise_multiplier' does not apply to "
                f"{', '.join(policy.beyond_noise_floor)}, which have no noise multiplier, nor to "
                "questions; 'epsilon_per_round' and 'epsilon_if_sampled' limit those"
            )
        if policy.epsilon_per_round > policy.epsilon_total:
            found[_ROUND] = (
                f"'epsilon_per_round' is {policy.epsilon_per_round:g}, and 'epsilon_total' is "
                f"{policy.epsilon_total:g}: the total is the smaller, so it limits a round, too"
            )
        if records is not None and policy.delta >= 1.0 / records:
            found[_DELTA] = (
                f"delta is {policy.delta:g}, and there are {records} records: at 1/{records} or "
                "more a message may give one of them away entirely and keep the policy; set delta "
                f"well below {1.0 / records:.1g}"
            )
        if state.problems:
            found[_CHAIN] = (
                f"{self.path} was altered: {state.problems} of its lines do not follow from those "
                "before; see 'sottovoce ledger log'"
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


def _when_again(state: LogState, now: float) -> str:
    """What to do about a day's rounds that are used up; in years, where a clock was far ahead."""
    if state.latest <= now + _CLOCK_SECONDS:
        return "ask again later"
    return (
        f"the latest charge on record is of {time_text(state.latest)}, which is in the future, and "
        "rounds count from then on: the site's clock was ahead, or is behind now. See "
        "'rounds_per_day' in docs/deployment.md for the way out"
    )


def _size(known: _Open) -> int:
    return known.state.position.num_bytes


def _entry(what: str, **fields: Any) -> Entry:
    kept = {key: value for key, value in fields.items() if value is not None}
    return {"time": time_text(audit_file.wall_clock()), "what": what, **files.finite(kept)}


def _is_same(ledger: LedgerReader, state: LogState) -> bool:
    """Whether the ledger begins with the charges that the log knows."""
    return state.charges == 0 or ledger.head_after(state.charges) == state.link


def _warning_lines(found: dict[str, str], **fields: Any) -> list[Entry]:
    """Lines for warnings, which the process's own log has too."""
    for text in found.values():
        _LOG.warning("%s", text)
    return [
        _entry(audit_file.WARNING, about=about, reason=text, **fields)
        for about, text in found.items()
    ]


def _short(text: str) -> str:
    return printable(text[:_LONGEST_TEXT])


def _plain(policy: Policy) -> dict[str, Any]:
    """The policy as JSON has it."""
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in dataclasses.asdict(policy).items()
        if value is not None
    }
