"""`ledger_total`: what one person or site has spent over several ledgers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce import parameter_rules
from sottovoce.adjacency import Adjacency, Unit
from sottovoce.analytics.charging import pure_spent
from sottovoce.api.shown import text_fields
from sottovoce.api.spending import spent_on
from sottovoce.deployment.policy import Policy
from sottovoce.deployment.site_file import SITE_FILE, read_site
from sottovoce.errors import AdjacencyMismatchError, LedgerError, ParameterError, UnknownNameError
from sottovoce.files import finite
from sottovoce.ledger import seal as seals
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.ledger.merging import Merged, Source, merge
from sottovoce.ledger.reader import Entry
from sottovoce.ledger.records import FIRST_EVENT
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.compositions import as_replace_one, local_event, multiset
from sottovoce.privacy.event_json import from_json
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.privacy.pure import pure_epsilon

History = list[tuple[PrivacyEvent, int]]

FIXED = (
    "what was asked was fixed beforehand: no run and no question was chosen in the light of an "
    "earlier answer"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerShare:
    """One ledger's part of a total.

    `epsilon` is that of all `charges` of the account in this ledger alone; `counted` of them are
    in the total, the others are another ledger's too.
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
    local_epsilon  where something is hidden, what holds if nothing of it is; None where nothing is.
    pure_epsilon   the sum of all pure epsilons: these answers change nobody's odds by more than
                   its exponential, however they were asked for. Infinite if a charge has none.
    limits         (epsilon, delta) that the sites' own limits add up to, where all ledgers are
                   sites': it holds whatever was asked in the light of earlier answers. Else None.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A ledger as it was at one moment. `site` is the name of the site whose account it is."""

    path: str
    file: tuple[int, int]
    clients: tuple[str, ...]
    rows: Mapping[str, Sequence[Entry]]
    storing: frozenset[str]
    site: str | None = None
    policy: Policy | None = None
    admitted: bool = False


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
    opened = [_opened(path, given.get(path, anywhere)) for path in paths]
    accounts = [_account(one, given.get(one.path), anywhere) for one in opened]
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
    opened = [_opened(str(path), ()) for path in ledgers]
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


def _opened(shown: str, names: tuple[str, ...]) -> _Opened:
    """Read the charges of some clients, or of all, while others may go on charging.

    A ledger that was altered, or is not the one that its site was charged in, is refused.
    """
    path = Path(shown)
    file = path / LEDGER_NAME if path.is_dir() else path
    folder = path if path.is_dir() else path.parent
    is_site = file.name == LEDGER_NAME and (folder / SITE_FILE).is_file()
    site = read_site(folder / SITE_FILE) if is_site else None
    policy = site.policy if site else None
    sealed = seals.read(folder / seals.SEAL_NAME) if is_site else None
    with Ledger(file) as ledger, ledger.snapshot():
        ledger.check_unaltered()
        if is_site:
            seals.check(ledger, sealed, file)
        clients = tuple(ledger.clients())
        status = file.stat()
        identity, storing = (status.st_dev, status.st_ino), ledger.runs_with_messages()
        rows: dict[str, list[Entry]] = {}
        for entry in ledger.entries(clients if site or not names else names):
            rows.setdefault(entry.client, []).append(entry)
        admitted = False
        if isinstance(policy, Policy):
            units = {entry.unit for entries in rows.values() for entry in entries}
            if units <= {policy.level}:
                history = ledger.everything(policy.level)
                spent = policy.filter(ledger.budget(FIRST_EVENT)).spent(history)
                admitted = spent <= policy.epsilon_total
    return _Opened(
        path=shown,
        file=identity,
        clients=clients,
        rows=rows,
        storing=storing,
        site=site.name if site else None,
        policy=policy if isinstance(policy, Policy) else None,
        admitted=admitted,
    )


def _account(
    one: _Opened, names: tuple[str, ...] | None, anywhere: tuple[str, ...]
) -> tuple[str, ...]:
    """Whose charges count in a ledger."""
    if one.site is not None:
        if names:
            raise LedgerError(
                f"{one.path} is the site '{one.site}', and its whole ledger is one account, "
                "whatever name it went by; leave its name away"
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
    opened: Sequence[_Opened],
    accounts: Sequence[tuple[str, ...]],
    delta: float | None,
    adjacency: Adjacency | None,
) -> LedgerTotal:
    if delta is not None:
        parameter_rules.delta(delta)
    sources = [_source(one, chosen) for one, chosen in zip(opened, accounts, strict=True)]
    merged = merge(sources)
    wanted, unit, notes = _one_kind(merged, adjacency, opened, sources)
    history = _history(((event, count) for event, _, count in merged.events()), wanted)
    pure = pure_spent(history)
    if delta is None and not math.isfinite(pure):
        raise ParameterError(
            "not all charges are pure, so epsilon is told at a delta; give --delta"
        )
    spent = spent_on(history, delta, pure) if history else None
    shares = [
        LedgerShare(
            path=one.path,
            account=one.site if one.site is not None else ", ".join(chosen) or "nobody",
            charges=len(source.entries),
            counted=counted,
            epsilon=_own_epsilon(source, wanted, delta),
        )
        for one, chosen, source, counted in zip(
            opened, accounts, sources, merged.counted, strict=True
        )
    ]
    return LedgerTotal(
        epsilon=spent.epsilon if spent else 0.0,
        delta=spent.delta if spent else delta or 0.0,
        adjacency=wanted,
        unit=unit,
        accountant=spent.accountant if spent else None,
        bounds=dict(spent.bounds) if spent else {},
        assumptions=spent.assumptions if spent else (),
        local_epsilon=_local_epsilon(history, delta),
        pure_epsilon=pure,
        limits=_limits(opened, sources, merged, wanted, unit),
        ledgers=tuple(shares),
        notes=(*_overlaps(opened, merged), *notes),
    )


def _source(one: _Opened, chosen: Iterable[str]) -> Source:
    entries = [entry for name in chosen for entry in one.rows.get(name, ())]
    return Source(file=one.file, entries=entries, storing=one.storing)


def _one_kind(
    merged: Merged,
    asked: Adjacency | None,
    opened: Sequence[_Opened],
    sources: Sequence[Source],
) -> tuple[Adjacency | None, Unit | None, list[str]]:
    """The one adjacency and unit of the total, and what had to be converted to them."""
    adjacencies = {event.adjacency for event, _, _ in merged.events()}
    units = {unit for _, unit, _ in merged.events()}
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


def _where(opened: Sequence[_Opened], sources: Sequence[Source]) -> str:
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


def _own_epsilon(source: Source, adjacency: Adjacency | None, delta: float | None) -> float:
    texts: dict[str, int] = {}
    for entry in source.entries:
        texts[entry.event] = texts.get(entry.event, 0) + 1
    history = _history(((from_json(text), count) for text, count in texts.items()), adjacency)
    return spent_on(history, delta, pure_spent(history)).epsilon if history else 0.0


def _local_epsilon(history: History, delta: float | None) -> float | None:
    """What holds if nothing is hidden; None where nothing is."""
    if not history:
        return None
    whole = multiset(history)
    local = local_event(whole)
    if local == whole:
        return None
    return pure_epsilon(local) if delta is None else privacy_spent(local, delta).epsilon


def _limits(
    opened: Sequence[_Opened],
    sources: Sequence[Source],
    merged: Merged,
    adjacency: Adjacency | None,
    unit: Unit | None,
) -> tuple[float, float] | None:
    """What the limits of sites add up to; None unless every charge is within a site's limits.

    Sites whose ledgers part share a beginning, and are no two interactions.
    """
    epsilon = delta = 0.0
    for one, source, counted in zip(opened, sources, merged.counted, strict=True):
        if not counted:
            continue
        if one.policy is None or not one.admitted or counted < len(source.entries):
            return None
        if (one.policy.adjacency, one.policy.level) != (adjacency, unit):
            return None
        epsilon = math.nextafter(epsilon + one.policy.epsilon_total, math.inf)
        delta = math.nextafter(delta + one.policy.delta, math.inf)
    return (epsilon, delta) if merged.history else None


def _overlaps(opened: Sequence[_Opened], merged: Merged) -> list[str]:
    """What was counted once although it is in two ledgers, and what was not."""
    found = []
    for (number, other), count in sorted(merged.same.items()):
        first, second = opened[number].path, opened[other].path
        found.append(f"{count} charges of {first} are those of {second}, and are counted once")
    for (number, other), count in sorted(merged.doubtful.items()):
        first, second = opened[number].path, opened[other].path
        found.append(
            f"{count} charges of {first} have the run, client and round of charges of {second}, "
            "and nothing shows that they are the same messages: both are counted. If one is a "
            "copy of the other, or the server's account of what the other answered, leave it out"
        )
    if merged.exposed:
        found.append(
            f"{merged.exposed} charges are counted as if their messages were seen: no channel "
            "hides two messages of one round"
        )
    return found
