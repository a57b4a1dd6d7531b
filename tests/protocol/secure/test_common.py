"""Tests of what all secure protocols share: encodings, masks, rosters, attempts and journals."""

import dataclasses
import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from sottovoce.core.errors import LedgerError, ParameterError, WireError
from sottovoce.ledger.journal import CLOSED, Place
from sottovoce.ledger.ledger import Ledger
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.encoding import (
    Field,
    Protocol,
    check_sorted,
    derive_key,
    digest,
    encode,
)
from sottovoce.protocol.secure.masks import MaskedSum, bits_for_sum
from sottovoce.protocol.secure.roster import Roster, TrustKey, check_signature


def an_attempt(**changed: object) -> Attempt:
    fields: dict[str, object] = {
        "protocol": Protocol.PAIRWISE,
        "parties": bytes(32),
        "federation": bytes(16),
        "run": "a",
        "round": 1,
        "attempt": 1,
        "dimension": 8,
        "uplinks": 1,
        "levels": 2,
        "bits": 3,
        "most_clients": 5,
        "threshold": 3,
        "mechanism": "{}",
        "rotation_seed": b"",
        "adjacency": "zero-out",
        "unit": "client",
        "model_digest": bytes(32),
    }
    return Attempt(**{**fields, **changed})  # type: ignore[arg-type]


def test_fields_that_differ_have_different_encodings() -> None:
    cases: list[tuple[Field, ...]] = [
        (b"a", b"b"),
        (b"ab", b""),
        (b"", b"ab"),
        (b"ab",),
        ((b"a", b"b"),),
        ((b"a",), b"b"),
    ]
    assert len({encode(*case) for case in cases}) == len(cases)


@pytest.mark.parametrize("field", [-1, 2**64, float("nan"), float("inf"), True])
def test_numbers_out_of_range_are_not_encoded(field: float) -> None:
    with pytest.raises(WireError):
        encode(field)


@pytest.mark.parametrize("names", [("b", "a"), ("a", "a"), ("é", "z")])
def test_a_set_of_names_must_increase_in_the_order_of_bytes(names: tuple[str, ...]) -> None:
    with pytest.raises(WireError, match="sorted"):
        check_sorted(names, what="survivors")


def test_labels_and_protocols_separate_digests_and_keys() -> None:
    places = list(itertools.product((Protocol.PAIRWISE, Protocol.SHUFFLER), ("keys", "input")))
    assert len({digest(*place, b"x") for place in places}) == 4
    assert len({derive_key(bytes(32), *place, b"x") for place in places}) == 4


@pytest.mark.parametrize("bits", [1, 3, 8, 9, 16, 20, 32])
def test_masks_are_the_keystream_of_rfc_8439_and_cancel(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 2**bits, 1000, dtype=np.uint64)
    one = MaskedSum(1000, bits)
    one.add_codes(codes.astype(np.uint32))
    one.add_mask(b"k" * 32)
    width = 1 if bits <= 8 else 2 if bits <= 16 else 4
    stream = Cipher(ChaCha20(b"k" * 32, bytes(16)), mode=None).encryptor().update(bytes(4000))
    words = np.frombuffer(stream[: 1000 * width], dtype=f"<u{width}").astype(np.uint64)
    np.testing.assert_array_equal(one.values(), (codes + words) % 2**bits)
    received = MaskedSum(1000, bits)
    received.add_packed(one.packed())
    received.subtract_mask(b"k" * 32)
    np.testing.assert_array_equal(received.values(), codes)


def test_a_mask_longer_than_one_block_of_work_is_one_stream() -> None:
    whole, head = MaskedSum(2**20 + 5, 8), MaskedSum(2**20, 8)
    whole.add_mask(b"k" * 32)
    head.add_mask(b"k" * 32)
    np.testing.assert_array_equal(whole.values()[: 2**20], head.values())
    stream = Cipher(ChaCha20(b"k" * 32, bytes(16)), mode=None).encryptor().update(bytes(2**20 + 5))
    assert whole.packed()[-5:] == stream[-5:]


def test_centered_residues_have_signs() -> None:
    total = MaskedSum(3, 4)
    total.add_codes(np.array([15, 8, 7], dtype=np.uint8))
    assert total.centered().tolist() == [-1, -8, 7]


def test_bits_hold_the_largest_sum() -> None:
    assert [bits_for_sum(largest) for largest in (1, 2, 3, 4, 100, 127, 128)] == [
        1, 2, 2, 3, 7, 7, 8,
    ]  # fmt: skip
    with pytest.raises(ParameterError):
        bits_for_sum(2**32)


def test_a_signature_covers_protocol_label_and_fields() -> None:
    key = TrustKey.generate()
    signature = key.sign(Protocol.PAIRWISE, "keys", b"x", 3)
    check_signature(key.public, signature, Protocol.PAIRWISE, "keys", b"x", 3)
    for other in (
        (TrustKey.generate().public, signature, Protocol.PAIRWISE, "keys", b"x", 3),
        (key.public, signature, Protocol.SHUFFLER, "keys", b"x", 3),
        (key.public, signature, Protocol.PAIRWISE, "input", b"x", 3),
        (key.public, signature, Protocol.PAIRWISE, "keys", b"x", 4),
        (key.public, signature[:-1], Protocol.PAIRWISE, "keys", b"x", 3),
        (b"", signature, Protocol.PAIRWISE, "keys", b"x", 3),
    ):
        with pytest.raises(WireError, match="signature"):
            check_signature(*other)


def test_a_roster_is_pinned_by_all_its_content() -> None:
    a, b, c = (TrustKey.generate().public for _ in range(3))
    roster = Roster(federation=bytes(16), version=1, keys={"b": b, "a": a})
    same = Roster(federation=bytes(16), version=1, keys={"a": a, "b": b})
    others = [
        dataclasses.replace(roster, version=2),
        dataclasses.replace(roster, federation=bytes(15) + b"1"),
        dataclasses.replace(roster, keys={"a": a}),
        dataclasses.replace(roster, keys={"a": a, "b": c}),
        dataclasses.replace(roster, keys={"a": b, "b": a}),
    ]
    assert roster.digest == same.digest
    assert len({one.digest for one in (roster, *others)}) == 6
    with pytest.raises(ParameterError, match="same key"):
        dataclasses.replace(roster, keys={"a": a, "b": a})


def test_the_digest_of_an_attempt_covers_every_field() -> None:
    one = an_attempt()
    changed: dict[str, object] = {
        "protocol": Protocol.TWO_SERVER_SUM, "parties": b"1" * 32, "federation": b"1" * 16,
        "run": "b", "round": 2, "attempt": 2, "dimension": 9, "uplinks": 2, "levels": 1,
        "bits": 4, "most_clients": 6, "threshold": 4, "mechanism": "[]", "rotation_seed": b"1",
        "adjacency": "replace-one", "unit": "sample", "model_digest": b"1" * 32,
    }  # fmt: skip
    assert set(changed) == {field.name for field in dataclasses.fields(Attempt)}
    found = {dataclasses.replace(one, **{key: new}).digest() for key, new in changed.items()}  # type: ignore[arg-type]
    assert len(found | {one.digest()}) == 1 + len(changed)


@pytest.mark.parametrize(
    "wrong", [{"bits": 2}, {"bits": 33}, {"threshold": 6}, {"threshold": 0}, {"attempt": 0}]
)
def test_an_attempt_that_could_not_be_summed_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ParameterError):
        an_attempt(**wrong)


def at(number: int, attempt: int, run: str = "run", federation: bytes = b"f") -> Place:
    return Place(federation=federation, run=run, round=number, attempt=attempt)


def test_an_attempt_is_begun_once_and_closes_all_earlier_ones(ledger: Ledger) -> None:
    journal = ledger.journal()
    journal.begin(at(1, 1), "begun")
    journal.advance(at(1, 1), "begun", "charged", b"kept")
    assert journal.record(at(1, 1)) == b"kept"
    journal.begin(at(1, 2), "begun")
    assert journal.state(at(1, 1)) == CLOSED
    assert journal.record(at(1, 1)) is None
    journal.begin(at(2, 1), "begun")
    for place in (at(2, 1), at(1, 3), at(0, 9)):
        with pytest.raises(WireError, match="later attempt"):
            journal.begin(place, "begun")
    journal.begin(at(1, 1, run="other"), "begun")
    journal.begin(at(1, 1, federation=b"g"), "begun")
    assert journal.state(at(2, 1)) == "begun"
    assert journal.attempts(b"f", "run") == 3
    assert journal.newest_attempt(b"f", "run", 1) == 2


def test_a_state_only_moves_forward_from_the_one_that_is_stored(ledger: Ledger) -> None:
    journal = ledger.journal()
    journal.begin(at(1, 1), "begun")
    journal.advance(at(1, 1), "begun", "charged")
    for old in ("begun", "signed", CLOSED):
        with pytest.raises(LedgerError, match="in the state 'charged'"):
            journal.advance(at(1, 1), old, "signed")
    assert journal.close_all() == 1
    with pytest.raises(LedgerError, match="closed"):
        journal.advance(at(1, 1), "charged", "signed")


def test_a_step_and_its_charge_are_one_commit(ledger: Ledger) -> None:
    journal = ledger.journal()
    journal.begin(at(1, 1), "begun")

    def fail_after_the_step() -> None:
        with ledger.transaction():
            journal.advance(at(1, 1), "begun", "charged")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_the_step()
    assert journal.state(at(1, 1)) == "begun"
