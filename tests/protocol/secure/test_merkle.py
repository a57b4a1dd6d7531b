"""The tree of RFC 9162 over a list of ciphertexts."""

import pytest

from sottovoce.core.errors import WireError
from sottovoce.protocol.secure.encoding import Protocol, digest
from sottovoce.protocol.secure.merkle import Tree, leaf_digest, top_of


def by_definition(leaves: list[bytes]) -> bytes:
    """Return the top by the recursion of RFC 9162, section 2.1.1."""
    if len(leaves) == 1:
        return digest(Protocol.SHUFFLER, "leaf", leaves[0])
    split = 1
    while 2 * split < len(leaves):
        split *= 2
    halves = by_definition(leaves[:split]), by_definition(leaves[split:])
    return digest(Protocol.SHUFFLER, "node", *halves)


@pytest.mark.parametrize("count", [*range(1, 18), 31, 33])
def test_every_leaf_has_a_path_to_the_top_of_the_definition(count: int) -> None:
    leaves = [number.to_bytes(2, "big") for number in range(count)]
    tree = Tree(leaves)
    assert tree.top == by_definition(leaves)
    for index, leaf in enumerate(leaves):
        path = tree.path(tree.index(leaf_digest(leaf)))
        assert top_of(leaf_digest(leaf), index, count, path) == tree.top
        for wrong in range(count):
            if wrong != index:
                try:
                    assert top_of(leaf_digest(leaf), wrong, count, path) != tree.top
                except WireError:
                    continue


def test_a_path_of_another_length_or_position_is_refused() -> None:
    leaf, path = leaf_digest(b"a"), Tree([b"a", b"b", b"c"]).path(0)
    for index, count, siblings in (
        (3, 3, path),
        (-1, 3, path),
        (0, 0, ()),
        (0, 3, path[:1]),
        (0, 3, (*path, bytes(32))),
        (0, 3, (path[0], bytes(31))),
    ):
        with pytest.raises(WireError):
            top_of(leaf, index, count, siblings)


def test_leaves_nodes_and_roots_have_labels_of_their_own() -> None:
    tree = Tree([b"a", b"b"])
    assert Tree([tree.top]).top != tree.top
    assert Tree([b"a", b"b", b"b"]).top != Tree([b"a", b"b"]).top
