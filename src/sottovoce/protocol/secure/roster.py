"""The parties of a federation with their keys, and the signatures by which they are known.

Every site has an Ed25519 key of its own for these protocols, in `trust.key`; it is not the key of
its Flower node. A roster lists the names and public keys of all sites. Its digest is compared out
of band, by telephone or in person, and pinned in each site's own file: a roster that a server sends
is never read.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError, WireError
from sottovoce.protocol.secure.encoding import Field, Protocol, encode, labeled, sorted_names

FEDERATION_ID_BYTES = 16
PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
_LARGEST_ROSTER = 10_000


class TrustKey:
    """A party's signing key.

    Args:
        secret: The 32 bytes of the private key.
    """

    def __init__(self, secret: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(secret)

    @classmethod
    def generate(cls) -> Self:
        """Return a new key, from the operating system's randomness."""
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    @property
    def secret(self) -> bytes:
        """The 32 bytes of the private key."""
        return self._key.private_bytes_raw()

    @property
    def public(self) -> bytes:
        """The 32 bytes of the public key."""
        return self._key.public_key().public_bytes_raw()

    def sign(self, protocol: Protocol, label: str, *fields: Field) -> bytes:
        """Return the signature of a statement, 64 bytes."""
        return self._key.sign(labeled(protocol, label, *fields))


def check_signature(
    public_key: bytes, signature: bytes, protocol: Protocol, label: str, *fields: Field
) -> None:
    """Raise unless a signature of a statement is valid under a public key.

    Raises:
        WireError: It is not; the message names the statement's label and no field of it.
    """
    try:
        key = Ed25519PublicKey.from_public_bytes(public_key)
        key.verify(signature, labeled(protocol, label, *fields))
    except (InvalidSignature, ValueError):
        raise WireError(f"expected a valid signature of the statement '{label}'") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """The sites of a federation and their public keys.

    Attributes:
        federation: A random number that identifies the federation, 16 bytes.
        version: Number of this roster, from 1; replacing a key makes a new version.
        keys: The Ed25519 public key of each site by its name, in the order of the names' bytes.
    """

    federation: bytes
    version: int
    keys: Mapping[str, bytes]

    def __post_init__(self) -> None:
        if len(self.federation) != FEDERATION_ID_BYTES:
            raise ParameterError(
                f"a federation's id must have {FEDERATION_ID_BYTES} bytes, got "
                f"{len(self.federation)}"
            )
        parameter_rules.integer("the roster's version", self.version, low=1, high=2**32)
        if not 1 <= len(self.keys) <= _LARGEST_ROSTER:
            raise ParameterError(
                f"a roster must have 1 to {_LARGEST_ROSTER} sites, got {len(self.keys)}"
            )
        names = sorted_names(self.keys)
        object.__setattr__(self, "keys", {name: self.keys[name] for name in names})
        for name, key in self.keys.items():
            if len(key) != PUBLIC_KEY_BYTES:
                raise ParameterError(
                    f"the key of '{name}' must have {PUBLIC_KEY_BYTES} bytes, got {len(key)}"
                )
        if len(set(self.keys.values())) < len(self.keys):
            raise ParameterError(
                "two sites of a roster have the same key, but each must have its own"
            )

    @property
    def digest(self) -> bytes:
        """The SHA-256 digest by which the roster is pinned, 32 bytes."""
        entries = tuple((name, key) for name, key in self.keys.items())
        content = encode("sottovoce/roster/1", self.federation, self.version, entries)
        return hashlib.sha256(content).digest()
