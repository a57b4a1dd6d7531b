"""The public keys of the two operators, as files that they exchange and that devices pin.

Relay and collector each write a card. Both cards together make `operators.toml`, which every device
pins. Its digest is compared out of band, by telephone or in person, by both operators and by those
who set up devices: who replaces this file can read
everything.
"""

import hashlib
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sottovoce.core import files
from sottovoce.core.errors import ConfigError, ParameterError
from sottovoce.deployment.machines.address import Address
from sottovoce.deployment.machines.federation import read_section, read_table
from sottovoce.protocol.secure.encoding import encode
from sottovoce.protocol.secure.operators import Operators
from sottovoce.protocol.secure.roster import FEDERATION_ID_BYTES, PUBLIC_KEY_BYTES
from sottovoce.runs.sections import Section

_GROUP = 8  # Digits of a digest that are read out together.


class _RelayTable(Section):
    federation: str
    address: str
    signing_key: str
    encryption_key: str
    admission_key: str
    certificate: str


class _CollectorTable(Section):
    federation: str
    signing_key: str
    admission_key: str


class _OperatorsTable(Section):
    relay: _RelayTable
    collector: _CollectorTable


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayCard:
    """What a relay publishes.

    Attributes:
        federation: The federation's id, 16 random bytes.
        address: Where the relay listens.
        signing_key: Its Ed25519 public key.
        encryption_key: Its X25519 public key, to which reports are encrypted.
        admission_key: The Ed25519 public key by which it admits clients.
        certificate: Its TLS certificate in PEM.
    """

    federation: bytes
    address: Address
    signing_key: bytes
    encryption_key: bytes
    admission_key: bytes
    certificate: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the card in a file; raise ConfigError if it is none."""
        table = read_table(path)
        if "signing_key" in table and "certificate" not in table:
            raise ConfigError(
                f"{path} is a collector's card; give the relay's, the file relay.pub that "
                "'sottovoce deploy init-relay' made"
            )
        return cls._of(read_section(path, _RelayTable), path)

    @classmethod
    def _of(cls, table: _RelayTable, path: Path) -> Self:
        return cls(
            federation=hex_field(table.federation, FEDERATION_ID_BYTES, "federation", path),
            address=Address.parse(table.address, where=f"{path}: "),
            signing_key=_key(table.signing_key, "signing_key", path),
            encryption_key=_key(table.encryption_key, "encryption_key", path),
            admission_key=_key(table.admission_key, "admission_key", path),
            certificate=table.certificate,
        )

    def text(self) -> str:
        """Return the card as lines of TOML."""
        lines = [
            f'federation = "{self.federation.hex()}"',
            f'address = "{self.address}"',
            f'signing_key = "{self.signing_key.hex()}"',
            f'encryption_key = "{self.encryption_key.hex()}"',
            f'admission_key = "{self.admission_key.hex()}"',
            f'certificate = """\n{self.certificate.strip()}\n"""',
        ]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorCard:
    """What a collector publishes.

    Attributes:
        federation: The federation's id, which the relay has drawn.
        signing_key: Its Ed25519 public key.
        admission_key: The Ed25519 public key by which it admits clients.
    """

    federation: bytes
    signing_key: bytes
    admission_key: bytes

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the card in a file; raise ConfigError if it is none."""
        if "certificate" in read_table(path):
            raise ConfigError(
                f"{path} is a relay's card; give the collector's, the file collector.pub that "
                "'sottovoce deploy init-collector' made"
            )
        return cls._of(read_section(path, _CollectorTable), path)

    @classmethod
    def _of(cls, table: _CollectorTable, path: Path) -> Self:
        return cls(
            federation=hex_field(table.federation, FEDERATION_ID_BYTES, "federation", path),
            signing_key=_key(table.signing_key, "signing_key", path),
            admission_key=_key(table.admission_key, "admission_key", path),
        )

    def text(self) -> str:
        """Return the card as lines of TOML."""
        lines = [
            f'federation = "{self.federation.hex()}"',
            f'signing_key = "{self.signing_key.hex()}"',
            f'admission_key = "{self.admission_key.hex()}"',
        ]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedOperators:
    """The cards of both operators, as a device pins them.

    Attributes:
        relay: The relay's card.
        collector: The collector's card.
    """

    relay: RelayCard
    collector: CollectorCard

    def __post_init__(self) -> None:
        if self.relay.federation != self.collector.federation:
            raise ConfigError(
                "relay and collector belong to different federations; make the collector's folder "
                "with this relay's relay.pub"
            )
        try:
            self.keys  # noqa: B018  (raises if two keys are the same)
        except ParameterError as error:
            raise ConfigError(str(error)) from None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the operators in a file; raise ConfigError if it has none."""
        table = read_section(path, _OperatorsTable)
        return cls(
            relay=RelayCard._of(table.relay, path),
            collector=CollectorCard._of(table.collector, path),
        )

    def write(self, path: Path) -> None:
        """Write operators.toml, over an existing one."""
        text = (
            "# The public keys of relay and collector. Compare the digest with both operators.\n"
            f"# digest: {self.digest}\n\n"
            f"[relay]\n{self.relay.text()}\n[collector]\n{self.collector.text()}"
        )
        files.write_atomic(path, text.encode())

    @property
    def keys(self) -> Operators:
        """The public keys by which statements of the operators are checked."""
        return Operators(
            federation=self.relay.federation,
            relay=self.relay.signing_key,
            relay_hpke=self.relay.encryption_key,
            collector=self.collector.signing_key,
            relay_admission=self.relay.admission_key,
            collector_admission=self.collector.admission_key,
        )

    @property
    def digest(self) -> str:
        """The digest of all keys and of the certificate, to compare out of band."""
        certificate = self.relay.certificate.strip()
        content = encode("sottovoce/pinned-operators/1", self.keys.digest, certificate)
        return show_digest(hashlib.sha256(content).digest())


def show_digest(digest: bytes) -> str:
    """Return a digest as groups of eight digits, which can be read out."""
    return " ".join(textwrap.wrap(digest.hex(), _GROUP))


def _key(text: str, name: str, path: Path) -> bytes:
    return hex_field(text, PUBLIC_KEY_BYTES, name, path)


def hex_field(text: str, size: int, name: str, path: Path) -> bytes:
    """Return the bytes of a field in hexadecimal digits; raise ConfigError if it has no such."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != size:
        raise ConfigError(
            f"{path}: '{name}' must be {size} bytes in hexadecimal digits; copy the file again "
            "from the operator that made it"
        )
    return found
