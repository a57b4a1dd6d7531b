"""A site's folder: its key, its policy, and how it reaches the link.

site.toml        name, [link], [policy], [data], [columns]; the site's own, nobody else writes it
node.key         the site's private key, which never leaves it
node.pub         the public key, for the operator
ca.crt           the operator's authority
ledger.sqlite    what the site has spent
ledger.seal      which ledger that is, and how many charges it must hold
witness.json     the newest receipt of the federation for that ledger, once there is one
audit.jsonl      what the site charged, answered and refused, line by line
node/            what the running node keeps: log, Flower's own folder

A site's account can move to another folder: to one that `deploy join` made for a new key, say. At
every moment at most one of the two folders answers, and the ledger is whole in one of them at
least. Interrupted, the move is finished by the same call. The new folder answers only once the
seal of the old one says that the account has left: until then nothing was charged elsewhere, and
the move can begin again, to the same folder or to another.
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
from sottovoce.deployment.machines import certificates
from sottovoce.deployment.machines.address import Address
from sottovoce.deployment.machines.federation import FILE_NAME as FEDERATION_FILE_NAME
from sottovoce.deployment.machines.federation import (
    Federation,
    make_folder,
    name_of,
    read_section,
    read_table,
)
from sottovoce.deployment.machines.processes import keeping
from sottovoce.deployment.policy import NEEDED, Policy
from sottovoce.deployment.site import LinkTable, SiteTable, account_problem, read_site
from sottovoce.deployment.witness import check_kept
from sottovoce.ledger import copies
from sottovoce.ledger import seal as seals
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.ledger.records import Standing
from sottovoce.ledger.seal import SEAL_NAME, Seal

FILE_NAME = "site.toml"


class _SiteFolderTable(SiteTable):
    """Only [link] is looked into here: `deploy check` says what is wrong with other tables."""

    link: LinkTable
    data: dict[str, Any] | None = None  # type: ignore[assignment]
    columns: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFolder:
    """Who a site is and how it reaches the link. What its policy means is the policy's affair."""

    folder: Path
    name: str
    address: Address
    root_certificate: Path | None
    private_key: Path | None

    @classmethod
    def read(cls, folder: Path) -> Self:
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
                    raise ConfigError(f"{where}: 'insecure' and '{name}' exclude each other")
            if not address.is_loopback:
                raise ConfigError(
                    f"{where}: 'insecure' is for rehearsals on one machine, but '{address}' is "
                    "another; use root_certificate and private_key"
                )
        elif missing := [f"'{name}'" for name, value in given.items() if value is None]:
            raise ConfigError(f"{where} lacks {' and '.join(missing)}")
        return cls(
            folder=folder,
            name=name_of(table.name, what=f"{path}: 'name'"),
            address=address,
            **{name: value and folder / value for name, value in given.items()},
        )

    @property
    def file(self) -> Path:
        return self.folder / FILE_NAME

    @property
    def node_folder(self) -> Path:
        return self.folder / "node"

    def policy_problem(self) -> str | None:
        """Which of the policy's keys the site has not filled in; None if it has them all."""
        given = read_table(self.file)["policy"]
        missing = [key for key in NEEDED if key not in given]
        if not missing:
            return None
        known = {field.name for field in fields(Policy)}
        unknown = [f"'{key}'" for key in given if key not in known]
        has = f" and has {', '.join(unknown)}, which is no key of it" if unknown else ""
        return (
            f"{self.file}: [policy] lacks {', '.join(missing)}{has}; only the site can say what "
            "it allows, so there are no defaults"
        )

    def ledger_problem(self) -> str | None:
        """Why the account cannot be kept; None if the ledger is the one that was charged.

        Nor can it go on at another level or adjacency.
        """
        try:
            path = self.folder / LEDGER_NAME
            with seals.open_sealed(path, self.folder / seals.SEAL_NAME) as ledger:
                check_kept(ledger, self.folder)
                return account_problem(read_site(self.file), ledger)
        except LedgerError as error:
            return str(error)

    def link_problem(self) -> str | None:
        """Why this site and its link would not trust each other, as far as the site can tell."""
        if self.root_certificate is None or self.private_key is None:
            return None
        return (
            certificates.key_problem(self.private_key)
            or certificates.date_problem(self.root_certificate)
            or certificates.handshake_problem(self.address, self.root_certificate)
        )


def keeper_folder(folder: Path) -> Path:
    """Where the node or the link of a folder is kept, also if the folder's file is gone or bad."""
    node, link = folder.absolute() / "node", folder.absolute() / "link"
    if (folder / FILE_NAME).is_file():
        return node
    if (folder / FEDERATION_FILE_NAME).is_file():
        return link
    for kept in (node, link):
        if (kept / "lock").is_file():  # whatever is kept there holds it, or has held it
            return kept
    return Federation.read(folder).link_folder  # which says what the folder is not


def create_site(folder: Path, *, name: str, address: Address, root_certificate: Path) -> SiteFolder:
    """A new site's folder; its policy is for the site to fill in."""
    name_of(name, what="a site's name")
    certificates.read_certificate(root_certificate)
    return _create(folder, name, address, root_certificate, policy=_OPEN_POLICY)


def create_rehearsal_sites(federation: Federation) -> None:
    """All sites' folders on this machine, with a policy for trying things out."""
    sites = federation.folder / "sites"
    with files.explained("create", sites):
        sites.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
    for name in federation.sites:
        folder = sites / name
        site = _create(
            folder, name, federation.address, federation.authority, policy=_REHEARSAL_POLICY
        )
        federation.add_site(name, site.folder / "node.pub")


def _create(
    folder: Path, name: str, address: Address, authority: Path, *, policy: str
) -> SiteFolder:
    make_folder(folder)
    (folder / "node").mkdir(mode=0o700)
    certificates.create_node_key(folder / "node.key", folder / "node.pub", comment=name)
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
# Records of the site's own, for runs with 'data.sites'; how they are read is the site's to say.
# [data]
# dataset = "csv:/srv/records.csv"
# [data.csv]                      # as the runs' specs have it
# label_columns = ["outcome"]
# classes = ["ill", "well"]

# What questions about the site's people may be about ('sottovoce deploy ask'); they need
# adjacency = "replace-one" in [policy], and their mechanism in 'mechanisms'.
# [columns.age]
# csv = "/srv/records.csv"
# column = "age"
"""

_OPEN_POLICY = """\
# Uncomment and decide; the node does not start before.
# mechanisms = ["gauss_hermite"]  # 'sottovoce mechanism list'
# level = "sample"                # what is protected: "sample" or "client", all that the site has
# adjacency = "zero-out"          # or "replace-one"
# epsilon_per_round =
# epsilon_total =                 # over all runs, for as long as ledger.sqlite lives
# delta =
# smallest_cohort =               # sites that must take part in a round
# What follows has defaults.
# epsilon_if_sampled = 40.0       # most that a round may cost a record that is in its sample
# smallest_sampling_rate =        # [100 delta] least probability with which a record is sampled
# smallest_noise_multiplier = 0.4 # [none] of mechanisms that have one
# rounds_per_day = 100            # [no limit] charged within 24 hours, questions among them
# warn_at = 0.8                   # share of epsilon_total from which on the site is warned
"""

_REHEARSAL_POLICY = """\
# For a rehearsal on data that is nobody's; a real site decides for itself.
# Questions ('sottovoce deploy ask') need adjacency = "replace-one" and their mechanism in the list,
# for example "mvu" for means. Change adjacency before the first charge: it stays as charged then.
mechanisms = ["gauss_hermite", "discrete_gaussian"]
level = "sample"
adjacency = "zero-out"
epsilon_per_round = 2.0
epsilon_total = 10.0
delta = 1e-5
smallest_cohort = 1
"""


_ALONG = ("audit.jsonl", "witness*.json")  # what else is about the charges, where it is there


def move_ledger(old: Path, new: Path) -> Standing:
    """Move the ledger of the folder `old` to the folder `new`, whose own has no charges yet."""
    old, new = old.resolve(), new.resolve()
    if not (new / FILE_NAME).is_file():
        raise ConfigError(
            f"{new} is not a site's folder; make one with 'sottovoce deploy join'. One that a move "
            "was interrupted to, and that was renamed since, gets its name back"
        )
    if old == new:
        raise ConfigError(f"{old} is one folder; name the old one and the new one")
    if not any((old / name).exists() for name in (LEDGER_NAME, SEAL_NAME)):
        raise LedgerError(f"{old} has no ledger to move")
    with _stopped(old), _stopped(new):
        standing = _begin(old, new)
        seal = seals.read(new / SEAL_NAME)
        is_arriving = seal is not None and seal.arriving_from is not None
        if is_arriving and os.path.lexists(old / LEDGER_NAME):
            _copy(old, new, standing)
        _check_arrived(new, standing, is_arriving=is_arriving)
        Seal(standing=standing, moved_to=str(new), has_left=True).write(old / SEAL_NAME)
        for path in (*_files(old / LEDGER_NAME), *_along(old)):
            path.unlink(missing_ok=True)
        files.sync_folder(old)
        if is_arriving:
            Seal(standing=standing).write(new / SEAL_NAME)
    return standing


def _begin(old: Path, new: Path) -> Standing:
    """Let neither folder answer from now on; the standing of the account that moves."""
    seal = seals.read(old / SEAL_NAME)
    if seal is not None and seal.moved_to is not None and _is_over(old, seal):
        if seal.moved_to != str(new):
            seals.check_there(old / LEDGER_NAME, seal)  # raises: it is elsewhere
        return seal.standing
    with _opened(old, seal) as ledger:
        copies.check_whole(ledger)
        ledger.checkpoint()
        # A node that was not started by 'deploy node' may be charging: from the end of the
        # transaction on its `settle` refuses, and what it has settled before is in the standing.
        with ledger.transaction():
            standing = ledger.standing()
            _await(new, ledger, standing)
            Seal(standing=standing, moved_to=str(new)).write(old / SEAL_NAME)
    return standing


def _is_over(old: Path, seal: Seal) -> bool:
    """Whether the account is no longer in the old folder alone, by the seal that it left there."""
    return seal.has_left or not os.path.lexists(old / LEDGER_NAME)


def _opened(old: Path, seal: Seal | None) -> Ledger:
    """The old ledger, also where a move of it has begun; LedgerLostError if it is not whole."""
    path = old / LEDGER_NAME
    if seal is None or seal.moved_to is None:
        return seals.open_sealed(path, old / SEAL_NAME)
    ledger = Ledger(path)
    try:
        seals.check(ledger, Seal(standing=seal.standing), path)
    except BaseException:
        ledger.close()
        raise
    return ledger


def _await(new: Path, old: Ledger, standing: Standing) -> None:
    """Let the new folder, whose ledger has no charges, wait for the account of the old one."""
    seal, sender = seals.read(new / SEAL_NAME), str(old.path.parent)
    arriving = Seal(standing=standing, arriving_from=sender)
    if (
        seal is not None
        and seal.arriving_from is not None  # by a move that was interrupted
        and (seal.arriving_from == sender or seal.standing.identity == standing.identity)
    ):
        seals.check(old, Seal(standing=seal.standing), old.path)  # what has come is in the old one
        arriving.write(new / SEAL_NAME)
        return
    with seals.open_sealed(new / LEDGER_NAME, new / SEAL_NAME) as ledger, ledger.transaction():
        if ledger.num_charges:
            raise LedgerError(
                f"{new / LEDGER_NAME} has charges of its own ({ledger.num_charges}), and two "
                "accounts are not put together; move to a folder that has never answered"
            )
        arriving.write(new / SEAL_NAME)


def _copy(old: Path, new: Path, standing: Standing) -> None:
    """Bring the ledger, and what else is about it, to the new folder."""
    with Ledger(old / LEDGER_NAME) as ledger:
        seals.check(ledger, Seal(standing=standing), old / LEDGER_NAME)
        for path in _files(new / LEDGER_NAME):
            path.unlink(missing_ok=True)  # without a charge, or a copy of an earlier try
        copies.back_up(ledger, new / LEDGER_NAME)
    for path in _along(old):
        there, content = new / path.name, path.read_bytes()
        if there.exists() and there.read_bytes() != content:
            there.replace(there.with_name(f"{there.name}.before-move"))
        files.write_atomic(there, content, mode=files.PRIVATE)


def _check_arrived(new: Path, standing: Standing, *, is_arriving: bool) -> None:
    """Refuse to go on where the new folder does not have the whole account: LedgerLostError."""
    path = new / LEDGER_NAME
    with Ledger(path) if is_arriving else seals.open_sealed(path, new / SEAL_NAME) as ledger:
        seals.check(ledger, Seal(standing=standing), path)


@contextlib.contextmanager
def _stopped(folder: Path) -> Iterator[None]:
    """Keep a folder's node from running meanwhile; refuse if it runs."""
    with keeping(folder / "node", what=f"the node of {folder}"):
        yield


def _files(ledger: Path) -> list[Path]:
    return [ledger.with_name(f"{ledger.name}{suffix}") for suffix in ("", "-wal", "-shm")]


def _along(folder: Path) -> list[Path]:
    return sorted(path for pattern in _ALONG for path in folder.glob(pattern))
