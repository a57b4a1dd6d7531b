"""A site's folder: its key, its policy, how it reaches the link, and moving its ledger.

site.toml        name, [link], [policy], [data], [columns]; only the site itself writes it
node.key         the site's private key, which never leaves it
node.pub         the public key, for the operator
trust.key        the site's signing key for secure sums; trust.pub is for the operator's roster
roster.toml      the roster that the site has pinned, if it takes part in secure sums
ca.crt           the operator's authority
ledger.sqlite    what the site has spent
ledger.seal      identity and position that this ledger must have
witness.json     the newest receipt of the federation for that ledger, once there is one
audit.jsonl      what the site charged, answered and refused, one line each
relay/           the site's enrollment with a relay's operators, if there is one
node/            log and Flower's own folder of the running node

A site's account can be moved to another folder, for example to one that `deploy join` made for a
new key. At every moment at most one of the two folders answers, and at least one has the complete
ledger. An interrupted move is finished by the same call. The new folder answers only once the seal
of the old one says that the account has left. Until then nothing was charged elsewhere, and the
move can start again, to the same folder or another.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from sottovoce.core import files
from sottovoce.core.errors import ConfigError, LedgerError
from sottovoce.deployment.machines import certificates, trust_files
from sottovoce.deployment.machines.address import Address
from sottovoce.deployment.machines.federation import FILE_NAME as FEDERATION_FILE_NAME
from sottovoce.deployment.machines.federation import (
    Federation,
    check_name,
    make_folder,
    read_section,
    read_table,
)
from sottovoce.deployment.machines.processes import hold_supervisor_lock
from sottovoce.deployment.policy import NEEDED, Policy
from sottovoce.deployment.site import LinkTable, SiteTable, account_problem, read_site
from sottovoce.deployment.witness import check_receipt
from sottovoce.ledger import copies
from sottovoce.ledger import seal as seals
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.ledger.records import LedgerPosition
from sottovoce.ledger.seal import SEAL_NAME, Seal

FILE_NAME = "site.toml"


class _SiteFolderTable(SiteTable):
    """The tables of site.toml, of which only [link] is checked here; 'deploy check' checks all."""

    link: LinkTable
    data: dict[str, Any] | None = None  # type: ignore[assignment]
    columns: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFolder:
    """The name of a site and how it reaches the link; the policy is read elsewhere.

    Attributes:
        folder: The site's folder.
        name: Name of the site.
        address: Address of the link.
        root_certificate: The operator's certificate; None in an insecure rehearsal.
        private_key: The site's private key; None in an insecure rehearsal.
    """

    folder: Path
    name: str
    address: Address
    root_certificate: Path | None
    private_key: Path | None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the site of a folder; raise ConfigError if site.toml is missing or not valid.

        The values of the policy are not checked.
        """
        folder = folder.absolute()
        path = folder / FILE_NAME
        if not path.is_file():
            raise ConfigError(
                f"{folder} is not a site's folder: it has no {FILE_NAME}; "
                "make one with 'sottovoce deploy join'"
            )
        table = read_section(path, _SiteFolderTable)
        link, where = table.link, f"{path}, [link]"
        address = Address.parse(link.address, where=f"{where}: ")
        given = {name: getattr(link, name) for name in ("root_certificate", "private_key")}
        if link.insecure:
            for name, value in given.items():
                if value is not None:
                    raise ConfigError(
                        f"{where}: 'insecure' and '{name}' exclude each other; remove one of them"
                    )
            if not address.is_loopback:
                raise ConfigError(
                    f"{where}: 'insecure' is for rehearsals on one machine, but '{address}' is "
                    "another machine; use root_certificate and private_key"
                )
        elif missing := [f"'{name}'" for name, value in given.items() if value is None]:
            raise ConfigError(f"{where} lacks {' and '.join(missing)}; add what is missing")
        return cls(
            folder=folder,
            name=check_name(table.name, what=f"{path}: 'name'"),
            address=address,
            **{name: value and folder / value for name, value in given.items()},
        )

    @property
    def file(self) -> Path:
        """The file site.toml."""
        return self.folder / FILE_NAME

    @property
    def node_folder(self) -> Path:
        """The folder node/ with the log of the node, the program that answers for the site."""
        return self.folder / "node"

    def policy_problem(self) -> str | None:
        """Return a sentence on missing keys of the policy; None if no required key is missing."""
        given = read_table(self.file)["policy"]
        missing = [key for key in NEEDED if key not in given]
        if not missing:
            return None
        known = {field.name for field in fields(Policy)}
        unknown = [f"'{key}'" for key in given if key not in known]
        has = f" and has the unknown key {', '.join(unknown)}" if unknown else ""
        return (
            f"{self.file}: [policy] lacks {', '.join(missing)}{has}; add what the site allows, for "
            "which there are no defaults"
        )

    def ledger_problem(self) -> str | None:
        """Return why nothing can be charged to the ledger; None if it can.

        The ledger must match its seal and receipt, and the level and adjacency of the policy.
        Raises PolicyError if site.toml is not valid. A ledger of an earlier version gets its seal.
        """
        try:
            path = self.folder / LEDGER_NAME
            with seals.open_sealed(path, self.folder / seals.SEAL_NAME) as ledger:
                check_receipt(ledger, self.folder)
                return account_problem(read_site(self.file), ledger)
        except LedgerError as error:
            return str(error)

    def link_problem(self) -> str | None:
        """Return why this site and its link would not trust each other, else None.

        The link is the server program of the federation. None also if it does not answer, or if the
        site connects without keys (an insecure rehearsal).
        """
        if self.root_certificate is None or self.private_key is None:
            return None
        return (
            certificates.key_problem(self.private_key)
            or certificates.date_problem(self.root_certificate)
            or certificates.handshake_problem(self.address, self.root_certificate)
        )


def supervisor_folder(folder: Path) -> Path:
    """Return the subfolder node/ of a site or link/ of an operator, where the program runs.

    The file site.toml or federation.toml need not be valid. Raises ConfigError if the folder is of
    neither kind.
    """
    node, link = folder.absolute() / "node", folder.absolute() / "link"
    if (folder / FILE_NAME).is_file():
        return node
    if (folder / FEDERATION_FILE_NAME).is_file():
        return link
    for kept in (node, link):
        if (kept / "lock").is_file():  # a supervisor has run there
            return kept
    return Federation.read(folder).link_folder  # raises with what the folder should be


def create_site(folder: Path, *, name: str, address: Address, root_certificate: Path) -> SiteFolder:
    """Create a site's folder with a key pair, an empty ledger, and a policy to be completed.

    `root_certificate` is the operator's ca.crt, which is copied. Raises DeploymentError if the
    folder has any content.
    """
    check_name(name, what="a site's name")
    certificates.read_certificate(root_certificate)
    return _create(folder, name, address, root_certificate, policy=OPEN_POLICY)


def create_rehearsal_sites(federation: Federation) -> None:
    """Create the folders of all sites under sites/ of the operator's folder, for a rehearsal.

    Each has a complete policy for rehearsals, and its key is added to the federation.
    """
    sites = federation.folder / "sites"
    with files.explain_os_errors("create", sites):
        sites.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
    for name in federation.sites:
        folder = sites / name
        site = _create(
            folder, name, federation.address, federation.authority, policy=_REHEARSAL_POLICY
        )
        federation.add_site(name, site.folder / "node.pub")
    added = [sites / name / trust_files.PUBLIC_NAME for name in federation.sites]
    digest = trust_files.update_roster(federation, added).digest.hex()
    for name in federation.sites:
        roster = federation.folder / trust_files.ROSTER_NAME
        trust_files.pin_roster(sites / name, name, roster, digest)


def _create(
    folder: Path, name: str, address: Address, authority: Path, *, policy: str
) -> SiteFolder:
    make_folder(folder)
    (folder / "node").mkdir(mode=0o700)
    certificates.create_node_key(folder / "node.key", folder / "node.pub", comment=name)
    trust_files.create_trust_key(folder, name=name)
    shutil.copyfile(authority, folder / "ca.crt")
    text = _TEMPLATE.format(name=name, address=address, policy=policy)
    seals.create(folder)
    certificates.write_secret(folder / FILE_NAME, text.encode())
    return SiteFolder.read(folder)


_TEMPLATE = """\
name = "{name}"

[link]
address = "{address}"
root_certificate = "ca.crt"
private_key = "node.key"

# What this site allows, whatever a run asks for.
[policy]
{policy}
# The site's own records, for runs with 'data.sites'. Only the site decides how they are read.
# [data]
# dataset = "csv:/srv/records.csv"
# [data.csv]                      # as in the specs of the runs
# label_columns = ["outcome"]
# classes = ["ill", "well"]

# What questions about the site's people may be about ('sottovoce deploy ask'); they need
# adjacency = "replace-one" in [policy], and their mechanism in 'mechanisms'.
# [columns.age]
# csv = "/srv/records.csv"
# column = "age"
"""

OPEN_POLICY = """\
# Uncomment and complete these keys; the node does not start before.
# mechanisms = ["gauss_hermite"]  # 'sottovoce mechanism list'
# level = "sample"                # what is protected: "sample", or "client" (the whole site)
# adjacency = "zero-out"          # or "replace-one"
# epsilon_per_round =
# epsilon_total =                 # over all runs in ledger.sqlite
# delta =
# smallest_cohort =               # sites that must take part in a round
# The following keys have defaults.
# epsilon_if_sampled = 40.0       # largest epsilon of a round for a record in its sample
# smallest_sampling_rate =        # [100 delta] least probability with which a record is sampled
# smallest_noise_multiplier = 0.4 # [none] of mechanisms that have one
# rounds_per_day = 100            # [no limit] charged within 24 hours, including questions
# warn_at = 0.8                   # fraction of epsilon_total from which on the site is warned
# honest =                        # [no secure sums] honest clients over which a sum must be
# colluders = 1                   # clients that may work with the server; together with 'honest'
# retries = 3                     # attempts at secure sums beyond the planned rounds of a run
"""

_REHEARSAL_POLICY = """\
# For a rehearsal on public data; a real site decides for itself.
# Questions ('sottovoce deploy ask') need adjacency = "replace-one" and their mechanism in the list,
# for example "mvu" for means. The adjacency can be changed only before the first charge.
mechanisms = ["gauss_hermite", "discrete_gaussian"]
level = "sample"
adjacency = "zero-out"
epsilon_per_round = 2.0
epsilon_total = 10.0
delta = 1e-5
smallest_cohort = 1
honest = 2                  # secure sums of at least two honest sites, of which one may be ours
colluders = 1
"""


_ALONG = ("audit.jsonl", "witness*.json")  # further files about the charges, if they exist


def move_ledger(old: Path, new: Path) -> LedgerPosition:
    """Move a site's ledger from folder `old` to folder `new`, whose own ledger has no charges yet.

    The audit log and receipts move along. The same call finishes an interrupted move. Returns the
    position of the moved ledger. Raises DeploymentError if the node of a folder runs, LedgerError
    if the old ledger is damaged or missing or the new one has charges, and ConfigError if `new` is
    not a site's folder.
    """
    old, new = old.resolve(), new.resolve()
    if not (new / FILE_NAME).is_file():
        raise ConfigError(
            f"{new} is not a site's folder; make one with 'sottovoce deploy join'. If a move to a "
            "folder was interrupted and the folder was renamed since, restore its name"
        )
    if old == new:
        raise ConfigError(f"{old} was given twice; name the old folder and the new folder")
    if not any((old / name).exists() for name in (LEDGER_NAME, SEAL_NAME)):
        raise LedgerError(f"{old} has no ledger to move; name the folder that has it")
    with _stopped(old), _stopped(new):
        standing = _begin(old, new)
        seal = seals.read(new / SEAL_NAME)
        is_arriving = seal is not None and seal.arriving_from is not None
        if is_arriving and os.path.lexists(old / LEDGER_NAME):
            _copy(old, new, standing)
        _check_arrived(new, standing, is_arriving=is_arriving)
        Seal(position=standing, moved_to=str(new), has_left=True).write(old / SEAL_NAME)
        for path in (*_files(old / LEDGER_NAME), *_along(old)):
            path.unlink(missing_ok=True)
        files.sync_folder(old)
        if is_arriving:
            Seal(position=standing).write(new / SEAL_NAME)
    return standing


def _begin(old: Path, new: Path) -> LedgerPosition:
    """Stop both folders from answering, and return the position of the account that moves."""
    seal = seals.read(old / SEAL_NAME)
    if seal is not None and seal.moved_to is not None and _is_over(old, seal):
        if seal.moved_to != str(new):
            seals.check_present(old / LEDGER_NAME, seal)  # raises: the account is elsewhere
        return seal.position
    with _opened(old, seal) as ledger:
        copies.check_whole(ledger)
        ledger.checkpoint()
        # A node that was not started by 'deploy node' may be charging. After this transaction its
        # `settle` raises; what it has settled before is part of the position.
        with ledger.transaction():
            standing = ledger.position()
            _await(new, ledger, standing)
            Seal(position=standing, moved_to=str(new)).write(old / SEAL_NAME)
    return standing


def _is_over(old: Path, seal: Seal) -> bool:
    """Return whether, by its seal, the account is no longer in the old folder alone."""
    return seal.has_left or not os.path.lexists(old / LEDGER_NAME)


def _opened(old: Path, seal: Seal | None) -> Ledger:
    """Return the old ledger, also during a move; raise LedgerLostError if it is not complete."""
    path = old / LEDGER_NAME
    if seal is None or seal.moved_to is None:
        return seals.open_sealed(path, old / SEAL_NAME)
    ledger = Ledger(path)
    try:
        seals.check(ledger, Seal(position=seal.position), path)
    except BaseException:
        ledger.close()
        raise
    return ledger


def _await(new: Path, old: Ledger, standing: LedgerPosition) -> None:
    """Mark the new folder, whose ledger has no charges, as waiting for the old one's account."""
    seal, sender = seals.read(new / SEAL_NAME), str(old.path.parent)
    arriving = Seal(position=standing, arriving_from=sender)
    if (
        seal is not None
        and seal.arriving_from is not None  # from an interrupted move
        and (seal.arriving_from == sender or seal.position.identity == standing.identity)
    ):
        # Everything that has arrived must still be in the old ledger.
        seals.check(old, Seal(position=seal.position), old.path)
        arriving.write(new / SEAL_NAME)
        return
    with seals.open_sealed(new / LEDGER_NAME, new / SEAL_NAME) as ledger, ledger.transaction():
        if ledger.num_charges:
            raise LedgerError(
                f"{new / LEDGER_NAME} has {ledger.num_charges} charges of its own, and two "
                "accounts are not merged; move the ledger to a folder that has never answered"
            )
        arriving.write(new / SEAL_NAME)


def _copy(old: Path, new: Path, standing: LedgerPosition) -> None:
    """Copy the ledger, and the other files about it, to the new folder."""
    with Ledger(old / LEDGER_NAME) as ledger:
        seals.check(ledger, Seal(position=standing), old / LEDGER_NAME)
        for path in _files(new / LEDGER_NAME):
            path.unlink(missing_ok=True)  # has no charges, or is a copy of an earlier attempt
        copies.back_up(ledger, new / LEDGER_NAME)
    for path in _along(old):
        there, content = new / path.name, path.read_bytes()
        if there.exists() and there.read_bytes() != content:
            there.replace(there.with_name(f"{there.name}.before-move"))
        files.write_atomic(there, content, mode=files.PRIVATE)


def _check_arrived(new: Path, standing: LedgerPosition, *, is_arriving: bool) -> None:
    """Raise LedgerLostError if the new folder does not have the complete account."""
    path = new / LEDGER_NAME
    with Ledger(path) if is_arriving else seals.open_sealed(path, new / SEAL_NAME) as ledger:
        seals.check(ledger, Seal(position=standing), path)


@contextlib.contextmanager
def _stopped(folder: Path) -> Iterator[None]:
    """Keep a folder's node from starting in the block; raise DeploymentError if it runs."""
    with hold_supervisor_lock(folder / "node", what=f"the node of {folder}"):
        yield


def _files(ledger: Path) -> list[Path]:
    return [ledger.with_name(f"{ledger.name}{suffix}") for suffix in ("", "-wal", "-shm")]


def _along(folder: Path) -> list[Path]:
    return sorted(path for pattern in _ALONG for path in folder.glob(pattern))
