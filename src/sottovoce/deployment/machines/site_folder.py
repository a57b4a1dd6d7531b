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
"""

import shutil
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
from sottovoce.deployment.policy import NEEDED, Policy
from sottovoce.deployment.site import LinkTable, SiteTable, account_problem, read_site
from sottovoce.deployment.witness import check_kept
from sottovoce.ledger import seal as seals
from sottovoce.ledger.ledger import LEDGER_NAME

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
