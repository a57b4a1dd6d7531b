"""How a site of a pairwise sum opens its box of shares and masks its codes."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from sottovoce.core.errors import WireError
from sottovoce.mechanisms.packing import UnsignedCodes
from sottovoce.protocol.secure import pairwise_keys as keys
from sottovoce.protocol.secure import pairwise_shares as shares
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.fields import check_same_names
from sottovoce.protocol.secure.masks import MaskedSum
from sottovoce.protocol.secure.pairwise_messages import BoxMessage, KeysMessage
from sottovoce.protocol.secure.pairwise_shares import KeyExchanges, SharePair


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What a site knows once it has the list.

    Attributes:
        entries: What each site of the list has announced, by name.
        digest: The first transcript.
        exchanges: What it shares with its peers.
        own_shares: Its shares of its own secrets.
    """

    entries: Mapping[str, KeysMessage]
    digest: bytes
    exchanges: KeyExchanges
    own_shares: SharePair


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxed:
    """What a site knows once it has its box.

    Attributes:
        members: Names of the sites that go on, sorted.
        digest: The second transcript.
        held: Its shares of the secrets of each of them.
    """

    members: tuple[str, ...]
    digest: bytes
    held: Mapping[str, SharePair]


def open_box(box: BoxMessage, listed: Listed, name: str, threshold: int) -> Boxed:
    """Check the box of the site `name` and decrypt the shares in it.

    Raises:
        WireError: Its sites are too few, not in the list or without this one; or shares are missing
            or do not open.
    """
    members = box.members
    check_within(members, listed.entries, threshold, what="the sites of a box")
    if name not in members:
        raise WireError("a box for this site must count it among its sites")
    peers = tuple(peer for peer in members if peer != name)
    check_same_names([peer for peer, _ in box.sealed], peers, what="encrypted shares")
    held = shares.open_all(
        listed.exchanges.channels, listed.digest, listed.entries, name, box.sealed
    )
    return Boxed(
        members=members,
        digest=keys.box_transcript(listed.digest, members),
        held={**held, name: listed.own_shares},
    )


def masked_vectors(
    attempt: Attempt,
    name: str,
    listed: Listed,
    boxed: Boxed,
    seed: bytes,
    codes: Sequence[UnsignedCodes],
) -> tuple[bytes, ...]:
    """Return the codes of each uplink under the own mask and one with each peer, packed.

    Raises:
        WireError: There are codes of another number of uplinks or coordinates.
    """
    if len(codes) != attempt.uplinks:
        raise WireError(f"expected codes of {attempt.uplinks} uplinks, got {len(codes)}")
    vectors = []
    for uplink, values in enumerate(codes):
        total = MaskedSum(attempt.dimension, attempt.bits)
        total.add_codes(values)
        total.add_mask(keys.own_mask_key(seed, boxed.digest, name, uplink))
        for peer in boxed.members:
            if peer != name:
                shared = listed.exchanges.masks[peer]
                pair = listed.entries[name], listed.entries[peer]
                mask = keys.pair_mask_key(shared, boxed.digest, *pair, uplink)
                (total.add_mask if keys.adds(name, peer) else total.subtract_mask)(mask)
        vectors.append(total.packed())
    return tuple(vectors)


def check_within(found: Sequence[str], whole: Container[str], least: int, *, what: str) -> None:
    """Raise WireError unless names are enough and all of them are among known ones."""
    if len(found) < least:
        raise WireError(f"{what} must be at least {least}, got {len(found)}")
    if any(name not in whole for name in found):
        raise WireError(f"{what} must all be sites of the step before")
