"""The folders of relay and collector.

relay.toml or collector.toml    what the operator decides; its presence says whose folder it is
signing.key, admission.key      Ed25519 private keys, as hexadecimal digits
encryption.key                  the relay's X25519 private key
tls.crt, tls.key                the relay's certificate, which clients pin, and its key
relay.pub, collector.pub        the operators' cards of public keys
operators.toml                  both cards, for devices; it exists once they are paired
clients.txt                     the clients that this operator has admitted, one a line: name, key
relay/ or collector/            the state of the attempts, logs, the lock
runs/                           the collector's default folder of runs

The operators are two organizations that do not collude, on machines of their own.
"""

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import Field

from sottovoce.core import files
from sottovoce.core.errors import ConfigError, DeploymentError
from sottovoce.deployment.machines import certificates
from sottovoce.deployment.machines.address import Address, host_name
from sottovoce.deployment.machines.federation import make_folder, read_section
from sottovoce.deployment.operators.cards import CollectorCard, PinnedOperators, RelayCard
from sottovoce.protocol.secure.encoding import KEY_BYTES
from sottovoce.protocol.secure.hpke import HpkeKey
from sottovoce.protocol.secure.roster import FEDERATION_ID_BYTES, TrustKey
from sottovoce.runs.sections import Section

RELAY_FILE, COLLECTOR_FILE = "relay.toml", "collector.toml"
RELAY_CARD, COLLECTOR_CARD, OPERATORS_FILE = "relay.pub", "collector.pub", "operators.toml"
_SIGNING, _ADMISSION, _ENCRYPTION = "signing.key", "admission.key", "encryption.key"
_CLIENTS = "clients.txt"
CERTIFICATE_DAYS = 3650


class _RelayTable(Section):
    address: str
    minimum_clients: int = 2
    colluders: int = 1
    link: str | None = None


class _CollectorTable(Section):
    minimum_clients: int = 2
    colluders: int = 1
    confirm_seconds: int = Field(default=60, ge=1)
    slack: int = Field(default=0, ge=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFolder:
    """What the folders of relay and collector have in common.

    Attributes:
        folder: The folder.
        minimum_clients: The smallest number of honest clients in a sum or a list that the operator
            takes part in.
        colluders: The number of admitted clients that may be dishonest; counted on top.
    """

    folder: Path
    minimum_clients: int
    colluders: int

    def __post_init__(self) -> None:
        for name, least in (("minimum_clients", 2), ("colluders", 1)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"{self.folder}: '{name}' must be at least {least}, got {getattr(self, name)}; "
                    "correct the file"
                )

    @property
    def threshold(self) -> int:
        """The smallest number of clients: the honest ones and those that may be dishonest."""
        return self.minimum_clients + self.colluders

    @property
    def signing_key(self) -> TrustKey:
        """The operator's signing key."""
        return TrustKey(read_secret(self.folder / _SIGNING))

    @property
    def admission_key(self) -> TrustKey:
        """The key by which the operator admits clients."""
        return TrustKey(read_secret(self.folder / _ADMISSION))

    @property
    def operators(self) -> PinnedOperators:
        """The cards of both operators; raises DeploymentError if they are not paired yet."""
        path = self.folder / OPERATORS_FILE
        if not path.is_file():
            raise DeploymentError(
                f"{self.folder} does not know the other operator yet; run 'sottovoce deploy pin "
                f"{self.folder} CARD' with the other operator's card of public keys"
            )
        return PinnedOperators.read(path)

    def clients(self) -> dict[str, bytes]:
        """Return the keys of the clients that this operator has admitted, by name."""
        path = self.folder / _CLIENTS
        if not path.exists():
            return {}
        with files.explain_os_errors("read", path):
            rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
        return {name: bytes.fromhex(key) for name, key in rows}

    def add_clients(self, keys: Mapping[str, bytes]) -> None:
        """Add clients to the list of those admitted.

        Raises:
            DeploymentError: A client was admitted with another key, or a key under another name.
        """
        with self._changing_clients() as known:
            names = {key: name for name, key in known.items()}
            for name, key in keys.items():
                if known.get(name, key) != key or names.get(key, name) != name:
                    raise DeploymentError(
                        f"'{name}' or its key was admitted before with another key or name; a "
                        "client that lost its key needs a new name"
                    )
                known[name], names[key] = key, name

    def remove_clients(self, names: Sequence[str]) -> None:
        """Remove clients from the list of those admitted; all of them, or none.

        Raises:
            DeploymentError: A client is not on the list.
        """
        with self._changing_clients() as left:
            for name in names:
                if left.pop(name, None) is None:
                    raise DeploymentError(
                        f"{self.folder} has not admitted a client '{name}', so nothing was "
                        f"changed; use the names in {self.folder / _CLIENTS}"
                    )

    @contextlib.contextmanager
    def _changing_clients(self) -> Iterator[dict[str, bytes]]:
        """Yield the list to be changed, and write it at once; no other process changes it then."""
        with files.locked(self.folder / _SIGNING):
            found = self.clients()
            yield found
            rows = "".join(f"{name} {key.hex()}\n" for name, key in found.items())
            files.write_atomic(self.folder / _CLIENTS, rows.encode(), mode=files.PRIVATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayFolder(OperatorFolder):
    """The relay's folder.

    Attributes:
        address: Where devices and the collector reach the relay.
        link: The folder of the federation whose sites the relay serves through their link, too;
            None if there is none.
    """

    address: Address
    link: Path | None = None

    @classmethod
    def read(cls, folder: Path | str) -> Self:
        """Return the relay of a folder; raise ConfigError if it has no valid relay.toml."""
        folder = Path(folder).absolute()
        path = folder / RELAY_FILE
        if not path.is_file():
            raise ConfigError(
                f"{folder} is not a relay's folder: it has no {RELAY_FILE}; make one with "
                "'sottovoce deploy init-relay'"
            )
        table = read_section(path, _RelayTable)
        return cls(
            folder=folder,
            address=Address.parse(table.address, where=f"{path}: "),
            link=None if table.link is None else (folder / table.link).resolve(),
            minimum_clients=table.minimum_clients,
            colluders=table.colluders,
        )

    @property
    def state_folder(self) -> Path:
        """The folder relay/ with the state, the log and the lock of the program."""
        return self.folder / "relay"

    @property
    def certificate(self) -> Path:
        """The TLS certificate, which clients pin."""
        return self.folder / "tls.crt"

    @property
    def certificate_key(self) -> Path:
        """The private key of the TLS certificate."""
        return self.folder / "tls.key"

    @property
    def encryption_key(self) -> HpkeKey:
        """The key to which reports are encrypted."""
        return HpkeKey(read_secret(self.folder / _ENCRYPTION))

    @property
    def card(self) -> RelayCard:
        """The relay's own card."""
        return RelayCard.read(self.folder / RELAY_CARD)

    def pin(self, card: Path) -> PinnedOperators:
        """Write the collector's card and return both; raise DeploymentError if one is pinned."""
        return _pin(self.folder, self.card, CollectorCard.read(card), card, COLLECTOR_CARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorFolder(OperatorFolder):
    """The collector's folder.

    Attributes:
        confirm_seconds: How long the clients of a shuffle may confirm that their message is in it.
        slack: How many of them may fail to.
    """

    confirm_seconds: int
    slack: int

    @classmethod
    def read(cls, folder: Path | str) -> Self:
        """Return the collector of a folder; raise ConfigError if it has no collector.toml."""
        folder = Path(folder).absolute()
        path = folder / COLLECTOR_FILE
        if not path.is_file():
            raise ConfigError(
                f"{folder} is not a collector's folder: it has no {COLLECTOR_FILE}; make one with "
                "'sottovoce deploy init-collector'"
            )
        table = read_section(path, _CollectorTable)
        return cls(
            folder=folder,
            minimum_clients=table.minimum_clients,
            colluders=table.colluders,
            confirm_seconds=table.confirm_seconds,
            slack=table.slack,
        )

    @property
    def state_folder(self) -> Path:
        """The folder collector/ with the state of the attempts and the lock."""
        return self.folder / "collector"

    @property
    def runs_folder(self) -> Path:
        """The default folder of runs."""
        return self.folder / "runs"

    @property
    def card(self) -> CollectorCard:
        """The collector's own card."""
        return CollectorCard.read(self.folder / COLLECTOR_CARD)


def create_relay(
    folder: Path, *, address: Address, hosts: Sequence[str] = (), days: int = CERTIFICATE_DAYS
) -> RelayFolder:
    """Create a relay's folder with new keys, a certificate and a new federation id.

    Args:
        folder: The folder, which must be empty or not exist.
        address: Where devices and the collector reach the relay.
        hosts: Further names of the relay, for its certificate.
        days: How long the certificate is valid. Clients pin it, so a new one must reach all.

    Raises:
        DeploymentError: The folder has any content.
    """
    names = [address.host, *(host_name(host) for host in hosts)]
    make_folder(folder)
    signing, admission = _create_keys(folder)
    encryption = HpkeKey.generate()
    write_secret(folder / _ENCRYPTION, encryption.secret)
    certificate = folder / "tls.crt"
    certificates.create_pinned_certificate(
        certificate, folder / "tls.key", hosts=list(dict.fromkeys(names)), days=days
    )
    card = RelayCard(
        federation=secrets.token_bytes(FEDERATION_ID_BYTES),
        address=address,
        signing_key=signing.public,
        encryption_key=encryption.public,
        admission_key=admission.public,
        certificate=certificate.read_text(encoding="ascii"),
    )
    certificates.write_new(folder / RELAY_CARD, card.text().encode())
    (folder / "relay").mkdir(mode=files.PRIVATE_FOLDER)
    text = f'address = "{address}"  # where devices and the collector reach the relay\n'
    certificates.write_new(folder / RELAY_FILE, (text + _POLICY + _LINK).encode())
    return RelayFolder.read(folder)


def create_collector(folder: Path, *, relay: Path) -> CollectorFolder:
    """Create a collector's folder with new keys, for the relay whose card is given.

    Args:
        folder: The folder, which must be empty or not exist.
        relay: The relay's card, the file relay.pub.

    Raises:
        ConfigError: The file is not a relay's card.
        DeploymentError: The folder has any content.
    """
    other = RelayCard.read(relay)
    make_folder(folder)
    signing, admission = _create_keys(folder)
    card = CollectorCard(
        federation=other.federation, signing_key=signing.public, admission_key=admission.public
    )
    certificates.write_new(folder / COLLECTOR_CARD, card.text().encode())
    certificates.write_new(folder / RELAY_CARD, other.text().encode())
    PinnedOperators(relay=other, collector=card).write(folder / OPERATORS_FILE)
    for name in ("collector", "runs"):
        (folder / name).mkdir(mode=files.PRIVATE_FOLDER)
    certificates.write_new(folder / COLLECTOR_FILE, (_POLICY + _SHUFFLES).encode())
    return CollectorFolder.read(folder)


def _pin(
    folder: Path, relay: RelayCard, collector: CollectorCard, card: Path, name: str
) -> PinnedOperators:
    """Write the other operator's card and operators.toml into a folder that has neither."""
    pinned = PinnedOperators(relay=relay, collector=collector)
    target = folder / name
    if target.exists() and CollectorCard.read(target) != collector:
        raise DeploymentError(
            f"{folder} has pinned another collector, and a relay serves one; create a new relay's "
            f"folder for {card}"
        )
    if not target.exists():
        certificates.write_new(target, collector.text().encode())
    pinned.write(folder / OPERATORS_FILE)
    return pinned


def _create_keys(folder: Path) -> tuple[TrustKey, TrustKey]:
    keys = TrustKey.generate(), TrustKey.generate()
    for name, key in zip((_SIGNING, _ADMISSION), keys, strict=True):
        write_secret(folder / name, key.secret)
    return keys


def write_secret(path: Path, secret: bytes) -> None:
    """Write a private key to a new file; raise DeploymentError if it exists."""
    certificates.write_secret(path, f"{secret.hex()}\n".encode())


def read_secret(path: Path) -> bytes:
    """Return the 32 bytes of a private key; raise DeploymentError if the file has none."""
    with files.explain_os_errors("read", path):
        text = path.read_text(encoding="ascii", errors="replace").strip()
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise DeploymentError(f"{path} has no key; restore the file from a backup")
    return secret


_POLICY = """\
# This operator takes part in no sum of fewer clients than minimum_clients + colluders.
minimum_clients = 2  # honest ones, by which the guarantee is computed
colluders = 1        # admitted clients that may be dishonest; published models reach every client
"""

_LINK = """\
# The sites of this federation answer, too, without a connection of their own to the relay.
# link = "../federation"  # the folder of 'sottovoce deploy init'; its link runs on this machine
"""

_SHUFFLES = """\
# In a shuffle clients confirm within this time that their message is in the list.
confirm_seconds = 60
slack = 0            # confirmations that may be missing; the relay may add as many messages
"""
