"""How the server of a pairwise sum reconstructs secrets from answers of which some may be wrong.

What is reconstructed is compared with what its owner has signed, so a wrong secret is never used.
Where shares do not fit, either who dealt them or who answered them lied, and it cannot be told
which: both are named as a pair.
"""

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.core.errors import AbandonedError, WireError
from sottovoce.protocol.secure import pairwise_keys as keys
from sottovoce.protocol.secure.masks import MaskedSum
from sottovoce.protocol.secure.pairwise_messages import AnswerMessage, KeysMessage
from sottovoce.protocol.secure.shamir import as_secret, read_share, weighted, weights_at

_MOST_TRIES = 200  # Sets of answers that are tried for one secret, each time an answer comes.


@dataclass(slots=True)
class _Dealt:
    """The answered shares of one secret of one site.

    Attributes:
        check: Returns whether a secret is the one that the dealer has committed to.
        shares: Values by the index of who answered.
        secret: The secret, once it is found.
    """

    check: Callable[[bytes], bool]
    shares: dict[int, int] = field(default_factory=dict, repr=False)
    secret: bytes | None = field(default=None, repr=False)


class SecretReconstruction:
    """The secrets that unmask a sum.

    Args:
        plan: Digest of the attempt.
        entries: What each site of the list has announced, by name in sorted order.
        survivors: The sites whose vectors are in the sum.
        dropped: The sites of the box whose vectors are not.
        threshold: How many shares determine a secret.
    """

    def __init__(
        self,
        *,
        plan: bytes,
        entries: Mapping[str, KeysMessage],
        survivors: Sequence[str],
        dropped: Sequence[str],
        threshold: int,
    ) -> None:
        self._plan, self._entries, self._threshold = plan, entries, threshold
        self._index = {name: index for index, name in enumerate(entries, start=1)}
        self._names = {index: name for name, index in self._index.items()}
        self._seeds = {name: _Dealt(self._fits_seed(entries[name])) for name in survivors}
        self._keys = {name: _Dealt(self._fits_key(entries[name])) for name in dropped}
        self._answered: list[int] = []
        self._weights: dict[tuple[tuple[int, ...], int], list[int]] = {}
        self.disputes: set[tuple[str, str]] = set()

    def _fits_seed(self, entry: KeysMessage) -> Callable[[bytes], bool]:
        return lambda seed: keys.seed_commitment(self._plan, entry.name, seed) == entry.commitment

    def _fits_key(self, entry: KeysMessage) -> Callable[[bytes], bool]:
        def fits(secret: bytes) -> bool:
            key = keys.mask_private_key(self._plan, entry.name, secret)
            return keys.public_bytes(key) == entry.mask_key

        return fits

    def add(self, name: str, answer: AnswerMessage) -> None:
        """Take the answer of a survivor.

        Raises:
            WireError: It has another number of shares than there are survivors and dropouts.
        """
        expected = len(self._seeds), len(self._keys)
        if (len(answer.seed_shares), len(answer.key_shares)) != expected:
            raise WireError(
                f"expected shares of {expected[0]} seeds and of {expected[1]} keys, got "
                f"{len(answer.seed_shares)} and {len(answer.key_shares)}"
            )
        index = self._index[name]
        answered = (*answer.seed_shares, *answer.key_shares)
        for (_, dealt), share in zip(self._all(), answered, strict=True):
            dealt.shares[index] = read_share(share)
        self._answered.append(index)

    def complete(self) -> bool:
        """Try to find the missing secrets; return whether all are found."""
        if len(self._answered) < self._threshold:
            return False
        chosen = next(self._sets())
        for _, dealt in self._all():
            if dealt.secret is None:
                dealt.secret = self._secret(dealt, chosen)
        # The first secret that is not found ends it: the sum needs all, and liars cost time.
        return all(
            dealt.secret is not None or self._search(name, dealt) for name, dealt in self._all()
        )

    @property
    def missing(self) -> tuple[str, ...]:
        """The sites of which a secret is not found."""
        return tuple(name for name, dealt in self._all() if dealt.secret is None)

    def seed(self, survivor: str) -> bytes:
        """Return the seed of a survivor's own mask."""
        return _found(self._seeds[survivor])

    def mask_key(self, dropped: str) -> X25519PrivateKey:
        """Return the private key of the masks of a site that dropped out."""
        return keys.mask_private_key(self._plan, dropped, _found(self._keys[dropped]))

    def _all(self) -> Iterator[tuple[str, _Dealt]]:
        return itertools.chain(self._seeds.items(), self._keys.items())

    def _search(self, name: str, dealt: _Dealt) -> bool:
        """Try sets of answers for one secret; return whether it is found."""
        for chosen in self._sets():
            dealt.secret = self._secret(dealt, chosen)
            if dealt.secret is not None:
                self._name_disputes(name, dealt, chosen)
                return True
        return False

    def _secret(self, dealt: _Dealt, chosen: tuple[int, ...]) -> bytes | None:
        """Return the secret that a set of answers gives; None if it is not the dealer's."""
        value = weighted(self._weights_of(chosen), [dealt.shares[i] for i in chosen])
        try:
            secret = as_secret(value)
        except WireError:
            return None
        return secret if dealt.check(secret) else None

    def _sets(self) -> Iterator[tuple[int, ...]]:
        """Yield sets of answers to try: undisputed ones, then with one replaced, then any."""
        disputed = [answerer for _, answerer in self.disputes]
        order = sorted(self._answered, key=lambda i: (disputed.count(self._names[i]), i))
        first, others = order[: self._threshold], order[self._threshold :]
        replaced = (
            sorted([*first[:place], other, *first[place + 1 :]])
            for other in others
            for place in range(self._threshold)
        )
        draw = secrets.SystemRandom().sample
        drawn = (sorted(draw(order, self._threshold)) for _ in range(_MOST_TRIES if others else 0))
        limited = itertools.islice(replaced, _MOST_TRIES)
        return map(tuple, itertools.chain([sorted(first)], limited, drawn))

    def _weights_of(self, chosen: tuple[int, ...], point: int = 0) -> list[int]:
        if (chosen, point) not in self._weights:
            if len(self._weights) > 2 * _MOST_TRIES:
                self._weights.clear()
            self._weights[chosen, point] = weights_at(chosen, point)
        return self._weights[chosen, point]

    def _name_disputes(self, name: str, dealt: _Dealt, chosen: tuple[int, ...]) -> None:
        values = [dealt.shares[i] for i in chosen]
        for index, share in dealt.shares.items():
            if weighted(self._weights_of(chosen, index), values) != share:
                self.disputes.add((name, self._names[index]))


def _found(dealt: _Dealt) -> bytes:
    if dealt.secret is None:
        raise AbandonedError("a secret of the sum is missing; wait for more answers")
    return dealt.secret


def remove_masks(
    sums: Sequence[MaskedSum],
    reconstruction: SecretReconstruction,
    *,
    entries: Mapping[str, KeysMessage],
    survivors: Sequence[str],
    dropped: Sequence[str],
    box_digest: bytes,
) -> None:
    """Subtract all masks that do not cancel from the sums of the uplinks, in place."""
    for name in survivors:
        seed = reconstruction.seed(name)
        for uplink, total in enumerate(sums):
            total.subtract_mask(keys.own_mask_key(seed, box_digest, name, uplink))
    for gone in dropped:
        key = reconstruction.mask_key(gone)
        for name in survivors:
            shared = keys.exchange(key, entries[name].mask_key)
            added = keys.adds(name, gone)
            for uplink, total in enumerate(sums):
                mask = keys.pair_mask_key(shared, box_digest, entries[name], entries[gone], uplink)
                (total.subtract_mask if added else total.add_mask)(mask)
