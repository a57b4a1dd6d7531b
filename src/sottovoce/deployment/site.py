"""One site: its file, its ledger, and the only function by which anything leaves it.

The folder of a site has these files:

site.toml       name, [policy], [link], [data] if the site has its own records, and [columns] if it
                answers questions about its people
ledger.sqlite   everything that was ever charged, over all runs
ledger.seal     identity and position that this ledger must have
witness.json    the newest receipt of the site's federation for the ledger, if there is one
audit.jsonl     what was charged, answered and refused, one line each
trust.key       the site's signing key for secure sums
roster.toml     names and keys of all sites; used only if [trust] of site.toml pins its digest
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
from sottovoce.deployment.witness import check_receipt
from sottovoce.ledger import seal as seals
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.ledger.reader import LedgerReader
from sottovoce.ledger.records import FIRST_EVENT_ACCOUNT, Budget, LedgerPosition, PendingCharge
from sottovoce.mechanisms import registry
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.privacy.filters import History
from sottovoce.protocol.charging import required_charge
from sottovoce.protocol.client import PrivatizationRequest, Refused, privatize
from sottovoce.protocol.plan import ClientPlan, RoundPlan
from sottovoce.runs.sections import Section, problem_in

_LOG = printable_text.logger()
LEDGER_LOST = 4  # exit status of a worker whose site must stop


class SiteRules(Protocol):
    """What a site allows: a `Policy`, or other rules for simulated sites."""

    def check_terms(self, terms: Terms) -> None:
        """Raise PolicyError if a request is not allowed, whatever it costs."""
        ...

    def reserve_for_first_event(self, event: PrivacyEvent, planned: int) -> Budget | None:
        """Return the part of delta that a ledger reserves permanently for its first event.

        None if these rules reserve nothing. `planned` is the number of such events in the run.
        """
        ...

    def check_spending(
        self,
        history: History,
        pending: Sequence[PendingCharge],
        first: Budget | None = None,
        *,
        this_round: History = (),
        retries: bool = False,
    ) -> None:
        """Raise PolicyError if the charges cost more than is allowed.

        `history` is everything in the site's ledger, and `this_round` what it has charged for the
        same round; `first` is what `reserve_for_first_event` returned. `retries` says whether a
        later attempt at a round is allowed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRequest:
    """One client's part of a round as the server announces it.

    Attributes:
        plan: The plan of the round.
        part: The client's part of the plan.
        cohort: Number of clients that are asked in the round, by the server's own statement.
        uplinks: Number of vectors that the client sends.
        rounds: The most rounds of the run in which this client will be asked. A server gains
            nothing by a wrong number; see `Site.check_charges`.
        records: Number of the site's records if it is known, for the site's own warnings.
    """

    plan: RoundPlan
    part: ClientPlan
    cohort: int
    uplinks: int
    rounds: int = 1
    records: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRecords:
    """Where a site's records are and how they are read, which only the site decides.

    If a server could choose bounds or classes, whether reading fails would answer a question about
    the data without a charge.

    Attributes:
        dataset: The data set, as in a spec.
        csv: How a table is read, as in a spec.
        classes: Number of classes, including those of which the site has no record. None if numbers
            are predicted, or if `csv` states the classes.
    """

    dataset: str
    csv: Mapping[str, Any] = field(default_factory=dict)
    classes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnColumn:
    """What a question may be about: one column of the site's own table, or two for a place.

    Attributes:
        csv: The table.
        columns: The column, or the columns of latitude and longitude.
    """

    csv: Path
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The files of the keys by which a site and its federation authenticate each other.

    Attributes:
        private_key: File of the site's private key.
        authority: File of the operator's certificate, ca.crt.
    """

    private_key: Path
    authority: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """The files by which a site takes part in secure sums without trusting the server.

    Attributes:
        key: File of the site's own signing key, trust.key.
        roster: File with the names and keys of all sites.
        digest: Digest that the roster must have, in hexadecimal, from the site's own file.
    """

    key: Path
    roster: Path
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A site that answers under one name, within one policy, on one ledger.

    Attributes:
        name: Name of the site.
        policy: What the site allows.
        ledger: The site's ledger, over all runs.
        records: The site's own records; None if the spec's data are divided among the sites.
        columns: What questions may be about, by the names that questions use.
        factories: Functions that a spec may name to build a model ("package.module:function").
        app: A Flower ClientApp ("package.module:app") that the site has installed, for runs with
            another server. It trains, and its update leaves through `private_mod`.
        longest_seconds: An order that takes longer is aborted.
        keys: Keys of its federation, if the federation uses keys.
        trust: Key and pinned roster for secure sums, if the site takes part in any.
        seal: File with the identity and position of the ledger. None for simulated sites, whose
            ledger is created at the first charge.
        log: File of the site's audit log; None for simulated sites.
    """

    name: str
    policy: SiteRules
    ledger: Path
    records: OwnRecords | None = None
    columns: Mapping[str, OwnColumn] = field(default_factory=dict)
    factories: tuple[str, ...] = ()
    app: str | None = None
    longest_seconds: float = 3600.0
    keys: Keys | None = None
    trust: Trust | None = None
    seal: Path | None = None
    log: Path | None = None

    def open_ledger(self) -> Ledger:
        """Open the site's ledger for charging; raise if it is missing.

        The ledger of a simulated site (`seal` is None) is created if it is missing, and not checked
        against a seal or a receipt.

        Returns:
            The ledger, which the caller closes.

        Raises:
            LedgerLostError: The ledger is missing or does not match its seal.
            RolledBackError: The ledger is older than the newest receipt for it.
        """
        if self.seal is None:
            return Ledger(self.ledger, create=True)
        ledger = seals.open_sealed(self.ledger, self.seal)
        try:
            check_receipt(ledger, self.ledger.parent)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def settle(self, charged: LedgerPosition) -> None:
        """Make the last charges permanent before a message leaves; on an error nothing may leave.

        The file is opened again, because it may have been removed or replaced during training.
        Afterwards the file is complete without its log, and its seal is up to date. A site without
        a seal, which is simulated, does nothing here.

        Args:
            charged: The position of the ledger after the charges.

        Raises:
            LedgerLostError: The file no longer has these charges.
        """
        if self.seal is None:
            return
        with self.open_ledger() as ledger:
            seals.check(ledger, seals.Seal(position=charged), self.ledger)
            seals.settle(ledger, self.seal)

    @property
    def audit_log(self) -> AuditLog | None:
        """The site's audit log under its policy; None if it keeps none."""
        if self.log is None or not isinstance(self.policy, Policy):
            return None
        return AuditLog(path=self.log, policy=self.policy)

    def note_refusal(self, reason: str, order: OrderName) -> bool:
        """Write a refusal to the audit log.

        Args:
            reason: Why the site refuses; public.
            order: The order that it refuses.

        Returns:
            False if there were too many refusals to list this one, else True (also without an
            audit log).
        """
        log = self.audit_log
        return log is None or log.refused(reason, order)

    def note_start(self) -> None:
        """Write to the audit log, if there is one, that the site starts to answer.

        Raises:
            OutputError: The log cannot be written.
        """
        if self.audit_log is not None:
            self.audit_log.started(self.ledger, records=self.count_own_records())

    def note_stop(self) -> None:
        """Write to the audit log, if there is one, that the site stops answering.

        Raises:
            OutputError: The log cannot be written.
        """
        if self.audit_log is not None:
            self.audit_log.stopped()

    def count_own_records(self) -> int | None:
        """Return about how many records the smallest of the site's own CSV tables has.

        Returns:
            The number of lines; None without a readable table.
        """
        tables = {column.csv for column in self.columns.values()}
        if self.records is not None and self.records.dataset.startswith("csv:"):
            tables.add(Path(self.records.dataset.removeprefix("csv:")))
        counts = []
        for table in tables:
            with contextlib.suppress(SottovoceError, OSError):  # reported when the table is read
                counts.append(CsvColumns(path=table, columns=("",)).count_lines())
        return min(counts, default=None)

    def check_terms(self, client: str, terms: Terms) -> None:
        """Raise if the policy does not allow a request; call it before the site's data are read.

        Args:
            client: The name under which the site is asked.
            terms: The terms of the request.

        Raises:
            PolicyError: The name is another site's, or the policy forbids the terms.
        """
        if client != self.name:
            # Under another name the site would have another account.
            raise PolicyError(
                f"this site is '{self.name}', but the request is for '{client}'; use the site's "
                "own name"
            )
        self.policy.check_terms(terms)

    def answer(
        self,
        asked: RoundRequest,
        randomness: Randomness,
        train: Callable[[], Sequence[Vector]],
        *,
        keep_from: int,
    ) -> list[bytes]:
        """Return the sealed message of every uplink, or raise and release nothing.

        The limits are checked before `train` runs and again in the transaction that charges; the
        charge is durable before any code is drawn. If the same release is asked for again, the
        stored bytes are sent, as long as they are kept.

        Args:
            asked: The client's part of the round.
            randomness: Source of the keys.
            train: Computes the vectors; called only if the policy allows the round.
            keep_from: Messages of rounds before this one are discarded.

        Returns:
            The message of each uplink.

        Raises:
            PolicyError: The policy does not allow the round, or `train` returned another number of
                vectors.
            BudgetExhaustedError: The ledger has a budget that does not cover the round.
            AdjacencyMismatchError: The ledger has charges under another level or adjacency.
            LedgerError: The ledger was altered, lost or rolled back.
            OutputError: The audit log cannot be written.
        """
        if asked.plan.channel.is_cryptographic:
            # It would be charged as if a protocol hid it.
            raise PolicyError(
                f"the run uses a {asked.plan.channel.describe()}, so this site sends no message "
                "outside of that protocol; open an attempt at the round"
            )
        terms = Terms.of(asked.plan, asked.part, cohort=asked.cohort, grade=randomness.grade)
        self.check_terms(asked.part.client, terms)
        planned = asked.rounds * asked.uplinks
        charged: list[PendingCharge] = []

        def permit(pending: Sequence[PendingCharge]) -> None:
            self.check_charges(ledger, pending, planned=planned, charging=True)
            charged.extend(pending)

        with self.open_ledger() as ledger:
            self.check_charges(ledger, _pending_charges(asked, ledger, randomness), planned=planned)
            requests = [
                PrivatizationRequest(part=asked.part, uplink=uplink, values=finite_or_zeros(values))
                for uplink, values in enumerate(train())
            ]
            check_uplinks(len(requests), asked.uplinks)
            outcomes = privatize(asked.plan, requests, ledger, randomness, permit=permit)
            ledger.discard_messages(asked.plan.run, before_round=keep_from)
            messages = []
            for outcome in outcomes:
                if isinstance(outcome, Refused):
                    raise outcome.error
                messages.append(outcome.message)
            if self.audit_log is not None:
                self.audit_log.answered(
                    ledger, order_name(asked), charged=bool(charged), records=asked.records
                )
            standing = ledger.position()
        self.settle(standing)
        return messages

    def rounds_charged(self, run: str) -> int | None:
        """Return in how many rounds of a run this site was charged, for the server's information.

        An error here is logged and does not raise, because the answer is already charged.

        Args:
            run: Name of the run.

        Returns:
            The number of rounds; None if the ledger cannot be read.
        """
        if not self.ledger.is_file():
            return None
        try:
            with self.open_ledger() as ledger:
                return ledger.rounds_charged(run).get(self.name, 0)
        except Exception as error:
            _LOG.warning("the number of charged rounds is not sent to the server: %s", error)
            return None

    def check_charges(
        self,
        ledger: Ledger,
        pending: Sequence[PendingCharge],
        *,
        planned: int,
        charging: bool = False,
        retries: bool = False,
    ) -> None:
        """Raise if charges exceed the limit of a round, or what is left of the site's account.

        With the first charge of a ledger, the part of delta that the order's plan reserves for its
        event is stored before anything is answered, and never changed. So a server that states a
        wrong `planned` only changes how delta is divided, not what `epsilon_total` bounds.

        Args:
            ledger: The site's ledger.
            pending: The charges to be made.
            planned: Number of charges of the event that the run plans, by the server's statement.
            charging: Whether this is the check inside the transaction that charges.
            retries: Whether these may be charges of a later attempt at a round, as of a secure sum.

        Raises:
            PolicyError: The policy does not allow the charges.
            AdjacencyMismatchError: The ledger has charges under another level or adjacency.
            LedgerError: The ledger was altered.
            OutputError: The audit log cannot be opened.
        """
        ledger.check_unaltered()  # before training or reading data relies on it
        if self.audit_log is not None:
            self.audit_log.check(ledger, pending)
        elif isinstance(self.policy, Policy) and self.policy.rounds_per_day is not None:
            raise PolicyError(
                "'rounds_per_day' needs an audit log, and this site keeps none; set the site's "
                "'log', or remove 'rounds_per_day'"
            )
        # The whole ledger is one account, since a site with a new name has the same records.
        history = ledger.history_of_all(pending[0].release.unit) if pending else []
        first = ledger.budget(FIRST_EVENT_ACCOUNT)
        begins = bool(pending) and not history and first is None
        if begins:
            first = self.policy.reserve_for_first_event(pending[0].event, planned)
        rounds = {(due.release.run, due.release.round) for due in pending}
        this_round = [one for run, number in rounds for one in ledger.events_of(run, number)]
        self.policy.check_spending(history, pending, first, this_round=this_round, retries=retries)
        if begins and charging and first is not None:
            ledger.set_budget(FIRST_EVENT_ACCOUNT, first)


def finite_or_zeros(values: Vector) -> Vector:
    """Return the values, or zeros if any is not finite.

    An error instead would reveal something about the data without a charge.
    """
    if np.isfinite(values).all():
        return values
    _LOG.warning("an update is not finite; zeros are privatized in its place")
    return np.zeros_like(values)


def check_uplinks(found: int, wanted: int) -> None:
    """Raise PolicyError unless training returned the announced number of vectors."""
    if found != wanted:
        raise PolicyError(f"training must return {wanted} vectors, got {found}")


def _pending_charges(
    asked: RoundRequest, ledger: Ledger, randomness: Randomness
) -> list[PendingCharge]:
    """Return the charges that the round would need now."""
    releases = [asked.plan.release(asked.part.client, uplink) for uplink in range(asked.uplinks)]
    earlier = ledger.latest_of(releases)
    event = asked.plan.event(asked.part)
    pending = [required_charge(event, one, earlier.get(one), randomness) for one in releases]
    return [due for due in pending if due is not None]


def order_name(asked: RoundRequest) -> OrderName:
    """Return the name of a round for the audit log."""
    kind = registry.kind_of(asked.part.mechanism)
    return OrderName(run=asked.plan.run, round=asked.plan.round, mechanism=kind)


SITE_FILE = "site.toml"
_Text = Annotated[str, Field(min_length=1)]


class LinkTable(Section):
    """The table [link]: how a node reaches the link."""

    address: str
    root_certificate: _Text | None = None
    private_key: _Text | None = None
    insecure: bool = False


class DataTable(Section):
    """The table [data]: the site's own records."""

    dataset: _Text
    csv: dict[str, Any] = Field(default_factory=dict)
    classes: Annotated[int, Field(ge=2, le=2**31)] | None = None


class ColumnTable(Section):
    """One table of [columns], such as [columns.age] csv = "people.csv", column = "age".

    A place has `latitude` and `longitude` instead of `column`.
    """

    csv: _Text
    column: _Text | None = None
    latitude: _Text | None = None
    longitude: _Text | None = None


class TrustTable(Section):
    """The table [trust]: which roster the site has pinned."""

    roster_digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class SiteTable(Section):
    """The content of site.toml."""

    name: _Text
    policy: dict[str, Any]
    link: LinkTable | None = None
    data: DataTable | None = None
    columns: dict[str, ColumnTable] = Field(default_factory=dict)
    factories: list[str] = Field(default_factory=list)
    app: str | None = None
    longest_seconds: float = 3600.0
    trust: TrustTable | None = None


def read_site(path: Path) -> Site:
    """Return the site that a file site.toml describes.

    Raises PolicyError if the file cannot be read, or anything in it is not valid.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PolicyError(
            f"cannot read the site's file {path}: {error.strerror or error}; without a policy "
            "nothing is answered, so restore the file or make one with 'sottovoce deploy join'"
        ) from None
    except (ValueError, RecursionError) as error:  # neither UTF-8 nor TOML, or nested too deep
        raise PolicyError(f"{path} is not valid TOML: {error}; correct the file") from None
    try:
        return _site(SiteTable.model_validate(table), path.parent)
    except ValidationError as error:
        raise PolicyError(f"{path}: {problem_in(error, SiteTable)}") from None
    except SottovoceError as error:
        raise PolicyError(f"{path}: {error}") from None


def warnings_of(path: Path) -> list[str]:
    """Return warnings for a site's owner, as sentences, by its policy, audit log and ledger.

    `path` is the file site.toml, which must be valid, or PolicyError is raised. Nothing is written
    to the audit log.
    """
    site = read_site(path)
    if site.audit_log is None:
        return []
    return site.audit_log.warnings(site.ledger, records=site.count_own_records())


def account_problem(site: Site, ledger: LedgerReader) -> str | None:
    """Return why nothing could be charged under the site's level and adjacency; None if it could.

    Charges under two levels or adjacencies do not add up, so every order would be refused. Limits
    of epsilon are not checked.
    """
    policy = site.policy
    assert isinstance(policy, Policy)  # a file contains no other rules
    try:
        found = {str(event.adjacency) for event, _ in ledger.history_of_all(policy.level)}
        key, ours = "adjacency", str(policy.adjacency)
    except AdjacencyMismatchError:
        found = {str(unit) for unit in Unit if unit is not policy.level}
        key, ours = "level", str(policy.level)
    others = sorted(found - {ours})
    if not others:
        return None
    return (
        f'[policy] {key} is "{ours}", but {site.ledger} has charges under "{others[0]}". These do '
        f'not add up, so every order would be refused. Set {key} = "{others[0]}" again, or make a '
        "new folder with 'sottovoce deploy join'. That folder has a separate account, and the "
        "privacy loss of a person is the sum of both"
    )


def _site(table: SiteTable, folder: Path) -> Site:
    link, longest = table.link, table.longest_seconds
    keys = None
    if link and link.private_key is not None and link.root_certificate is not None:
        keys = Keys(private_key=folder / link.private_key, authority=folder / link.root_certificate)
    trust = None
    if table.trust is not None:
        trust = Trust(
            key=folder / "trust.key",
            roster=folder / "roster.toml",
            digest=table.trust.roster_digest,
        )
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
        trust=trust,
    )


def _records(data: DataTable, folder: Path) -> OwnRecords:
    dataset = data.dataset
    if dataset.startswith("hf:"):
        # Its classes are numbered in the order of their occurrence, so a site that lacks a class
        # would number the others differently.
        raise PolicyError(
            "[data] dataset: 'hf:' numbers classes in the order of their occurrence, which differs "
            "between sites; use npz: or csv:"
        )
    kind, colon, text = dataset.partition(":")
    if colon and (folder / text).is_file():  # relative to site.toml, as in [columns]
        dataset = f"{kind}:{(folder / text).absolute()}"
    return OwnRecords(dataset=dataset, csv=data.csv, classes=data.classes)


def _column(name: str, given: ColumnTable, folder: Path) -> OwnColumn:
    place = (given.latitude, given.longitude)
    columns = (given.column,) if place == (None, None) else place
    if None in columns or (given.column is not None and columns == place):
        raise PolicyError(
            f"[columns.{name}] must have 'csv' and either 'column' or both 'latitude' and "
            "'longitude'"
        )
    return OwnColumn(csv=folder / given.csv, columns=tuple(filter(None, columns)))
