"""What both sides of the secure sum by pairwise masks derive from keys and transcripts.

The first transcript covers the attempt and the list of keys; the second covers the first and the
sites that go on. Every key is bound to one of them, so sites to which the server tells different
things derive different masks and cannot open each other's shares.
"""

from collections.abc import Mapping, Sequence

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from sottovoce.core.errors import WireError
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.encoding import Protocol, derive_key, digest
from sottovoce.protocol.secure.pairwise_messages import KeyList, KeysMessage
from sottovoce.protocol.secure.roster import Roster, check_signature

PAIRWISE = Protocol.PAIRWISE
_FIELD_PRIME = 2**255 - 19  # of the coordinates of X25519


def seed_commitment(plan: bytes, name: str, seed: bytes) -> bytes:
    """Return the digest by which a site commits to the seed of its own mask."""
    return digest(PAIRWISE, "commitment", plan, name, seed)


def mask_private_key(plan: bytes, name: str, secret: bytes) -> X25519PrivateKey:
    """Return the private key of a site's masks with its peers, from a secret of 31 bytes."""
    return X25519PrivateKey.from_private_bytes(derive_key(secret, PAIRWISE, "mask key", plan, name))


def public_bytes(key: X25519PrivateKey) -> bytes:
    """Return the 32 bytes of the public key."""
    return key.public_key().public_bytes_raw()


def exchange(key: X25519PrivateKey, peer: bytes) -> bytes:
    """Return the secret that a private key shares with a public one.

    Raises:
        WireError: The public key has low order, so that everyone would know the secret.
    """
    try:
        return key.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError:
        raise WireError("a public key has low order, so it agrees on no secret") from None


def list_transcript(plan: bytes, threshold: int, listed: KeyList) -> bytes:
    """Return the digest of the attempt and of the keys of its sites."""
    statements = tuple(entry.statement for entry in listed.entries)
    return digest(PAIRWISE, "list", plan, threshold, statements)


def box_transcript(list_digest: bytes, members: Sequence[str]) -> bytes:
    """Return the digest of the first transcript and of the sites that go on."""
    return digest(PAIRWISE, "box", list_digest, tuple(members))


def share_key(
    shared: bytes, list_digest: bytes, sender: KeysMessage, receiver: KeysMessage
) -> bytes:
    """Return the key under which one site encrypts its one message of shares to another."""
    return derive_key(
        shared,
        PAIRWISE,
        "share key",
        list_digest,
        sender.name,
        sender.channel_key,
        receiver.name,
        receiver.channel_key,
    )


def own_mask_key(seed: bytes, box_digest: bytes, name: str, uplink: int) -> bytes:
    """Return the key of the mask that only one site adds."""
    return derive_key(seed, PAIRWISE, "own mask", box_digest, name, uplink)


def pair_mask_key(
    shared: bytes, box_digest: bytes, one: KeysMessage, other: KeysMessage, uplink: int
) -> bytes:
    """Return the key of the mask that one of two sites adds and the other subtracts."""
    first, second = (one, other) if adds(one.name, other.name) else (other, one)
    return derive_key(
        shared,
        PAIRWISE,
        "pair mask",
        box_digest,
        first.name,
        first.mask_key,
        second.name,
        second.mask_key,
        uplink,
    )


def adds(name: str, peer: str) -> bool:
    """Return whether a site adds its mask with a peer; else it subtracts it."""
    return name.encode() < peer.encode()


def vectors_digest(vectors: Sequence[bytes]) -> bytes:
    """Return the digest of a site's masked vectors."""
    return digest(PAIRWISE, "vectors", *vectors)


def survivors_digest(box_digest: bytes, survivors: Sequence[str]) -> bytes:
    """Return the digest of whose vectors are in the sum."""
    return digest(PAIRWISE, "chosen", box_digest, tuple(survivors))


def check_keys(keys: KeysMessage, roster: Roster, plan: bytes) -> None:
    """Raise WireError unless a site of the roster has signed its keys for this attempt."""
    if keys.name not in roster.keys:
        raise WireError(f"the site '{keys.name}' is not in the roster")
    try:
        check_signature(
            roster.keys[keys.name], keys.signature, PAIRWISE, "keys", plan, *keys.statement
        )
    except WireError as error:
        raise WireError(f"keys of '{keys.name}': {error}") from None
    for key in (keys.channel_key, keys.mask_key):
        if int.from_bytes(key, "little") >= _FIELD_PRIME:
            raise WireError(f"a public key of '{keys.name}' is not in its only valid form")


def check_order(keys: KeysMessage) -> None:
    """Raise WireError if a public key of a site has low order, so that it agrees on no secret."""
    probe = X25519PrivateKey.generate()
    for key in (keys.channel_key, keys.mask_key):
        exchange(probe, key)


def check_distinct(entries: Sequence[KeysMessage]) -> None:
    """Raise WireError unless all public keys of all sites are distinct."""
    found = [key for entry in entries for key in (entry.channel_key, entry.mask_key)]
    if len(set(found)) < len(found):
        raise WireError("two public keys of the list are equal; each site needs two of its own")


def check_number(attempt: Attempt, sites: int, colluders: int) -> None:
    """Raise WireError unless a sum over enough of `sites` sites protects each of them.

    With 2 * threshold > sites + colluders, two sets of signatures by a threshold of sites have an
    honest signer in common, who signs once, so one sum at most is ever unmasked.
    """
    if not attempt.threshold <= sites <= attempt.most_clients:
        raise WireError(
            f"expected {attempt.threshold} to {attempt.most_clients} sites in the list, got {sites}"
        )
    if 2 * attempt.threshold <= sites + colluders:
        raise WireError(
            f"a threshold of {attempt.threshold} is too low for {sites} sites of which {colluders} "
            f"may collude; expected more than {(sites + colluders) // 2}. Raise it, or ask fewer "
            "sites"
        )


def honest_rows(declared: Mapping[str, int], name: str, honest: int) -> int:
    """Return how many honest persons are in every sum that the persons of a site may be in.

    The server chooses the survivors after the charge, and any of the sites may have lied about its
    persons. Of the other survivors at least `honest` - 1 have told the truth. They have declared no
    fewer than the smallest of all declarations, so a high declaration lowers no charge.

    Args:
        declared: How many persons each site of the list declares.
        name: The site.
        honest: The number of honest sites in a sum, this one included.

    Returns:
        The number of persons.
    """
    others = sorted(count for peer, count in declared.items() if peer != name)
    return declared[name] + sum(others[: honest - 1])


def check_attempt(attempt: Attempt, roster: Roster) -> None:
    """Raise WireError unless an attempt is one of this protocol and of this roster."""
    if attempt.protocol is not PAIRWISE:
        raise WireError(f"expected an attempt of {PAIRWISE}, got {attempt.protocol}")
    if attempt.parties != roster.digest or attempt.federation != roster.federation:
        raise WireError(
            "the attempt names another roster than this party's own; compare the digests of both"
        )
