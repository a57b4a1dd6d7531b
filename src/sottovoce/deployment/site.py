"""One site: its file, its ledger, and the only way by which anything leaves it.

site.toml       name, [policy], [link], [data] if its records are its own, and [columns] if it
                answers questions about its people
ledger.sqlite   beside it: everything that was ever charged, over all runs
ledger.seal     which ledger that is, and how many charges it must hold
witness.json    the newest receipt of the site's federation for it, if there is one
audit.jsonl     beside it: what was charged, answered and refused, line by line
"""

import contextlib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import Field, ValidationError

from sottovoce.core import parameter_rules, printable_text
from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import Vector
from sottovoce.core.errors import AdjacencyMismatchError, PolicyError, SottovoceError
from sottovoce.core.randomness import Randomness
from sottovoce.core.table_files import CsvColumns
from sottovoce.deployment import policy as policies
from sottovoce.deployment.audit_log import LOG_NAME, AuditLog, OrderName
from sottovoce.deployment.policy import Policy, Terms
from sottovoce.deployment.witness import check_kept
from sottovoce.ledger import seal as seals
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.ledger.reader import LedgerReader
from sottovoce.ledger.records import FIRST_EVENT, Budget, Due, Standing
from sottovoce.mechanisms import registry
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.privacy.filters import History
from sottovoce.protocol.charging import amount_due
from sottovoce.protocol.client import Refused, Request, privatise
from sottovoce.protocol.plan import ClientPlan, RoundPlan
from sottovoce.runs.sections import Section, problem_in

_LOG = printable_text.logger()
LEDGER_LOST = 4  # the exit status of a worker whose site must stop


class Rules(Protocol):
    """What a site allows: a `Policy`, but for simulated sites."""

    def check_terms(self, terms: Terms) -> None: ...

    def set_aside(self, event: PrivacyEvent, planned: int) -> Budget | None: ...

    def check_spending(
        self,
        history: History,
        dues: Sequence[Due],
        first: Budget | None = None,
        *,
        this_round: History = (),
    ) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One client's part of a round as the server announces it.

    `cohort` is how many clients are asked in the round, `rounds` in how many rounds of the run this
    one will be asked at most. A server that says another number gains nothing: see `Site.permit`.
    `records` is how many the site has, where that is known: it is for the site's own warnings.
    """

    plan: RoundPlan
    part: ClientPlan
    cohort: int
    uplinks: int
    rounds: int = 1
    records: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRecords:
    """Where a site's records are, and how they are read: the site says so, and not who asks.

    Bounds or classes of a server's choice would be questions: that reading fails, or does not,
    answers them, and nobody is charged. `csv` is for tables, as in a spec; `classes` is how many
    classes there are, whichever of them the site has (None: numbers are predicted, or `csv` says).
    """

    dataset: str
    csv: Mapping[str, Any] = field(default_factory=dict)
    classes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnColumn:
    """What a question may be about: a column of the site's own table, or two that are a place."""

    csv: Path
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """How a site and its federation know each other: the site's own key, the operator's ca.crt."""

    private_key: Path
    authority: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Who answers: under this name, within this policy, on the account of this ledger.

    `records` are the site's own; None where the spec's own data are shared out.
    `columns` are what questions about its people may be about, by the names that they use.
    `factories` are the functions that a spec may name to make a model ("package.module:function").
    An order that takes more than `longest_seconds` is given up.
    `keys` are those of its federation, if it has one that works with keys.
    `log` is the site's audit log; simulated sites have none.
    `app` is a Flower ClientApp ("package.module:app") that the site has installed, for runs whose
    server is not ours: it trains, and what it trains leaves through `private_mod`.
    `seal` says which ledger it is, and how far it has come; None for simulated sites, whose ledger
    is made when it is first charged.
    """

    name: str
    policy: Rules
    ledger: Path
    records: OwnRecords | None = None
    columns: Mapping[str, OwnColumn] = field(default_factory=dict)
    factories: tuple[str, ...] = ()
    app: str | None = None
    longest_seconds: float = 3600.0
    keys: Keys | None = None
    seal: Path | None = None
    log: Path | None = None

    def open_ledger(self) -> Ledger:
        """Open the site's account; LedgerLostError where it is not the one that was charged."""
        if self.seal is None:
            return Ledger(self.ledger, create=True)
        ledger = seals.open_sealed(self.ledger, self.seal)
        try:
            check_kept(ledger, self.ledger.parent)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def settle(self, charged: Standing) -> None:
        """Make what was `charged` last, before a message leaves; an error, and nothing leaves.

        The file is opened anew: it may have been removed or replaced while somebody trained.
        Afterwards it is whole without its log, and its seal is up to date.
        """
        if self.seal is None:
            return
        with self.open_ledger() as ledger:
            seals.check(ledger, seals.Seal(standing=charged), self.ledger)
            seals.settle(ledger, self.seal)

    @property
    def audit_log(self) -> AuditLog | None:
        """The site's audit log under its policy; None where it keeps none."""
        if self.log is None or not isinstance(self.policy, Policy):
            return None
        return AuditLog(path=self.log, policy=self.policy)

    def note_refusal(self, reason: str, order: OrderName) -> bool:
        """Write a refusal to the audit log; False if it is one of too many to be listed."""
        log = self.audit_log
        return log is None or log.refused(reason, order)

    def note_start(self) -> None:
        """Write to the audit log that answers begin; OutputError where it cannot be written."""
        if self.audit_log is not None:
            self.audit_log.started(self.ledger, records=self.count_own_records())

    def note_stop(self) -> None:
        """Write to the audit log that answers end."""
        if self.audit_log is not None:
            self.audit_log.stopped()

    def count_own_records(self) -> int | None:
        """About how many records the smallest of the site's own tables has; None without any."""
        tables = {column.csv for column in self.columns.values()}
        if self.records is not None and self.records.dataset.startswith("csv:"):
            tables.add(Path(self.records.dataset.removeprefix("csv:")))
        counts = []
        for table in tables:
            with contextlib.suppress(SottovoceError, OSError):  # whoever reads it will say so
                counts.append(CsvColumns(path=table, columns=("",)).count_lines())
        return min(counts, default=None)

    def check_terms(self, client: str, terms: Terms) -> None:
        """Refuse what the policy does not allow; whoever reads the site's data asks this first."""
        if client != self.name:
            # Another name would have another account.
            raise PolicyError(f"this site is '{self.name}', not '{client}'")
        self.policy.check_terms(terms)

    def answer(
        self,
        asked: Asked,
        randomness: Randomness,
        train: Callable[[], Sequence[Vector]],
        *,
        keep_from: int,
    ) -> list[bytes]:
        """The sealed message of every uplink, or an error and nothing.

        Checked before `train` runs, checked again where it is charged, and charged before a single
        code is drawn. Asked once more, it sends the bytes it sent before, as long as it keeps
        them: messages of rounds before `keep_from` are dropped.
        """
        terms = Terms.of(asked.plan, asked.part, cohort=asked.cohort, grade=randomness.grade)
        self.check_terms(asked.part.client, terms)
        planned = asked.rounds * asked.uplinks
        charged: list[Due] = []

        def permit(dues: Sequence[Due]) -> None:
            self.permit(ledger, dues, planned=planned, charging=True)
            charged.extend(dues)

        with self.open_ledger() as ledger:
            self.permit(ledger, _dues(asked, ledger, randomness), planned=planned)
            requests = [
                Request(part=asked.part, uplink=uplink, values=_finite(values))
                for uplink, values in enumerate(train())
            ]
            if len(requests) != asked.uplinks:
                raise PolicyError(f"{asked.uplinks} vectors are asked for, not {len(requests)}")
            outcomes = privatise(asked.plan, requests, ledger, randomness, permit=permit)
            ledger.discard_messages(asked.plan.run, before_round=keep_from)
            messages = []
            for outcome in outcomes:
                if isinstance(outcome, Refused):
                    raise outcome.error
                messages.append(outcome.message)
            if self.audit_log is not None:
                self.audit_log.answered(
                    ledger, _order(asked), charged=bool(charged), records=asked.records
                )
            standing = ledger.standing()
        self.settle(standing)
        return messages

    def rounds_charged(self, run: str) -> int | None:
        """In how many rounds of a run this site was charged; None if its ledger cannot say.

        It is told to the server beside an answer. No answer that is paid for fails because of it.
        """
        if not self.ledger.is_file():
            return None
        try:
            with self.open_ledger() as ledger:
                return ledger.rounds_charged(run).get(self.name, 0)
        except Exception as error:
            _LOG.warning("the server is not told what was charged: %s", error)
            return None

    def permit(
        self, ledger: Ledger, dues: Sequence[Due], *, planned: int, charging: bool = False
    ) -> None:
        """Refuse what costs more than a round may, or than is left of the site's account.

        With the first charge of all the ledger keeps what its order's plan (`planned` charges of
        one event) sets aside of delta: before anything is answered, and never changed.
        """
        ledger.check_unaltered()  # before anything is trained or read on the strength of it
        if self.audit_log is not None:
            self.audit_log.check(ledger, dues)
        elif isinstance(self.policy, Policy) and self.policy.rounds_per_day is not None:
            raise PolicyError("'rounds_per_day' needs an audit log, and this site keeps none")
        # Under a new name it is the same site: the whole ledger is its account.
        history = ledger.everything(dues[0].release.unit) if dues else []
        first = ledger.budget(FIRST_EVENT)
        begins = bool(dues) and not history and first is None
        if begins:
            first = self.policy.set_aside(dues[0].event, planned)
        rounds = {(due.release.run, due.release.round) for due in dues}
        this_round = [one for run, number in rounds for one in ledger.events_of(run, number)]
        self.policy.check_spending(history, dues, first, this_round=this_round)
        if begins and charging and first is not None:
            ledger.set_budget(FIRST_EVENT, first)


def _finite(values: Vector) -> Vector:
    """Zero in place of what diverged: an error would tell about the data, and cost nothing."""
    if np.isfinite(values).all():
        return values
    _LOG.warning("an update diverged; zero is sent in its place")
    return np.zeros_like(values)


def _dues(asked: Asked, ledger: Ledger, randomness: Randomness) -> list[Due]:
    """What the round would be charged with, if it were charged now."""
    releases = [asked.plan.release(asked.part.client, uplink) for uplink in range(asked.uplinks)]
    earlier = ledger.latest_of(releases)
    event = asked.plan.event(asked.part)
    dues = [amount_due(event, one, earlier.get(one), randomness) for one in releases]
    return [due for due in dues if due is not None]


def _order(asked: Asked) -> OrderName:
    kind = registry.kind_of(asked.part.mechanism)
    return OrderName(run=asked.plan.run, round=asked.plan.round, mechanism=kind)


SITE_FILE = "site.toml"
_Text = Annotated[str, Field(min_length=1)]


class LinkTable(Section):
    """How a node reaches the link; what of it is needed is the node's affair."""

    address: str
    root_certificate: _Text | None = None
    private_key: _Text | None = None
    insecure: bool = False


class DataTable(Section):
    """[data]: the site's own records."""

    dataset: _Text
    csv: dict[str, Any] = Field(default_factory=dict)
    classes: Annotated[int, Field(ge=2, le=2**31)] | None = None


class ColumnTable(Section):
    """[columns.age] csv = "people.csv", column = "age" (a place: latitude and longitude)."""

    csv: _Text
    column: _Text | None = None
    latitude: _Text | None = None
    longitude: _Text | None = None


class SiteTable(Section):
    """What site.toml holds."""

    name: _Text
    policy: dict[str, Any]
    link: LinkTable | None = None
    data: DataTable | None = None
    columns: dict[str, ColumnTable] = Field(default_factory=dict)
    factories: list[str] = Field(default_factory=list)
    app: str | None = None
    longest_seconds: float = 3600.0


def read_site(path: Path) -> Site:
    """The site that a file describes; without a policy there is none."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PolicyError(
            f"cannot read the site's file {path}: {error.strerror or error}; without a policy "
            "nothing is answered"
        ) from None
    except (ValueError, RecursionError) as error:  # neither UTF-8 nor TOML, or nested too deep
        raise PolicyError(f"{path} is not valid TOML: {error}") from None
    try:
        return _site(SiteTable.model_validate(table), path.parent)
    except ValidationError as error:
        raise PolicyError(f"{path}: {problem_in(error, SiteTable)}") from None
    except SottovoceError as error:
        raise PolicyError(f"{path}: {error}") from None


def warnings_of(path: Path) -> list[str]:
    """What the owner of a site's file should know before it answers more, by its log and ledger."""
    site = read_site(path)
    if site.audit_log is None:
        return []
    return site.audit_log.warnings(site.ledger, records=site.count_own_records())


def account_problem(site: Site, ledger: LedgerReader) -> str | None:
    """Why nothing could be charged under the site's policy: level and adjacency of the ledger.

    Charges of two kinds do not add up, so that every order would be refused.
    """
    policy = site.policy
    assert isinstance(policy, Policy)  # what a file holds
    try:
        found = {str(event.adjacency) for event, _ in ledger.everything(policy.level)}
        key, ours = "adjacency", str(policy.adjacency)
    except AdjacencyMismatchError:
        found = {str(unit) for unit in Unit if unit is not policy.level}
        key, ours = "level", str(policy.level)
    others = sorted(found - {ours})
    if not others:
        return None
    return (
        f'[policy] {key} is "{ours}", and {site.ledger} has charges under "{others[0]}", which do '
        f'not add up with it: every order would be refused. Set {key} = "{others[0]}" again, or '
        "make a new folder with 'sottovoce deploy join': an account of its own, and what both "
        "spend adds up"
    )


def _site(table: SiteTable, folder: Path) -> Site:
    link, longest = table.link, table.longest_seconds
    keys = None
    if link and link.private_key is not None and link.root_certificate is not None:
        keys = Keys(private_key=folder / link.private_key, authority=folder / link.root_certificate)
    return Site(
        name=table.name,
        policy=policies.from_table(table.policy),
        ledger=folder / LEDGER_NAME,
        seal=folder / seals.SEAL_NAME,
        log=folder / LOG_NAME,
        records=_records(table.data, folder) if table.data else None,
        columns={name: _column(name, one, folder) for name, one in table.columns.items()},
        factories=tuple(table.factories),
        app=table.app,
        longest_seconds=parameter_rules.positive("longest_seconds", longest),
        keys=keys,
    )


def _records(data: DataTable, folder: Path) -> OwnRecords:
    dataset = data.dataset
    if dataset.startswith("hf:"):
        # Its classes are numbered as they are found: a site that lacks one would train on others.
        raise PolicyError(
            "[data] dataset: 'hf:' numbers classes as it finds them; use npz: or csv:"
        )
    kind, colon, text = dataset.partition(":")
    if colon and (folder / text).is_file():  # beside site.toml, as [columns] are
        dataset = f"{kind}:{(folder / text).absolute()}"
    return OwnRecords(dataset=dataset, csv=data.csv, classes=data.classes)


def _column(name: str, given: ColumnTable, folder: Path) -> OwnColumn:
    place = (given.latitude, given.longitude)
    columns = (given.column,) if place == (None, None) else place
    if None in columns or (given.column is not None and columns == place):
        raise PolicyError(
            f"[columns.{name}] needs 'column', or 'latitude' and 'longitude', beside 'csv'"
        )
    return OwnColumn(csv=folder / given.csv, columns=tuple(filter(None, columns)))
