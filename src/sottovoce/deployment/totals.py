"""Totals over several ledgers: what one person or site has spent in all of them.

`ledger_total` computes one account, `ledger_totals` all accounts by name.
"""

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
from sottovoce.deployment.opened_ledgers import (
    LedgerSnapshot,
    compare_ledgers,
    open_ledger,
    sum_rounded_up,
)
from sottovoce.ledger.copies import (
    AccountRows,
    Counted,
    Merged,
    charged_events,
    counted_events,
    merge,
)
from sottovoce.planning.spending import spending_of_charges
from sottovoce.privacy.compositions import as_replace_one, describe_assumptions, without_trust
from sottovoce.privacy.event_json import from_json
from sottovoce.privacy.events import NonPrivate, PrivacyEvent, basic_counts

History = list[tuple[PrivacyEvent, int]]

_WHY: dict[Counted, str] = {
    "seen": "are counted without amplification by a channel or by sampling: two ledgers have "
    "charges of their run, or the account has two names in it, and no channel hides two messages",
    "one seed": "have no bound: two ledgers of a seeded run have the same noise, and the inputs "
    "are not shown to be equal; the noise cancels in the difference of both messages",
    "one noise": "have no bound: the account has two names in their run, and no messages were "
    "stored, so both may be in one sum with one noise",
}

FIXED = (
    "what was asked was fixed beforehand: no run and no question was chosen in the light of an "
    "earlier answer"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerShare:
    """One ledger's part of a total.

    Attributes:
        path: The ledger as it was given.
        account: Name of the account in this ledger.
        charges: Number of charges of the account in this ledger.
        counted: Number of these charges that are in the total; the others are also in another
            ledger.
        epsilon: Epsilon of all `charges`, each counted as in the total.
    """

    path: str
    account: str
    charges: int
    counted: int
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTotal:
    """What one account has spent over several ledgers.

    Attributes:
        epsilon: The smallest sound bound for events that were fixed beforehand; infinite without a
            guarantee.
        delta: Delta of the bound; 0 if epsilon is the sum of the pure epsilons.
        adjacency: Adjacency of the guarantee; without charges the one that was asked for, or None.
        unit: What is protected, a sample or a client; None without charges.
        accountant: The accountant that gave the smallest bound; "pure" for the sum of the pure
            epsilons, None without charges.
        bounds: Epsilon by every accountant that applies; only "pure" for the sum of the pure
            epsilons, empty without charges.
        assumptions: What else the bound relies on, in sentences.
        local_epsilon: Epsilon if no channel or sampling hides anything, where something was charged
            as hidden; never below `epsilon`. None where nothing was.
        pure_epsilon: Sum of the pure epsilons of all charges. All answers together change the odds
            of any statement about a unit by a factor of at most e^pure_epsilon, even if questions
            were chosen after seeing earlier answers. Infinite if a charge has no pure epsilon.
        limits: (epsilon, delta), the sums of the limits in the sites' policies. This guarantee
            holds even if questions were chosen after seeing earlier answers. None unless there are
            charges, all ledgers belong to sites whose policies admit them and have the total's
            adjacency and unit, no two are copies of one another, and every charge is counted with
            the amplification with which it was charged.
        ledgers: The part of each ledger.
        notes: What was counted once, what twice, and what was converted.
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
        """Number of charges in the total."""
        return sum(share.counted for share in self.ledgers)

    def to_dict(self) -> dict[str, Any]:
        """Return the total as JSON data, as `ledger total --json` prints it.

        Returns:
            The fields; an infinite epsilon is None.
        """
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

    All charges in a site's folder are one account, even if the site had several names. In another
    ledger the account is what `names` says for its path, otherwise `client`, otherwise the only
    client in it.

    Args:
        ledgers: Folders of runs, sites and questions, and ledger files.
        delta: Delta at which the total is computed. None if all charges are pure, whose sum needs
            none.
        client: Name of the account in every ledger that `names` does not mention, sites' folders
            excepted; if all ledgers are sites' folders, a name is refused.
        names: The account's names in a ledger, by its path as in `ledgers`.
        adjacency: 'replace-one' converts charges under zero-out, so that both can be added. None if
            all charges are under one adjacency.

    Returns:
        The total, with the part of each ledger.

    Raises:
        ParameterError: No ledger is named, or a delta is out of range, or needed and missing.
        UnknownNameError: A name or path does not occur, or the adjacency is unknown.
        LedgerError: A ledger is missing or was altered, the account in it is ambiguous, or a name
            is given for a site's folder.
        AdjacencyMismatchError: Charges do not add up.
        UnsupportedEventError: A charge under zero-out cannot be converted to replace-one.
    """
    paths = [str(path) for path in ledgers]
    if not paths:
        raise ParameterError("no ledger was given; name at least one")
    given = {path: tuple(dict.fromkeys(chosen)) for path, chosen in (names or {}).items()}
    for path in given:
        if path not in paths:
            raise UnknownNameError.among("ledger", path, paths)
    anywhere = () if client is None else (client,)
    opened = compare_ledgers([open_ledger(path, given.get(path, anywhere)) for path in paths])
    # If all ledgers are sites', a given client name applies to none of them and is refused.
    beyond = None if any(one.site is None for one in opened) else anywhere
    accounts = [_account(one, given.get(one.path, beyond), anywhere) for one in opened]
    return _total(opened, accounts, delta, _adjacency(adjacency))


def ledger_totals(
    ledgers: Sequence[str | Path],
    *,
    delta: float | None = None,
    adjacency: str | Adjacency | None = None,
) -> dict[str, LedgerTotal]:
    """Return the total of each name over all ledgers in which it occurs.

    Everything in a site's folder belongs to the site's name.

    Args:
        ledgers: Folders of runs, sites and questions, and ledger files.
        delta: Delta at which the totals are computed; see `ledger_total`.
        adjacency: See `ledger_total`.

    Returns:
        The total by name.

    Raises:
        ParameterError: A delta is out of range, or needed and missing.
        UnknownNameError: The adjacency is unknown.
        LedgerError: A ledger is missing or was altered.
        AdjacencyMismatchError: Charges do not add up.
        UnsupportedEventError: A charge under zero-out cannot be converted to replace-one.
    """
    opened = compare_ledgers([open_ledger(str(path), ()) for path in ledgers])
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
    one: LedgerSnapshot, names: tuple[str, ...] | None, anywhere: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the names whose charges count in a ledger."""
    if one.site is not None:
        if names:
            raise LedgerError(
                f"{one.path} is the folder of site '{one.site}', and 'ledger total' always adds up "
                f"all charges of a site; name no client (--client). To see the charges of "
                f"'{names[0]}' alone, run: sottovoce ledger show {one.path} --client {names[0]}"
            )
        return one.clients
    chosen = names or anywhere
    for name in chosen:
        if name not in one.clients:
            found = UnknownNameError.among("client", name, one.clients)
            raise UnknownNameError(
                f"{one.path}: {found}; name the account there with --client '{one.path}=NAME' (in "
                "Python, the argument names), or leave this ledger out"
            )
    if chosen:
        return chosen
    if len(one.clients) > 1:
        some = ", ".join(one.clients[:3])
        raise LedgerError(
            f"{one.path} has the accounts of {len(one.clients)} clients ({some}"
            f"{', ...' if len(one.clients) > 3 else ''}); name one (--client), or ask for all of "
            "them (--every, in Python ledger_totals)"
        )
    return one.clients


def _total(
    opened: Sequence[LedgerSnapshot],
    accounts: Sequence[tuple[str, ...]],
    delta: float | None,
    adjacency: Adjacency | None,
) -> LedgerTotal:
    if delta is not None:
        parameter_rules.delta(delta)
    sources = [
        AccountRows(
            number=one.number,
            root=one.root(opened),
            repeated=one.repeated,
            entries=[entry for name in chosen for entry in one.rows.get(name, ())],
        )
        for one, chosen in zip(opened, accounts, strict=True)
    ]
    merged = merge(sources)
    wanted, unit, notes = _one_kind(merged, adjacency, opened, sources)
    counted = counted_events(merged.counts)
    history = _history(counted, wanted)
    pure = pure_spent(history)
    if delta is None and not math.isfinite(pure) and not _has_no_bound(history):
        raise ParameterError(
            "not all charges are pure, so epsilon depends on a delta; give one (--delta)"
        )
    spent = spending_of_charges(history, delta, pure) if history else None
    raw = [event for event, *_ in charged_events(merged.counts)]
    needed = (sentence for event in raw for sentence in describe_assumptions(event))
    shares = [
        LedgerShare(
            path=one.path,
            account=one.site if one.site is not None else ", ".join(chosen) or "none",
            charges=len(source.entries),
            counted=number,
            epsilon=_epsilon(_history(counted_events(own), wanted), delta),
        )
        for one, chosen, source, number, own in zip(
            opened, accounts, sources, merged.counted, merged.own, strict=True
        )
    ]
    epsilon = spent.epsilon if spent else 0.0
    local = None
    if any(without_trust(event) != event for event in raw):
        seen = _history([(without_trust(event), count) for event, count in counted], wanted)
        # Without hiding the loss is no smaller, but the bound could be, because accountants of
        # hidden events may be less tight.
        local = max(epsilon, _epsilon(seen, delta))
    return LedgerTotal(
        epsilon=epsilon,
        delta=spent.delta if spent else delta or 0.0,
        adjacency=wanted,
        unit=unit,
        accountant=spent.accountant if spent else None,
        bounds=dict(spent.bounds) if spent else {},
        # Conversion removes the assumptions of an event, so they are added here.
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
    opened: Sequence[LedgerSnapshot],
    sources: Sequence[AccountRows],
) -> tuple[Adjacency | None, Unit | None, list[str]]:
    """Return the adjacency and unit of the total, and notes on what is converted to them."""
    adjacencies = {event.adjacency for event, _, _ in charged_events(merged.counts)}
    units = {unit for _, unit, _ in charged_events(merged.counts)}
    notes = []
    if asked is None and len(adjacencies) > 1:
        raise AdjacencyMismatchError(
            f"charges under {' and '.join(sorted(adjacencies))} do not add up "
            f"({_where(opened, sources)}); use --adjacency replace-one, which converts those under "
            "zero-out at twice the distance, or ask for separate totals"
        )
    if asked is Adjacency.ZERO_OUT and Adjacency.REPLACE_ONE in adjacencies:
        raise AdjacencyMismatchError(
            "charges under replace-one cannot be converted to zero-out; use --adjacency "
            "replace-one, or ask for separate totals"
        )
    wanted = asked or next(iter(adjacencies), None)
    if wanted is Adjacency.REPLACE_ONE and Adjacency.ZERO_OUT in adjacencies:
        notes.append(
            "charges under zero-out are converted to replace-one by way of zero: at twice the "
            "distance, without amplification by sampling or a channel"
        )
    if len(units) > 1:
        if wanted is not Adjacency.REPLACE_ONE:
            raise AdjacencyMismatchError(
                f"charges per sample and per client do not add up under {wanted} "
                f"({_where(opened, sources)}); use --adjacency replace-one, under which a charge "
                "per client covers each of its samples, or ask for separate totals"
            )
        notes.append("charges per client are counted for a sample of the client, which they cover")
    unit = Unit.SAMPLE if len(units) > 1 else next(iter(units), None)
    return wanted, unit, notes


def _where(opened: Sequence[LedgerSnapshot], sources: Sequence[AccountRows]) -> str:
    """Return which ledger has which kinds of charges, as text."""
    found = []
    for one, source in zip(opened, sources, strict=True):
        kinds = {
            f"{from_json(text).adjacency} per {unit}"
            for text, unit in {(entry.event, entry.unit) for entry in source.entries}
        }
        found += [f"{one.path}: {', '.join(sorted(kinds))}"] if kinds else []
    return "; ".join(found)


def _history(events: Iterable[tuple[PrivacyEvent, int]], adjacency: Adjacency | None) -> History:
    """Return events with their counts, all of them under `adjacency`."""
    found: dict[PrivacyEvent, int] = {}
    for event, count in events:
        one = as_replace_one(event) if event.adjacency is not adjacency else event
        found[one] = found.get(one, 0) + count
    return list(found.items())


def _has_no_bound(history: History) -> bool:
    return any(isinstance(part, NonPrivate) for event, _ in history for part in basic_counts(event))


def _epsilon(history: History, delta: float | None) -> float:
    return spending_of_charges(history, delta, pure_spent(history)).epsilon if history else 0.0


def _limits(
    opened: Sequence[LedgerSnapshot], merged: Merged, adjacency: Adjacency | None, unit: Unit | None
) -> tuple[float, float] | None:
    """Return the sum of the sites' limits; None unless everything is within a site's limits.

    Two copies of a site share a beginning, so they are not two separate interactions. What a site
    counts as hidden must be counted as hidden in the total as well.
    """
    if not merged.counts or any(how != "as charged" for *_, how in merged.counts):
        return None
    sites = {one.inode: one for one in opened}.values()
    if len({one.position.identity for one in sites}) < len(sites):
        return None
    policies = []
    for one in sites:  # including those that have answered nothing yet
        if one.policy is None or not one.admitted:
            return None
        if (one.policy.adjacency, one.policy.level) != (adjacency, unit):
            return None
        policies.append(one.policy)
    return sum_rounded_up(one.epsilon_total for one in policies), sum_rounded_up(
        one.delta for one in policies
    )


def _overlaps(opened: Sequence[LedgerSnapshot], merged: Merged) -> list[str]:
    """Return notes on charges that are in two ledgers, and on charges that are counted as seen."""
    found = []
    for (number, other), count in sorted(merged.same.items()):
        first, second = opened[number].path, opened[other].path
        found.append(f"{count} charges of {first} are also in {second}, and are counted once")
    for (number, other), count in sorted(merged.doubtful.items()):
        first, second = opened[number].path, opened[other].path
        found.append(
            f"{count} charges of {first} have the run, client and round of charges of {second}, "
            "and neither ledger has all rows of the other, so both are counted. Leave one out if "
            "it is the server's account of what the other answered, or a copy of a ledger of an "
            "earlier version that was not charged after it was copied"
        )
    for how, why in _WHY.items():
        count = merged.number(how)
        found += [f"{count} charges {why}"] if count else []
    return found
