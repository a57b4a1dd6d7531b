"""`ledger_total`: what one person or site has spent over several ledgers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.analytics.charging import pure_spent
from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.display import text_fields
from sottovoce.core.errors import (
    AdjacencyMismatchError,
    LedgerError,
    ParameterError,
    UnknownNameError,
)
from sottovoce.core.files import finite
from sottovoce.deployment.opened_ledgers import Opened, compared, open_ledger, sum_up
from sottovoce.ledger.copies import Counted, Merged, Source, charged, events, merge
from sottovoce.planning.spending import spent_on
from sottovoce.privacy.compositions import as_replace_one, assumptions_in_words, without_promises
from sottovoce.privacy.event_json import from_json
from sottovoce.privacy.events import NonPrivate, PrivacyEvent, basic_counts

History = list[tuple[PrivacyEvent, int]]

_WHY: dict[Counted, str] = {
    "seen": "are counted as if every message and every sample were seen: two ledgers have charges "
    "of their run, or the account has two names in it, and no channel hides two messages",
    "one seed": "have no bound: two ledgers of a seeded run have the same noise, and not shown to "
    "be on the same input; whoever sees both takes the noise away",
    "one noise": "have no bound: the account has two names in their run, whose messages were not "
    "stored, so that both may be in one sum, with one noise",
}

FIXED = (
    "what was asked was fixed beforehand: no run and no question was chosen in the light of an "
    "earlier answer"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerShare:
    """One ledger's part of a total.

    `epsilon` is that of all `charges` of the account in this ledger, each as the total counts it;
    `counted` of them are in the total, the others are another ledger's too.
    """

    path: str
    account: str
    charges: int
    counted: int
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTotal:
    """What one account has spent over several ledgers.

    epsilon        the smallest sound bound for events that were fixed beforehand.
    assumptions    what else it rests on, in sentences.
    local_epsilon  where something was charged as hidden, what holds if nothing of it is: never
                   below epsilon. None where nothing was.
    pure_epsilon   the sum of all pure epsilons: these answers change nobody's odds by more than
                   its exponential, however they were asked for. Infinite if a charge has none.
    limits         (epsilon, delta) that the sites' own limits add up to, where all ledgers are
                   sites', no two of them copies, and nothing that was hidden is counted as seen: it
                   holds whatever was asked in the light of earlier answers. Else None.
    notes          what was counted once, what twice, and what was converted.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency | None
    unit: Unit | None
    accountant: str | None
    bounds: Mapping[str, float]
    assumptions: tuple[str, ...]
    local_epsilon: float | None
    pure_epsilon: float
    limits: tuple[float, float] | None
    ledgers: tuple[LedgerShare, ...]
    notes: tuple[str, ...]

    @property
    def charges(self) -> int:
        return sum(share.counted for share in self.ledgers)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, the same as `ledger total --json` prints; no guarantee is None."""
        found: dict[str, Any] = finite(
            {
                "epsilon": self.epsilon,
                "private": math.isfinite(self.epsilon),
                "delta": self.delta,
                "adjacency": self.adjacency and str(self.adjacency),
                "unit": self.unit and str(self.unit),
                "charges": self.charges,
                "accountant": self.accountant,
                "bounds": dict(self.bounds),
                "assumes": [FIXED, *self.assumptions],
                "local_epsilon": self.local_epsilon,
                "pure_epsilon": self.pure_epsilon,
                "limits": self.limits and {"epsilon": self.limits[0], "delta": self.limits[1]},
                "ledgers": [
                    {
                        "path": share.path,
                        "account": share.account,
                        "charges": share.charges,
                        "counted": share.counted,
                        "epsilon": share.epsilon,
                    }
                    for share in self.ledgers
                ],
                "notes": list(self.notes),
            }
        )
        return found

    def __str__(self) -> str:
        found = self.to_dict()
        found["ledgers"] = ", ".join(share.path for share in self.ledgers)
        return text_fields(found)


def ledger_total(
    ledgers: Sequence[str | Path],
    *,
    delta: float | None = None,
    client: str | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
    adjacency: str | Adjacency | None = None,
) -> LedgerTotal:
    """Return what one account has spent over several ledgers; nothing is written.

    A site's folder is one account, whatever names are in it. In other ledgers the account is
    `client`, or what `names` says for that path, or the only client that there is.

    Args:
        ledgers: folders of runs, sites and questions, and ledger files.
        delta: where the total is told; None for charges that are all pure, whose sum needs none.
        client: the account's name in every ledger that `names` does not mention.
        names: for a path as it stands in `ledgers`, the account's names there.
        adjacency: 'replace-one' converts charges under zero-out, so that both can be counted.

    Returns:
        The total, with what each ledger has to do with it.

    Raises:
        LedgerError: for a ledger that is missing or was altered.
        AdjacencyMismatchError: for charges that do not add up.
    """
    paths = [str(path) for path in ledgers]
    if not paths:
        raise ParameterError("no ledger is named; name at least one")
    given = {path: tuple(dict.fromkeys(chosen)) for path, chosen in (names or {}).items()}
    for path in given:
        if path not in paths:
            raise UnknownNameError.among("ledger", path, paths)
    anywhere = () if client is None else (client,)
    opened = compared([open_ledger(path, given.get(path, anywhere)) for path in paths])
    beyond = None if any(one.site is None for one in opened) else anywhere  # a name for no ledger
    accounts = [_account(one, given.get(one.path, beyond), anywhere) for one in opened]
    return _total(opened, accounts, delta, _adjacency(adjacency))


def ledger_totals(
    ledgers: Sequence[str | Path],
    *,
    delta: float | None = None,
    adjacency: str | Adjacency | None = None,
) -> dict[str, LedgerTotal]:
    """Return the total of each name, over all ledgers in which it occurs; see `ledger_total`.

    Everything in a site's folder is of the site's name.
    """
    opened = compared([open_ledger(str(path), ()) for path in ledgers])
    found: dict[str, None] = {}
    for one in opened:
        found.update(dict.fromkeys([one.site] if one.site is not None else one.clients))
    totals = {}
    for name in sorted(found):
        within = [one for one in opened if name in ((one.site,) if one.site else one.clients)]
        accounts = [one.clients if one.site is not None else (name,) for one in within]
        totals[name] = _total(within, accounts, delta, _adjacency(adjacency))
    return totals


def _adjacency(name: str | Adjacency | None) -> Adjacency | None:
    return None if name is None else Adjacency.parse(str(name))


def _account(
    one: Opened, names: tuple[str, ...] | None, anywhere: tuple[str, ...]
) -> tuple[str, ...]:
    """Whose charges count in a ledger."""
    if one.site is not None:
        if names:
            raise LedgerError(
                f"{one.path} is the site '{one.site}', and its whole ledger is one account, "
                f"whatever name it went by; leave --client away. What '{names[0]}' was charged: "
                f"sottovoce ledger show {one.path} --client {names[0]}"
            )
        return one.clients
    chosen = names or anywhere
    for name in chosen:
        if name not in one.clients:
            found = UnknownNameError.among("client", name, one.clients)
            raise UnknownNameError(
                f"{one.path}: {found}; say who it is there with --client '{one.path}=NAME', or "
                "leave this ledger out"
            )
    if chosen:
        return chosen
    if len(one.clients) > 1:
        some = ", ".join(one.clients[:3])
        raise LedgerError(
            f"{one.path} has the accounts of {len(one.clients)} clients ({some}"
            f"{', ...' if len(one.clients) > 3 else ''}); name one with --client, or ask for "
            "--every one of them"
        )
    return one.clients


def _total(
    opened: Sequence[Opened],
    accounts: Sequence[tuple[str, ...]],
    delta: float | None,
    adjacency: Adjacency | None,
) -> LedgerTotal:
    if delta is not None:
        parameter_rules.delta(delta)
    sources = [
        Source(
            number=one.number,
            root=one.root(opened),
            repeated=one.repeated,
            entries=[entry for name in chosen for entry in one.rows.get(name, ())],
        )
        for one, chosen in zip(opened, accounts, strict=True)
    ]
    merged = merge(sources)
    wanted, unit, notes = _one_kind(merged, adjacency, opened, sources)
    counted = events(merged.counts)
    history = _history(counted, wanted)
    pure = pure_spent(history)
    if delta is None and not math.isfinite(pure) and not _has_no_bound(history):
        raise ParameterError(
            "not all charges are pure, so epsilon is told at a delta; give --delta"
        )
    spent = spent_on(history, delta, pure) if history else None
    raw = [event for event, *_ in charged(merged.counts)]
    needed = (sentence for event in raw for sentence in assumptions_in_words(event))
    shares = [
        LedgerShare(
            path=one.path,
            account=one.site if one.site is not None else ", ".join(chosen) or "nobody",
            charges=len(source.entries),
            counted=number,
            epsilon=_epsilon(_history(events(own), wanted), delta),
        )
        for one, chosen, source, number, own in zip(
            opened, accounts, sources, merged.counted, merged.own, strict=True
        )
    ]
    epsilon = spent.epsilon if spent else 0.0
    local = None
    if any(without_promises(event) != event for event in raw):
        seen = _history([(without_promises(event), count) for event, count in counted], wanted)
        # An accountant of hidden events may be less tight, and what is seen costs no less.
        local = max(epsilon, _epsilon(seen, delta))
    return LedgerTotal(
        epsilon=epsilon,
        delta=spent.delta if spent else delta or 0.0,
        adjacency=wanted,
        unit=unit,
        accountant=spent.accountant if spent else None,
        bounds=dict(spent.bounds) if spent else {},
        # What an event rests on is lost where it is converted.
        assumptions=tuple(dict.fromkeys([*spent.assumptions, *needed])) if spent else (),
        local_epsilon=local,
        pure_epsilon=pure,
        limits=_limits(opened, merged, wanted, unit),
        ledgers=tuple(shares),
        notes=(*_overlaps(opened, merged), *notes),
    )


def _one_kind(
    merged: Merged,
    asked: Adjacency | None,
    opened: Sequence[Opened],
    sources: Sequence[Source],
) -> tuple[Adjacency | None, Unit | None, list[str]]:
    """The one adjacency and unit of the total, and what had to be converted to them."""
    adjacencies = {event.adjacency for event, _, _ in charged(merged.counts)}
    units = {unit for _, unit, _ in charged(merged.counts)}
    notes = []
    if asked is None and len(adjacencies) > 1:
        raise AdjacencyMismatchError(
            f"charges under {' and '.join(sorted(adjacencies))} do not add up "
            f"({_where(opened, sources)}); --adjacency replace-one counts those under zero-out by "
            "way of zero, at twice the distance, or count them apart"
        )
    if asked is Adjacency.ZERO_OUT and Adjacency.REPLACE_ONE in adjacencies:
        raise AdjacencyMismatchError(
            "charges under replace-one are not counted under zero-out; ask for --adjacency "
            "replace-one, or count them apart"
        )
    wanted = asked or next(iter(adjacencies), None)
    if wanted is Adjacency.REPLACE_ONE and Adjacency.ZERO_OUT in adjacencies:
        notes.append(
            "charges under zero-out are counted under replace-one by way of zero: twice the "
            "distance, and nothing for a sample or a channel that hides them"
        )
    if len(units) > 1:
        if wanted is not Adjacency.REPLACE_ONE:
            raise AdjacencyMismatchError(
                f"charges per sample and per client do not add up under {wanted} "
                f"({_where(opened, sources)}); under --adjacency replace-one a charge per client "
                "covers a sample of the client, or count them apart"
            )
        notes.append("charges per client are counted for a sample, which they cover")
    unit = Unit.SAMPLE if len(units) > 1 else next(iter(units), None)
    return wanted, unit, notes


def _where(opened: Sequence[Opened], sources: Sequence[Source]) -> str:
    """Which ledger has which kind of charges."""
    found = []
    for one, source in zip(opened, sources, strict=True):
        kinds = {
            f"{from_json(text).adjacency} per {unit}"
            for text, unit in {(entry.event, entry.unit) for entry in source.entries}
        }
        found += [f"{one.path}: {', '.join(sorted(kinds))}"] if kinds else []
    return "; ".join(found)


def _history(events: Iterable[tuple[PrivacyEvent, int]], adjacency: Adjacency | None) -> History:
    """Events with their counts, all of them under `adjacency`."""
    found: dict[PrivacyEvent, int] = {}
    for event, count in events:
        one = as_replace_one(event) if event.adjacency is not adjacency else event
        found[one] = found.get(one, 0) + count
    return list(found.items())


def _has_no_bound(history: History) -> bool:
    return any(isinstance(part, NonPrivate) for event, _ in history for part in basic_counts(event))


def _epsilon(history: History, delta: float | None) -> float:
    return spent_on(history, delta, pure_spent(history)).epsilon if history else 0.0


def _limits(
    opened: Sequence[Opened], merged: Merged, adjacency: Adjacency | None, unit: Unit | None
) -> tuple[float, float] | None:
    """What the limits of sites add up to; None unless everything is within a site's limits.

    Two copies of a site share a beginning, and are no two interactions. What a site counts as
    hidden must be so, in the total too.
    """
    if not merged.counts or any(how != "as charged" for *_, how in merged.counts):
        return None
    sites = {one.inode: one for one in opened}.values()
    if len({one.standing.identity for one in sites}) < len(sites):
        return None
    policies = []
    for one in sites:  # also those that have answered nothing yet
        if one.policy is None or not one.admitted:
            return None
        if (one.policy.adjacency, one.policy.level) != (adjacency, unit):
            return None
        policies.append(one.policy)
    return sum_up(one.epsilon_total for one in policies), sum_up(one.delta for one in policies)


def _overlaps(opened: Sequence[Opened], merged: Merged) -> list[str]:
    """What was counted once although it is in two ledgers, what was not, and what as seen."""
    found = []
    for (number, other), count in sorted(merged.same.items()):
        first, second = opened[number].path, opened[other].path
        found.append(f"{count} charges of {first} are those of {second}, and are counted once")
    for (number, other), count in sorted(merged.doubtful.items()):
        first, second = opened[number].path, opened[other].path
        found.append(
            f"{count} charges of {first} have the run, client and round of charges of {second}, "
            "and neither ledger has all rows of the other: both are counted. If one is the "
            "server's account of what the other answered, or a copy of a ledger that an earlier "
            "version began, and was not charged since it was copied, leave it out"
        )
    for how, why in _WHY.items():
        count = merged.number(how)
        found += [f"{count} charges {why}"] if count else []
    return found
