"""The operator's folder: the sites of a federation, and the address of its link.

federation.toml     name, address, sites
certificates/       ca.crt, for every site; ca.key, link.crt and link.key, for the operator only
keys/NAME.pub       each site's public key
link/               the link's database, log, Flower's own folder, receipts (witness/)
runs/               default folder of runs
sites/NAME/         only in a rehearsal: the sites' own folders

The TOML files of a deployment are read strictly: an unknown key is an error.
"""

import dataclasses
import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import Field, ValidationError

from sottovoce.core import files
from sottovoce.core.errors import ConfigError, DeploymentError
from sottovoce.deployment.machines import certificates
from sottovoce.deployment.machines.address import Address, host_name
from sottovoce.runs.sections import Section, problem_in

S = TypeVar("S", bound=Section)

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def read_table(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; raise ConfigError if it cannot be read or parsed."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror or error}; check that it exists and is readable"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    except (ValueError, RecursionError) as error:  # not TOML, or nested too deep
        raise ConfigError(f"{path} is not valid TOML: {error}; correct the file") from None


def read_section(path: Path, section: type[S]) -> S:
    """Return the content of a TOML file, validated as `section`.

    Raises ConfigError if the file cannot be read, or for an unknown, missing or invalid key.
    """
    try:
        return section.model_validate(read_table(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {problem_in(error, section)}") from None


def check_name(text: object, *, what: str) -> str:
    """Return a name that fits a folder, a host and a key's comment without quoting.

    Raises ConfigError for any other name; `what` starts its message.
    """
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        raise ConfigError(
            f"{what} must be 1 to 63 characters of a-z, 0-9, '-' and '_' and start with a letter "
            f"or digit, got {text!r}"
        )
    return text


FILE_NAME = "federation.toml"


class _FederationTable(Section):
    name: str
    address: str
    sites: list[str]
    hosts: list[str] = Field(default_factory=list)
    largest_reply_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """The content of `federation.toml`, and the paths of an operator's folder.

    Attributes:
        folder: The operator's folder.
        name: Name of the federation.
        address: Address of the link, the server program to which sites connect.
        sites: Names of the sites.
        hosts: Further names of the link, for its certificate.
        largest_reply_bytes: Most bytes of a reply that the gate, the proxy in front of the link,
            passes even if no server has announced its size; 64 KiB are added to it.
    """

    folder: Path
    name: str
    address: Address
    sites: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    largest_reply_bytes: int = 0

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the federation of an operator's folder.

        Raises ConfigError if federation.toml is missing or not valid.
        """
        folder = folder.absolute()
        path = folder / FILE_NAME
        if not path.is_file() and (folder / "site.toml").is_file():
            raise ConfigError(
                f"{folder} is a site's folder, but this command needs the operator's, which has "
                f"{FILE_NAME}; for a site, use 'sottovoce deploy check' and 'sottovoce ledger show'"
            )
        if not path.is_file():
            raise ConfigError(
                f"{folder} is not a federation's folder: it has no {FILE_NAME}; "
                "make one with 'sottovoce deploy init'"
            )
        table = read_section(path, _FederationTable)
        return cls(
            folder=folder,
            name=check_name(table.name, what=f"{path}: 'name'"),
            address=Address.parse(table.address, where=f"{path}: "),
            sites=site_names(table.sites, where=f"{path}: "),
            hosts=tuple(host_name(host, where=f"{path}: ") for host in table.hosts),
            largest_reply_bytes=table.largest_reply_bytes,
        )

    def write(self) -> None:
        """Write federation.toml in the folder atomically, over an existing one."""
        lines = [
            "# The sites of this federation. Written by 'sottovoce deploy'. A site that is removed",
            "# from the list is refused at once, and accepted once it is in the list again.",
            f'name = "{self.name}"',
            f'address = "{self.address}"  # to which sites connect',
            f"sites = [{_quoted(self.sites)}]",
            f"hosts = [{_quoted(self.hosts)}]  # further names of the link, for its certificate",
        ]
        if self.largest_reply_bytes:
            lines.append(f"largest_reply_bytes = {self.largest_reply_bytes}")
        files.write_atomic(self.folder / FILE_NAME, ("\n".join(lines) + "\n").encode())

    # -- paths -----------------------------------------------------------------------------

    @property
    def authority(self) -> Path:
        """The file certificates/ca.crt, the certificate of the federation's authority."""
        return self.folder / "certificates" / "ca.crt"

    @property
    def authority_key(self) -> Path:
        """The file certificates/ca.key, the private key of the federation's authority."""
        return self.folder / "certificates" / "ca.key"

    @property
    def certificate(self) -> Path:
        """The file certificates/link.crt, the certificate of the federation's server program."""
        return self.folder / "certificates" / "link.crt"

    @property
    def certificate_key(self) -> Path:
        """The file certificates/link.key, the private key of the federation's server program."""
        return self.folder / "certificates" / "link.key"

    @property
    def link_folder(self) -> Path:
        """The folder link/ with the database and logs of the link, the server program."""
        return self.folder / "link"

    @property
    def replies_due_folder(self) -> Path:
        """The folder in which servers announce the size of replies that they wait for.

        The gate, the proxy in front of the link, reads it and refuses longer replies.
        """
        return self.link_folder / "replies-due"

    @property
    def runs_folder(self) -> Path:
        """The default folder of runs."""
        return self.folder / "runs"

    def public_key_path(self, site: str) -> Path:
        """Return the file of a site's public key, keys/NAME.pub; it need not exist."""
        return self.folder / "keys" / f"{site}.pub"

    # -- sites and certificates --------------------------------------------------------------

    def public_keys(self) -> dict[str, ec.EllipticCurvePublicKey]:
        """Return the public keys by site, without sites that have no key file.

        Raises DeploymentError for a file that is not a site's public key.
        """
        return {
            site: certificates.read_public_key(self.public_key_path(site))
            for site in self.sites
            if self.public_key_path(site).exists()
        }

    def sites_by_key(self) -> dict[bytes, str]:
        """Return the name of the site by its public key in PEM, as Flower stores it."""
        keys = self.public_keys().items()
        return {certificates.to_flower_key(key): site for site, key in keys}

    def add_site(self, site: str, key: Path) -> Self:
        """Copy a site's public key into the folder and return the federation with that site.

        A new site is also added to federation.toml. Raises DeploymentError if the key belongs to
        another site, or if the site already has a key, which is not replaced.
        """
        check_name(site, what="a site's name")
        new = certificates.read_public_key(key)
        for other, known in self.public_keys().items():
            if known == new and other != site:
                raise DeploymentError(
                    f"{key} is already the key of '{other}', and each site needs its own; ask "
                    f"'{site}' for the file node.pub that 'sottovoce deploy join' made"
                )
        certificates.write_public_key(self.public_key_path(site), new, comment=site)
        if site in self.sites:
            return self
        grown = dataclasses.replace(self, sites=(*self.sites, site))
        grown.write()
        return grown

    def renew_certificate(self, *, days: int) -> None:
        """Replace the link's certificate and key by new ones of the same authority.

        Sites need not change anything; a running link must be restarted. Raises DeploymentError if
        the authority's own certificate is not valid today.
        """
        problem = certificates.date_problem(self.authority)
        if problem:
            raise DeploymentError(
                f"{problem}; make a new federation with 'sottovoce deploy init' and give its "
                "ca.crt to all sites"
            )
        new = [path.with_suffix(path.suffix + ".new") for path in self._certificate_files]
        for path in new:
            path.unlink(missing_ok=True)
        self._issue(*new, days=days)
        for path, target in zip(new, self._certificate_files, strict=True):
            os.replace(path, target)

    def certificate_problem(self) -> str | None:
        """Return why sites would refuse the link's certificate, with a remedy; else None.

        The link is the server program to which sites connect.
        """
        problem = certificates.link_problem(
            self.certificate,
            self.certificate_key,
            authority=self.authority,
            host=self.address.host,
        )
        return problem and (
            f"{problem}; run 'sottovoce deploy certificates {self.folder} --renew', which replaces "
            "link.crt, or says what to do if ca.crt itself is not valid"
        )

    @property
    def _certificate_files(self) -> tuple[Path, Path]:
        return self.certificate, self.certificate_key

    def _issue(self, certificate: Path, key: Path, *, days: int) -> None:
        certificates.issue_certificate(
            certificate,
            key,
            authority=self.authority,
            authority_key=self.authority_key,
            hosts=[self.address.host, *self.hosts],
            days=days,
        )


def create_federation(
    folder: Path,
    *,
    address: Address,
    sites: Sequence[str],
    hosts: Sequence[str] = (),
    days: int = certificates.LINK_DAYS,
) -> Federation:
    """Create an operator's folder with a certificate authority and the link's certificate.

    `hosts` are further names of the link, and `days` is how long its certificate is valid. Raises
    DeploymentError if the folder has any content.
    """
    federation = Federation(
        folder=folder.absolute(),
        name=_name_from(folder),
        address=address,
        sites=site_names(list(sites)),
        hosts=tuple(host_name(host) for host in hosts),
    )
    make_folder(folder)
    for part in (
        federation.authority.parent,
        federation.public_key_path("").parent,
        federation.link_folder,
        federation.runs_folder,
    ):
        part.mkdir(mode=0o700)
    certificates.create_authority(
        federation.authority,
        federation.authority_key,
        name=federation.name,
        days=certificates.AUTHORITY_DAYS,
    )
    federation._issue(*federation._certificate_files, days=days)
    federation.write()  # last: a folder without this file is not a federation's
    return federation


def make_folder(folder: Path) -> None:
    """Create a folder that only its owner can read; an existing folder must be empty.

    An existing folder keeps its permissions. Raises DeploymentError if it has any content.
    """
    with files.explain_os_errors("create", folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise DeploymentError(f"{folder} is not empty; choose another folder")


def site_names(names: Sequence[object], *, where: str = "") -> tuple[str, ...]:
    """Return the names as a tuple; raise ConfigError for an invalid name or a duplicate.

    `where` starts the message.
    """
    found = tuple(check_name(name, what=f"{where}a site's name") for name in names)
    twice = sorted({name for name in found if found.count(name) > 1})
    if twice:
        raise ConfigError(f"{where}the site '{twice[0]}' is listed twice; name it once")
    return found


def _name_from(folder: Path) -> str:
    """Return a federation's name, derived from its folder."""
    return re.sub(r"[^a-z0-9_-]+", "-", folder.absolute().name.lower()).strip("-_") or "federation"


def _quoted(texts: Sequence[str]) -> str:
    return ", ".join(f'"{text}"' for text in texts)
