"""The secrets of one site in one attempt, and the shares of them that its peers hold."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from sottovoce.core.errors import WireError
from sottovoce.protocol.secure import pairwise_keys as keys
from sottovoce.protocol.secure.encoding import labeled
from sottovoce.protocol.secure.pairwise_keys import PAIRWISE
from sottovoce.protocol.secure.pairwise_messages import KeysMessage
from sottovoce.protocol.secure.roster import TrustKey
from sottovoce.protocol.secure.shamir import SECRET_BYTES, SHARE_BYTES, read_share, split_secret

_NONCE = bytes(12)  # Every key encrypts one message.


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePair:
    """One site's shares of another site's two secrets.

    Attributes:
        seed: Share of the seed of its own mask.
        mask_secret: Share of the secret behind its mask key.
    """

    seed: bytes = field(repr=False)
    mask_secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyExchanges:
    """What a site shares with each of its peers, by name.

    Attributes:
        channels: The secret under which shares are encrypted.
        masks: The secret from which masks are derived.
    """

    channels: Mapping[str, bytes] = field(repr=False)
    masks: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSecrets:
    """What a site draws for one attempt.

    Attributes:
        channel: The private key under which peers encrypt shares for it.
        mask_secret: The secret of 31 bytes behind its mask key.
        seed: The seed of 31 bytes of its own mask.
    """

    channel: X25519PrivateKey = field(repr=False)
    mask_secret: bytes = field(repr=False)
    seed: bytes = field(repr=False)

    @classmethod
    def draw(cls) -> Self:
        """Draw new secrets from the operating system's randomness."""
        return cls(
            channel=X25519PrivateKey.generate(),
            mask_secret=secrets.token_bytes(SECRET_BYTES),
            seed=secrets.token_bytes(SECRET_BYTES),
        )

    def announce(self, name: str, plan: bytes, rows: int, key: TrustKey) -> KeysMessage:
        """Return the signed public keys and the commitment to the seed."""
        mask_key = keys.public_bytes(keys.mask_private_key(plan, name, self.mask_secret))
        commitment = keys.seed_commitment(plan, name, self.seed)
        channel_key = keys.public_bytes(self.channel)
        statement = name, channel_key, mask_key, commitment, rows
        return KeysMessage(
            name=name,
            channel_key=channel_key,
            mask_key=mask_key,
            commitment=commitment,
            rows=rows,
            signature=key.sign(PAIRWISE, "keys", plan, *statement),
        )

    def exchange_all(
        self, name: str, plan: bytes, entries: Mapping[str, KeysMessage]
    ) -> KeyExchanges:
        """Return the secrets shared with all peers; WireError if a key has low order."""
        mask = keys.mask_private_key(plan, name, self.mask_secret)
        peers = [entry for peer, entry in entries.items() if peer != name]
        return KeyExchanges(
            channels={one.name: keys.exchange(self.channel, one.channel_key) for one in peers},
            masks={one.name: keys.exchange(mask, one.mask_key) for one in peers},
        )

    def deal(self, threshold: int, names: Sequence[str]) -> dict[str, SharePair]:
        """Return the shares of both secrets for each site; indices follow the sorted names."""
        split = [
            split_secret(secret, threshold=threshold, shares=len(names))
            for secret in (self.seed, self.mask_secret)
        ]
        return {
            name: SharePair(seed=seed, mask_secret=mask_secret)
            for name, seed, mask_secret in zip(names, *split, strict=True)
        }


def seal_all(
    channels: Mapping[str, bytes],
    list_digest: bytes,
    entries: Mapping[str, KeysMessage],
    name: str,
    dealt: Mapping[str, SharePair],
) -> tuple[tuple[str, bytes], ...]:
    """Return the encrypted shares for each peer of the site `name`, sorted by name."""
    sealed = []
    for peer, shared in channels.items():
        key = keys.share_key(shared, list_digest, entries[name], entries[peer])
        plain = dealt[peer].seed + dealt[peer].mask_secret
        covered = _covered(list_digest, name, peer)
        sealed.append((peer, ChaCha20Poly1305(key).encrypt(_NONCE, plain, covered)))
    return tuple(sealed)


def open_all(
    channels: Mapping[str, bytes],
    list_digest: bytes,
    entries: Mapping[str, KeysMessage],
    name: str,
    sealed: Sequence[tuple[str, bytes]],
) -> dict[str, SharePair]:
    """Return the shares that peers have encrypted for the site `name`.

    Raises:
        WireError: One was changed, is for another site or another attempt, or holds no shares.
    """
    opened = {}
    for peer, ciphertext in sealed:
        key = keys.share_key(channels[peer], list_digest, entries[peer], entries[name])
        try:
            covered = _covered(list_digest, peer, name)
            plain = ChaCha20Poly1305(key).decrypt(_NONCE, ciphertext, covered)
        except InvalidTag:
            raise WireError(f"the shares from '{peer}' do not open") from None
        pair = SharePair(seed=plain[:SHARE_BYTES], mask_secret=plain[SHARE_BYTES:])
        for share in (pair.seed, pair.mask_secret):
            read_share(share)
        opened[peer] = pair
    return opened


def _covered(list_digest: bytes, sender: str, receiver: str) -> bytes:
    return labeled(PAIRWISE, "shares", list_digest, sender, receiver)
