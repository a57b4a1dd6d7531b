"""Tests of the server: the sum is the plain one with any dropouts, and wrong messages are named."""

import contextlib
import dataclasses
from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
from pairwise_rounds import Federation, Round, federation, random_codes

from sottovoce.core.errors import AbandonedError, ParameterError, WireError
from sottovoce.protocol.secure import pairwise_shares
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.pairwise_messages import (
    AnswerMessage,
    Input,
    KeyList,
    KeysMessage,
    Quorum,
    Shares,
    SurvivorsSignature,
)
from sottovoce.protocol.secure.pairwise_shares import OwnSecrets, SharePair

FIRST, SECOND, LAST = "site-000", "site-001", "site-004"


@pytest.fixture
def asked() -> Federation:
    """Five sites, of which four must be in a sum."""
    return federation(5, 4)


@pytest.fixture
def begun(asked: Federation) -> Round:
    """A round of these sites, in which nothing has been sent."""
    return Round(asked, random_codes(asked))


def sums(begun: Round, **options: Any) -> list[list[int]]:
    return [vector.tolist() for vector in begun.server.result(**options).vectors]


# -- the sum ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=[pytest.mark.slow] * (n >= 60)) for n in range(200)]
)
def test_a_sum_with_any_dropouts_is_the_plain_sum(seed: int) -> None:
    """Sites drop out before any of their five messages, and messages come in any order."""
    generator = np.random.default_rng(seed)
    count = int(generator.integers(3, 9))
    threshold = int(generator.integers(max(3, (count + 1) // 2 + 1), count + 1))
    levels = int(generator.choice([2, 3, 16, 257]))
    asked = federation(
        count, threshold, levels=levels, dimension=int(generator.integers(1, 20)),
        uplinks=int(generator.integers(1, 3)),
    )  # fmt: skip
    gone = generator.permutation(asked.names)[: generator.integers(0, count - threshold + 1)]
    dropped = {str(name): int(generator.integers(0, 5)) for name in gone}
    if 0 in dropped.values() and 2 * threshold <= count - 1 + 1:
        dropped = {name: max(1, step) for name, step in dropped.items()}

    def shuffled(names: Collection[str]) -> Collection[str]:
        return [str(name) for name in generator.permutation(list(names))]

    begun = Round(asked, random_codes(asked, seed), dropped, shuffled)
    assert begun.answers()
    assert sums(begun) == begun.plain_sums()
    assert begun.server.result().survivors == tuple(sorted(begun.there(2)))


@pytest.mark.parametrize("field", ["channel_key", "mask_key"])
def test_a_site_with_a_key_of_low_order_is_left_out_and_spoils_no_attempt(
    begun: Round, field: str
) -> None:
    """Every honest site would refuse a list with it."""
    real = begun.sites[LAST]._begin

    def low(commit: Any) -> bytes:
        entry = KeysMessage.read(real(commit))
        changed: dict[str, Any] = {field: (1).to_bytes(32, "little")}
        entry = dataclasses.replace(entry, **changed)
        plan = begun.asked.attempt.digest()
        signature = begun.asked.keys[LAST].sign(Protocol.PAIRWISE, "keys", plan, *entry.statement)
        return dataclasses.replace(entry, signature=signature).to_bytes()

    with pytest.raises(WireError, match=f"site '{LAST}': a public key has low order"):
        begun.server.receive_keys(LAST, low(contextlib.nullcontext))
    begun.dropped = {LAST: 0}
    assert begun.answers()
    assert sums(begun) == begun.plain_sums()


def test_the_order_of_arrival_changes_nothing_that_the_server_sends(asked: Federation) -> None:
    forward = Round(asked, random_codes(asked))
    keys = {name: forward.sites[name].begin() for name in asked.names}
    lists = set()
    for order in (asked.names, asked.names[::-1]):
        server = asked.server()
        for name in order:
            server.receive_keys(name, keys[name])
        lists.add(server.list_message())
    assert len(lists) == 1


def test_three_sites_without_dropouts_have_a_sum() -> None:
    asked = federation(3, 3, dimension=1)
    begun = Round(asked, random_codes(asked))
    assert begun.answers()
    assert sums(begun) == begun.plain_sums()


def test_sums_of_signed_codes_are_centered() -> None:
    asked = federation(4, 3, levels=5, dimension=50, colluders=1)
    signed = {name: np.arange(50) % 5 - 2 for name in asked.names}
    modulus = 2**asked.attempt.bits
    codes = {name: [(values % modulus).astype(np.uint32)] for name, values in signed.items()}
    begun = Round(asked, codes)
    assert begun.answers()
    assert sums(begun, centered=True) == [(4 * (np.arange(50) % 5 - 2)).tolist()]


@pytest.mark.slow
def test_a_sum_of_ten_million_coordinates_is_the_plain_sum() -> None:
    asked = federation(5, 4, dimension=10_000_000)
    begun = Round(asked, random_codes(asked), {FIRST: 2})
    assert begun.answers()
    assert sums(begun) == begun.plain_sums()


def test_a_result_can_be_asked_for_again(begun: Round) -> None:
    begun.answers()
    assert sums(begun) == sums(begun) == begun.plain_sums()


def test_repeated_messages_count_once(begun: Round) -> None:
    """The transport may deliver every message twice."""
    begun.asked.colluders = 1
    receivers = ("keys", "shares", "input", "signature", "answer")
    for receiver in receivers:
        receive = getattr(begun.server, f"receive_{receiver}")

        def twice(name: str, message: bytes, receive: Any = receive) -> Any:
            receive(name, message)
            return receive(name, message)

        setattr(begun.server, f"receive_{receiver}", twice)
    assert begun.answers()
    assert sums(begun) == begun.plain_sums()


# -- too few sites ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "match"),
    [
        (0, "cannot go on"),
        (1, "3 sites have sent shares"),
        (2, "3 sites have sent vectors"),
        (3, "3 sites have sent signatures"),
    ],
)
def test_too_many_dropouts_abandon_the_attempt(asked: Federation, step: int, match: str) -> None:
    begun = Round(asked, random_codes(asked), {FIRST: step, LAST: step})
    with pytest.raises(AbandonedError, match=match):
        begun.answers()


def test_too_few_answers_give_no_sum(asked: Federation) -> None:
    begun = Round(asked, random_codes(asked), {FIRST: 4, LAST: 4})
    assert not begun.answers()
    with pytest.raises(AbandonedError, match="wait for more answers"):
        begun.server.result()


def test_too_many_sites_for_the_threshold_are_not_listed() -> None:
    asked = federation(7, 4)
    with pytest.raises(AbandonedError, match="too low for 7 sites"):
        Round(asked, random_codes(asked)).keys()


# -- wrong messages --------------------------------------------------------------------------------


def test_keys_of_another_site_or_another_attempt_are_refused(begun: Round) -> None:
    keys = {name: site.begin() for name, site in begun.sites.items()}
    later = dataclasses.replace(begun.asked.attempt, attempt=2)
    other = begun.asked.site(FIRST, attempt=later).begin()
    for name, message in ((FIRST, keys[SECOND]), (FIRST, other), ("stranger", keys[FIRST])):
        with pytest.raises(WireError, match=f"site '{name}'"):
            begun.server.receive_keys(name, message)
    for name, message in keys.items():
        begun.server.receive_keys(name, message)
    assert len(KeyList.read(begun.server.list_message()).entries) == 5


def test_a_wrong_message_leaves_its_site_out_and_the_others_go_on(asked: Federation) -> None:
    begun = Round(asked, random_codes(asked), {SECOND: 2})
    boxes = begun.boxes()
    sent = asked.contribute(begun.sites[SECOND], SECOND, boxes[SECOND], begun.codes[SECOND])
    found = Input.read(sent)
    vector = bytes([found.vectors[0][0] ^ 1]) + found.vectors[0][1:]
    with pytest.raises(WireError, match=f"site '{SECOND}'.*signature"):
        begun.server.receive_input(SECOND, dataclasses.replace(found, vectors=(vector,)).to_bytes())
    for name in begun.there(2):
        begun.server.receive_input(
            name, asked.contribute(begun.sites[name], name, boxes[name], begun.codes[name])
        )
    survivors = begun.server.survivors()
    for name in begun.there(2):
        begun.server.receive_signature(name, begun.sites[name].sign(survivors))
    quorum = begun.server.quorum()
    for name in begun.there(2):
        begun.server.receive_answer(name, begun.sites[name].answer(quorum))
    assert sums(begun) == begun.plain_sums()


@pytest.mark.parametrize("vectors", [(), (b"",), (bytes(2),), (bytes(3), bytes(3)), (bytes(4),)])
def test_vectors_of_another_number_or_length_are_refused(
    begun: Round, vectors: tuple[bytes, ...]
) -> None:
    """A site that signs them lies."""
    from sottovoce.protocol.secure import pairwise_keys
    from sottovoce.protocol.secure.encoding import Protocol

    boxes = begun.boxes()
    asked = begun.asked
    digest = begun.server._box_digest
    statement = digest, FIRST, pairwise_keys.vectors_digest(vectors)
    signature = asked.keys[FIRST].sign(Protocol.PAIRWISE, "input", *statement)
    before = [total.values().tolist() for total in begun.server._sums]
    with pytest.raises(WireError, match=f"site '{FIRST}'"):
        begun.server.receive_input(FIRST, Input(vectors=vectors, signature=signature).to_bytes())
    assert [total.values().tolist() for total in begun.server._sums] == before
    begun.server.receive_input(
        FIRST, asked.contribute(begun.sites[FIRST], FIRST, boxes[FIRST], begun.codes[FIRST])
    )


def test_messages_that_come_too_late_or_too_early_are_refused(begun: Round) -> None:
    early = Shares(sealed=()).to_bytes()
    with pytest.raises(WireError, match="too late, or too early"):
        begun.server.receive_shares(FIRST, early)
    begun.dropped = {LAST: 2}
    boxes = begun.boxes()
    late = begun.asked.contribute(begun.sites[LAST], LAST, boxes[LAST], begun.codes[LAST])
    for name in begun.there(2):
        sent = begun.asked.contribute(begun.sites[name], name, boxes[name], begun.codes[name])
        begun.server.receive_input(name, sent)
    begun.server.survivors()
    with pytest.raises(WireError, match=f"site '{LAST}'.*too late"):
        begun.server.receive_input(LAST, late)


def test_survivors_are_not_chosen_before_the_boxes(begun: Round) -> None:
    begun.shares()
    with pytest.raises(WireError, match="after the boxes"):
        begun.server.survivors()
    with pytest.raises(WireError, match="after the quorum"):
        begun.server.result()


def test_a_second_message_of_a_step_is_refused(begun: Round) -> None:
    listed = begun.keys()
    sealed = Shares.read(begun.sites[FIRST].share(listed)).sealed
    begun.server.receive_shares(FIRST, Shares(sealed=sealed).to_bytes())
    other = tuple((name, bytes(80)) for name, _ in sealed)
    with pytest.raises(WireError, match="taken before"):
        begun.server.receive_shares(FIRST, Shares(sealed=other).to_bytes())


def test_shares_for_other_peers_are_refused(begun: Round) -> None:
    sealed = Shares.read(begun.sites[FIRST].share(begun.keys())).sealed
    for wrong in (sealed[1:], (*sealed, ("stranger", bytes(80)))):
        with pytest.raises(WireError, match="exactly 4 expected sites"):
            begun.server.receive_shares(FIRST, Shares(sealed=wrong).to_bytes())


def test_a_site_without_shares_has_no_box_and_sends_no_input(asked: Federation) -> None:
    begun = Round(asked, random_codes(asked), {LAST: 1})
    begun.boxes()
    with pytest.raises(WireError, match="no box"):
        begun.server.box(LAST)
    with pytest.raises(WireError, match="does not take part"):
        begun.server.receive_input(LAST, Input(vectors=(), signature=bytes(64)).to_bytes())


def test_a_signature_of_other_survivors_is_refused(begun: Round) -> None:
    begun.inputs()
    with pytest.raises(WireError, match=f"site '{FIRST}'.*signature"):
        begun.server.receive_signature(FIRST, SurvivorsSignature(signature=bytes(64)).to_bytes())


def test_answers_of_another_number_of_shares_are_refused(begun: Round) -> None:
    quorum = begun.signatures()
    answer = AnswerMessage.read(begun.sites[FIRST].answer(quorum))
    for seeds, keys in ((answer.seed_shares[1:], ()), (answer.seed_shares, (bytes(32),))):
        wrong = AnswerMessage(seed_shares=seeds, key_shares=keys).to_bytes()
        with pytest.raises(WireError, match="expected shares of 5 seeds and of 0 keys"):
            begun.server.receive_answer(FIRST, wrong)


@pytest.mark.parametrize("count", [5, 4])
def test_a_quorum_has_as_many_signatures_as_are_needed(asked: Federation, count: int) -> None:
    begun = Round(asked, random_codes(asked), {LAST: count - 1} if count == 4 else {})
    assert len(Quorum.read(begun.signatures()).signatures) == 4


# -- wrong shares ----------------------------------------------------------------------------------


def answered(begun: Round, liars: Collection[str]) -> list[bool]:
    """Let all sites answer, some with the share of a seed that they do not hold."""
    quorum = begun.signatures()
    done = []
    for name in begun.there(4):
        answer = AnswerMessage.read(begun.sites[name].answer(quorum))
        if name in liars:
            seeds = (bytes(32), *answer.seed_shares[1:])
            answer = dataclasses.replace(answer, seed_shares=seeds)
        done.append(begun.server.receive_answer(name, answer.to_bytes()))
    return done


def test_a_wrong_share_is_found_by_the_commitment_and_named_as_a_pair(begun: Round) -> None:
    assert answered(begun, ["site-002"]) == [False, False, False, False, True]
    assert begun.server.disputes == ((FIRST, "site-002"),)
    assert sums(begun) == begun.plain_sums()


def test_several_wrong_shares_are_found_if_enough_others_answer() -> None:
    asked = federation(12, 7)
    begun = Round(asked, random_codes(asked), {"site-011": 2})
    liars = ["site-001", "site-003", "site-006"]
    assert answered(begun, liars)[-1]
    assert begun.server.disputes == tuple((FIRST, liar) for liar in liars)
    assert sums(begun) == begun.plain_sums()


def test_wrong_shares_without_enough_others_abandon_the_round(asked: Federation) -> None:
    begun = Round(asked, random_codes(asked), {LAST: 4})
    assert not any(answered(begun, [SECOND]))
    with pytest.raises(AbandonedError, match=f"secrets of {FIRST} are missing"):
        begun.server.result()


@pytest.mark.parametrize("secret", ["seed", "mask_secret"])
def test_a_dealer_of_wrong_shares_cannot_change_the_sum(
    asked: Federation, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    """The dealer's shares are those of another secret than it has committed to."""
    deal = OwnSecrets.deal

    def lie(self: Any, threshold: int, names: Any) -> dict[str, SharePair]:
        return deal(dataclasses.replace(self, **{secret: bytes(31)}), threshold, names)

    begun = Round(asked, random_codes(asked), {LAST: 2})
    listed = begun.keys()
    for name, site in begun.sites.items():
        dealer = FIRST if secret == "seed" else LAST
        monkeypatch.setattr(pairwise_shares.OwnSecrets, "deal", lie if name == dealer else deal)
        begun.server.receive_shares(name, site.share(listed))
    begun.shares = lambda: None  # type: ignore[method-assign]
    assert not begun.answers()
    with pytest.raises(AbandonedError, match=f"secrets of {dealer} are missing"):
        begun.server.result()


# -- checks of the sum -----------------------------------------------------------------------------


@pytest.mark.parametrize("code", [2, 3])
def test_a_sum_outside_the_range_of_honest_codes_abandons_the_round(code: int) -> None:
    asked = federation(5, 4, dimension=3)
    codes = {name: [np.ones(3, np.uint32)] for name in asked.names}
    codes[FIRST] = [np.full(3, code, np.uint32)]
    begun = Round(asked, codes)
    begun.answers()
    with pytest.raises(AbandonedError, match="outside 0 to 5"):
        begun.server.result()


def test_a_sum_with_more_energy_than_bits_have_abandons_the_round() -> None:
    """All sums are within their range: four of eight honest sites send 1, and one sends 5."""
    asked = federation(9, 6, dimension=1000)
    codes = {
        name: [np.full(1000, number % 2, np.uint32)] for number, name in enumerate(asked.names)
    }
    codes[FIRST] = [np.full(1000, 5, np.uint32)]
    begun = Round(asked, codes)
    begun.answers()
    assert sums(begun) == [[9] * 1000]
    with pytest.raises(AbandonedError, match="energy"):
        begun.server.result(logit_norm=1.0, logit_bound=0.05)


def test_honest_bits_pass_and_are_clamped() -> None:
    asked = federation(9, 6, dimension=1000)
    begun = Round(asked, random_codes(asked))
    begun.answers()
    assert sums(begun, logit_norm=1.0, logit_bound=100.0) == begun.plain_sums()


def test_the_energy_test_is_for_bits_only() -> None:
    asked = federation(3, 3, levels=3)
    begun = Round(asked, random_codes(asked))
    begun.answers()
    with pytest.raises(ParameterError, match="one bit"):
        begun.server.result(logit_norm=1.0)
