"""Public-key encryption to an operator: HPKE (RFC 9180), base mode.

X25519, HKDF-SHA256 and ChaCha20-Poly1305. What a ciphertext belongs to stands in `info`; there are
no associated data. A ciphertext is 48 bytes longer than what it hides.
"""

from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from sottovoce.core.errors import WireError

OVERHEAD_BYTES = 48
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


class HpkeKey:
    """A private key that opens ciphertexts.

    Args:
        secret: Its 32 bytes.
    """

    def __init__(self, secret: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(secret)

    @classmethod
    def generate(cls) -> Self:
        """Return a new key, from the operating system's randomness."""
        return cls(X25519PrivateKey.generate().private_bytes_raw())

    @property
    def secret(self) -> bytes:
        """The 32 bytes of the private key."""
        return self._key.private_bytes_raw()

    @property
    def public(self) -> bytes:
        """The 32 bytes of the public key."""
        return self._key.public_key().public_bytes_raw()

    def open(self, ciphertext: bytes, info: bytes) -> bytes:
        """Return what a ciphertext hides.

        Raises:
            WireError: It was not sealed to this key with this `info`.
        """
        try:
            return _SUITE.decrypt(ciphertext, self._key, info)
        except (InvalidTag, ValueError):
            raise WireError("expected a ciphertext that this key opens") from None


def seal(public_key: bytes, content: bytes, info: bytes) -> bytes:
    """Return `content` encrypted to a public key, 48 bytes longer.

    Args:
        public_key: The key of the receiver.
        content: What only the receiver may read.
        info: What the ciphertext belongs to; the receiver must know it.

    Returns:
        The ciphertext.

    Raises:
        WireError: The public key is none.
    """
    try:
        return _SUITE.encrypt(content, X25519PublicKey.from_public_bytes(public_key), info)
    except ValueError:
        raise WireError("expected a public key of X25519, got other bytes") from None


def check_public(public_key: bytes) -> None:
    """Raise WireError unless something can be sealed to a public key."""
    seal(public_key, b"", b"")
