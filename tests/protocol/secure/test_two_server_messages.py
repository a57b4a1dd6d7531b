"""The bytes of two servers' messages: what is written is read, and nothing else is."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from two_servers import CLOSES, CONFIRM_BY, OPENS, Secrets

from sottovoce.core.errors import ParameterError, WireError
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.operators import Admission
from sottovoce.protocol.secure.shuffle_messages import (
    Confirmation,
    Confirmations,
    Path,
    Root,
    ShuffledList,
    ShuffleReport,
    split_proof,
)
from sottovoce.protocol.secure.two_server_messages import (
    Accepted,
    Frozen,
    Sealed,
    Summed,
    SumReport,
)

D, S = b"d" * 32, b"s" * 64
ADMISSIONS = [
    Admission(name=name, key=name.encode() * 32, valid_until=9, by_relay=S, by_collector=S)
    for name in "abc"
]
ATTEMPT = Attempt(
    protocol=Protocol.SHUFFLER, parties=D, federation=b"f" * 16, run="run", round=1, attempt=1,
    dimension=5, uplinks=1, levels=2, bits=6, most_clients=50, threshold=3, mechanism="{}",
    rotation_seed=b"", adjacency="zero-out", unit="client", model_digest=D,
)  # fmt: skip
ANNOUNCEMENT = Announcement(
    attempt=ATTEMPT, opens=OPENS, closes=CLOSES, confirm_by=CONFIRM_BY, slack=1, payload_bytes=16,
    hpke_key=b"k" * 32, signature=S,
)  # fmt: skip
MESSAGES: list[Any] = [
    ANNOUNCEMENT,
    ADMISSIONS[0],
    SumReport(name="é", ciphertext=b"c" * 80, for_collector=S, for_relay=S, vectors=b"v" * 9),
    Frozen(
        ann=D,
        entries=tuple(Sealed(admission=a, ciphertext=b"c" * 80, signature=S) for a in ADMISSIONS),
    ),
    Accepted(ann=D, frozen=D, names=("a", "b", "é"), signature=S),
    Summed(ann=D, accepted=D, sums=b"sums", signature=S),
    ShuffleReport(name="a", signature=S, ciphertext=b"c" * 64),
    ShuffledList(ann=D, ciphertexts=(b"a" * 64, b"b" * 64, b"c" * 64), signature=S),
    Root(ann=D, count=3, top=D, signature=S),
    Path(index=2, siblings=(D, b"e" * 32)),
    Confirmation(name="a", signature=S),
    Confirmations(ann=D, entries=tuple((each, S) for each in ADMISSIONS)),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_read_as_it_was_written(message: Any) -> None:
    content = message.to_bytes()
    assert type(message).read(content) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
@given(data=st.data())
@settings(max_examples=60)
def test_changed_bytes_are_refused_or_are_another_message(message: Any, data: Any) -> None:
    content = bytearray(message.to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        match data.draw(st.integers(0, 2)):
            case 0:
                del content[data.draw(st.integers(0, len(content))) :]
            case 1:
                content += data.draw(st.binary(max_size=40))
            case _ if content:
                place = data.draw(st.integers(0, len(content) - 1))
                content[place] = data.draw(st.integers(0, 255))
    read: Callable[[bytes], Any] = type(message).read
    try:
        found = read(bytes(content))
    except WireError:
        return
    assert found.to_bytes() == bytes(content)


@given(st.binary(max_size=300))
@settings(max_examples=100)
def test_arbitrary_bytes_are_refused(content: bytes) -> None:
    for message in MESSAGES:
        start = message.to_bytes()[:1]
        for attempt in (content, start + content):
            try:
                assert type(message).read(attempt).to_bytes() == attempt
            except WireError:
                continue
    if len(content) <= 137:
        with pytest.raises(WireError):
            split_proof(content)


def test_no_count_in_a_message_takes_memory() -> None:
    for message in MESSAGES:
        if isinstance(message, Frozen | Accepted | Confirmations):
            content = message.to_bytes()
            at = 65 if isinstance(message, Accepted) else 33
            with pytest.raises(WireError, match="too little"):
                type(message).read(content[:at] + b"\xff" * 8 + content[at + 8 :])


@pytest.mark.parametrize(
    "message",
    [
        Accepted(ann=D, frozen=D, names=("b", "a"), signature=S),
        Accepted(ann=D, frozen=D, names=("a", "a"), signature=S),
        Confirmations(ann=D, entries=((ADMISSIONS[1], S), (ADMISSIONS[0], S))),
        Frozen(
            ann=D, entries=(Sealed(admission=ADMISSIONS[0], ciphertext=b"c" * 80, signature=S),) * 2
        ),
        ShuffledList(ann=D, ciphertexts=(b"b" * 64, b"a" * 64), signature=S),
        ShuffledList(ann=D, ciphertexts=(b"a" * 64, b"a" * 64), signature=S),
        ShuffledList(ann=D, ciphertexts=(b"a" * 64, b"b" * 63), signature=S),
        ShuffledList(ann=D, ciphertexts=(b"a" * 48,), signature=S),
        Confirmation(name="", signature=S),
        Confirmation(name="a" * 129, signature=S),
        Path(index=0, siblings=(D,) * 65),
    ],
)
def test_sets_out_of_order_and_fields_out_of_bounds_are_refused(message: Any) -> None:
    with pytest.raises(WireError):
        type(message).read(message.to_bytes())


@pytest.mark.parametrize(
    "wrong",
    [
        {"opens": CLOSES},
        {"confirm_by": CLOSES},
        {"slack": 51},
        {"payload_bytes": 0},
        {"payload_bytes": 2**17},
        {"attempt": dataclasses.replace(ATTEMPT, protocol=Protocol.PAIRWISE)},
        {"attempt": dataclasses.replace(ATTEMPT, protocol=Protocol.TWO_SERVER_SUM)},
    ],
)
def test_an_announcement_that_makes_no_sense_is_not_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        dataclasses.replace(ANNOUNCEMENT, **wrong)


def test_everything_of_an_announcement_is_in_its_digest() -> None:
    changed: dict[str, Any] = {
        "attempt": dataclasses.replace(ATTEMPT, round=2), "opens": 1, "closes": 201,
        "confirm_by": 301, "slack": 2, "payload_bytes": 17, "hpke_key": b"l" * 32,
    }  # fmt: skip
    names = {field.name for field in dataclasses.fields(Announcement)} - {"signature", "ann"}
    assert set(changed) == names
    found = {dataclasses.replace(ANNOUNCEMENT, **{key: new}).ann for key, new in changed.items()}
    assert len(found | {ANNOUNCEMENT.ann}) == 1 + len(changed)
    assert dataclasses.replace(ANNOUNCEMENT, signature=bytes(64)).ann == ANNOUNCEMENT.ann


def test_the_digest_of_the_operators_covers_every_key() -> None:
    one = Secrets.new().operators
    other = Secrets.new().operators
    found = {one.digest}
    for field in dataclasses.fields(one):
        value = b"g" * 16 if field.name == "federation" else getattr(other, field.name)
        found.add(dataclasses.replace(one, **{field.name: value}).digest)
    assert len(found) == 7
    with pytest.raises(ParameterError, match="the same"):
        dataclasses.replace(one, collector_admission=one.relay_admission)
    with pytest.raises(ParameterError, match="32 bytes"):
        dataclasses.replace(one, relay=b"")
