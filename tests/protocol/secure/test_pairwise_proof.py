"""The proof that the threshold suffices, checked by enumerating what a server can learn.

A server with c' colluding sites tells each honest site which sites go on (its view) and collects
signatures for sets of survivors. From a quorum it learns the seeds of the survivors and the mask
keys of the others of that view. The masked vector of an honest site helps only in a sum in which
all masks between honest sites cancel or are known.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from pairwise_rounds import Round, federation

from sottovoce.protocol.secure import pairwise_keys as keys
from sottovoce.protocol.secure.masks import MaskedSum
from sottovoce.protocol.secure.pairwise_messages import AnswerMessage, Input, Quorum, Survivors
from sottovoce.protocol.secure.pairwise_messages import SurvivorsSignature as Signature
from sottovoce.protocol.secure.shamir import combine

Sites = frozenset[int]
SMALL = [
    (sites, threshold, colluders)
    for sites in range(3, 7)
    for colluders in range(3)
    for threshold in range(1, sites + 1)
    if colluders < threshold and colluders < sites
]
SOUND = [case for case in SMALL if 2 * case[1] > case[0] + case[2]]
BROKEN = [case for case in SMALL if 2 * case[1] == case[0] + case[2]]


def subsets(whole: Sites, least: int) -> Iterator[Sites]:
    """Yield the subsets with at least `least` members."""
    for size in range(least, len(whole) + 1):
        yield from map(frozenset, itertools.combinations(sorted(whole), size))


def quorums(sites: int, threshold: int, colluders: int) -> Iterator[tuple[Sites, Sites]]:
    """Yield pairs of disjoint sets of honest sites that can sign two different statements."""
    honest = frozenset(range(sites - colluders))
    needed = threshold - colluders
    for signers in subsets(honest, needed):
        for others in subsets(honest - signers, needed):
            yield signers, others


def answered(
    sites: int, threshold: int, colluders: int
) -> Iterator[tuple[Sites, Sites, dict[int, Sites]]]:
    """Yield a view and its survivors that were answered, and the views of honest survivors.

    Sites are numbered so that honest ones come first. Which honest sites signed does not matter
    but for their number: the others may have any view of their own.
    """
    everyone = frozenset(range(sites))
    honest = sites - colluders
    views = {i: [v for v in subsets(everyone, threshold) if i in v] for i in range(honest)}
    for view in subsets(everyone, threshold):
        for survivors in subsets(view, threshold):
            members = sorted(i for i in survivors if i < honest)
            for signers in itertools.combinations(members, threshold - colluders):
                others = [i for i in members if i not in signers]
                for told in itertools.product(*(views[i] for i in others)):
                    yield view, survivors, {
                        **dict.fromkeys(signers, view), **dict(zip(others, told, strict=True))
                    }  # fmt: skip


def smallest_sum(site: int, known: Sites, told: dict[int, Sites], honest: int) -> Sites | None:
    """Return the smallest set with this site whose sum is learned; None if there is none.

    Args:
        site: The site.
        known: Sites whose mask keys are known, honest or not.
        told: The views of honest survivors; the seeds of others stay unknown.
        honest: The number of honest sites.
    """
    found: set[int] = set()
    waiting = [site]
    while waiting:
        one = waiting.pop()
        if one not in told:
            return None  # the seed of its own mask is unknown
        found.add(one)
        for peer in told[one]:
            if peer >= honest or peer in known or peer in found:
                continue
            waiting.append(peer)
    if any(told[i] != told[j] for i in found for j in found if j in told[i] and j not in known):
        return None  # two views have two masks between the sites, which do not cancel
    return frozenset(found)


def fewest_in_a_sum(sites: int, threshold: int, colluders: int) -> int:
    """Return the smallest number of honest sites in a sum that a server can learn."""
    honest = sites - colluders
    fewest = sites
    for view, survivors, told in answered(sites, threshold, colluders):
        known = frozenset(i for i in view - survivors if i < honest)
        sums = [smallest_sum(site, known, told, honest) for site in told]
        fewest = min([fewest, *(len(found) for found in sums if found is not None)])
        # The smallest sums are disjoint: one of them is all that the server learns about a site.
        learned = {found for found in sums if found is not None}
        assert sum(map(len, learned)) == len(frozenset().union(*learned))
    return fewest


@pytest.mark.parametrize(("sites", "threshold", "colluders"), SOUND)
def test_every_honest_site_is_in_one_sum_with_enough_others(
    sites: int, threshold: int, colluders: int
) -> None:
    assert not list(quorums(sites, threshold, colluders))
    assert fewest_in_a_sum(sites, threshold, colluders) >= threshold - colluders


@pytest.mark.parametrize(("sites", "threshold", "colluders"), BROKEN)
def test_at_the_bound_two_quorums_are_possible(sites: int, threshold: int, colluders: int) -> None:
    assert list(quorums(sites, threshold, colluders))


def test_without_the_rule_a_server_reads_the_codes_of_one_site(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five sites, three in a sum, one of them colluding: 2t = n + c, and the server wins.

    It tells two halves of the honest sites two sets of survivors. Each half signs and answers its
    own, so for every honest site the server has both the seed and the mask key.
    """
    monkeypatch.setattr(keys, "check_number", lambda *_: None)
    asked = federation(5, 3, dimension=64)
    names, colluder = asked.names, "site-004"
    codes = {name: [np.arange(64, dtype=np.uint32) * i % 2] for i, name in enumerate(names)}
    begun = Round(asked, codes)
    begun.shares()
    inputs = {}
    for name in names:
        sent = asked.contribute(begun.sites[name], name, begun.server.box(name), codes[name])
        inputs[name] = Input.read(sent)
    halves = (("site-000", "site-001"), ("site-002", "site-003"))
    shares: dict[str, dict[str, dict[int, bytes]]] = {"seed": {}, "key": {}}
    digest = begun.server._box_digest
    for half in halves:
        told = Survivors(names=(*half, colluder))
        signers = [*half, colluder]
        signatures = {
            name: Signature.read(begun.sites[name].sign(told.to_bytes())).signature for name in half
        }
        signatures[colluder] = asked.keys[colluder].sign(
            keys.PAIRWISE, "survivors", digest, told.names
        )
        quorum = Quorum(signatures=tuple(sorted(signatures.items())))
        dropped = [name for name in names if name not in signers]
        for name in half:
            answer = AnswerMessage.read(begun.sites[name].answer(quorum.to_bytes()))
            index = names.index(name) + 1
            for kind, dealers, found in (
                ("seed", told.names, answer.seed_shares), ("key", dropped, answer.key_shares),
            ):  # fmt: skip
                for dealer, share in zip(dealers, found, strict=True):
                    shares[kind].setdefault(dealer, {})[index] = share
    boxed = begun.sites[colluder]._memory.boxed
    assert boxed is not None
    for name, pair in boxed.held.items():
        shares["seed"].setdefault(name, {})[5] = pair.seed
        shares["key"].setdefault(name, {})[5] = pair.mask_secret

    victim = names[1]
    total = MaskedSum(64, asked.attempt.bits)
    total.add_packed(inputs[victim].vectors[0])
    total.subtract_mask(keys.own_mask_key(combine(shares["seed"][victim]), digest, victim, 0))
    entries = begun.server._keys
    key = keys.mask_private_key(asked.attempt.digest(), victim, combine(shares["key"][victim]))
    for peer in names:
        if peer != victim:
            shared = keys.exchange(key, entries[peer].mask_key)
            mask = keys.pair_mask_key(shared, digest, entries[victim], entries[peer], 0)
            (total.subtract_mask if keys.adds(victim, peer) else total.add_mask)(mask)
    np.testing.assert_array_equal(total.values(), codes[victim][0])
