"""The tree of RFC 9162 over a list of ciphertexts, with labels of its own.

The collector signs the root of the list that it received. Each client checks that its own
ciphertext is under this root, by a path of one digest a level. A node without a sibling moves up
unchanged, so no two lists of different lengths have the same root.
"""

import functools
import hashlib
from collections.abc import Iterable, Sequence
from typing import Self

from sottovoce.core.errors import WireError
from sottovoce.protocol.secure.encoding import DIGEST_BYTES, Protocol, digest, encode


@functools.cache
def _prefix(label: str) -> bytes:
    return encode(f"{Protocol.SHUFFLER} {label}")


def leaf_digest(ciphertext: bytes) -> bytes:
    """Return the digest of one ciphertext, a leaf of the tree."""
    return hashlib.sha256(_prefix("leaf") + encode(ciphertext)).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_prefix("node") + encode(left, right)).digest()


def root_digest(ann: bytes, count: int, top: bytes) -> bytes:
    """Return what the collector signs: the tree's top with the number of leaves and the attempt."""
    return digest(Protocol.SHUFFLER, "root", ann, count, top)


class Tree:
    """The tree over a list.

    Args:
        ciphertexts: The list; not empty.
    """

    def __init__(self, ciphertexts: Iterable[bytes]) -> None:
        self._build([leaf_digest(each) for each in ciphertexts])

    @classmethod
    def of_leaves(cls, leaves: Iterable[bytes]) -> Self:
        """Return the tree over a list of which only the digests are known."""
        found = cls.__new__(cls)
        found._build(list(leaves))
        return found

    def _build(self, leaves: list[bytes]) -> None:
        self._levels = [leaves]
        while len(self._levels[-1]) > 1:
            below = self._levels[-1]
            pairs = zip(below[::2], below[1::2], strict=False)
            above = [_node(left, right) for left, right in pairs]
            self._levels.append(above + below[2 * len(above) :])
        self._places = {leaf: index for index, leaf in enumerate(self._levels[0])}

    @property
    def top(self) -> bytes:
        """The digest of the whole tree."""
        return self._levels[-1][0]

    @property
    def count(self) -> int:
        """The number of leaves."""
        return len(self._levels[0])

    @property
    def leaves(self) -> Sequence[bytes]:
        """The digests of the ciphertexts, in the order of the list."""
        return self._levels[0]

    def index(self, leaf: bytes) -> int:
        """Return the position of a leaf.

        Raises:
            WireError: It is not in the tree.
        """
        if leaf not in self._places:
            raise WireError("expected a leaf of the list, got a digest that is not in it")
        return self._places[leaf]

    def path(self, index: int) -> tuple[bytes, ...]:
        """Return the siblings of a leaf and of the nodes above it, from below."""
        found = []
        for level in self._levels[:-1]:
            if index ^ 1 < len(level):
                found.append(level[index ^ 1])
            index //= 2
        return tuple(found)


def top_of(leaf: bytes, index: int, count: int, path: Sequence[bytes]) -> bytes:
    """Return the top of the tree in which a leaf has this path.

    Args:
        leaf: The leaf's digest.
        index: Its position.
        count: Number of leaves.
        path: The siblings, from below.

    Returns:
        The digest of the whole tree, to be compared with the one that was signed.

    Raises:
        WireError: No tree of `count` leaves has such a path.
    """
    if not 0 <= index < count:
        raise WireError(f"expected a position below {count}, got {index}")
    if any(len(sibling) != DIGEST_BYTES for sibling in path):
        raise WireError(f"expected digests of {DIGEST_BYTES} bytes in a path")
    found, last, siblings = leaf, count - 1, iter(path)
    while last:
        if index % 2:
            found = _node(_next(siblings), found)
        elif index < last:
            found = _node(found, _next(siblings))
        index, last = index // 2, last // 2
    if next(siblings, None) is not None:
        raise WireError("expected the end of a path, got more digests")
    return found


def _next(siblings: Iterable[bytes]) -> bytes:
    for sibling in siblings:
        return sibling
    raise WireError("expected more digests in a path, got its end")
