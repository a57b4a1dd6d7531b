"""Tests of the messages' bytes: what is written is read, and all else is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.core.errors import WireError
from sottovoce.protocol.secure.encoding import Protocol, encode
from sottovoce.protocol.secure.fields import MAX_NAMES, read_message, split, write_message
from sottovoce.protocol.secure.pairwise_messages import (
    SEALED_SHARES_BYTES,
    AnswerMessage,
    BoxMessage,
    Input,
    KeyList,
    KeysMessage,
    Quorum,
    Shares,
    Survivors,
    SurvivorsSignature,
)

names = st.sets(st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)).map(
    lambda found: tuple(sorted(found, key=str.encode))
)


def fixed(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


@st.composite
def pairs(draw: st.DrawFn, size: int) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, draw(fixed(size))) for name in draw(names))


@st.composite
def key_messages(draw: st.DrawFn, name: str) -> KeysMessage:
    return KeysMessage(
        name=name,
        channel_key=draw(fixed(32)),
        mask_key=draw(fixed(32)),
        commitment=draw(fixed(32)),
        rows=draw(st.integers(0, 2**64 - 1)),
        signature=draw(fixed(64)),
    )


@st.composite
def lists(draw: st.DrawFn) -> KeyList:
    return KeyList(entries=tuple(draw(key_messages(name)) for name in draw(names)))


shares = st.lists(st.integers(0, 2**255 - 20).map(lambda n: n.to_bytes(32, "little"))).map(tuple)
MESSAGES: dict[Any, st.SearchStrategy[Any]] = {
    KeysMessage: key_messages("clinic"),
    KeyList: lists(),
    Shares: st.builds(Shares, sealed=pairs(SEALED_SHARES_BYTES)),
    BoxMessage: st.builds(BoxMessage, members=names, sealed=pairs(SEALED_SHARES_BYTES)),
    Input: st.builds(
        Input, vectors=st.lists(st.binary(max_size=20), max_size=3).map(tuple), signature=fixed(64)
    ),
    Survivors: st.builds(Survivors, names=names),
    SurvivorsSignature: st.builds(SurvivorsSignature, signature=fixed(64)),
    Quorum: st.builds(Quorum, signatures=pairs(64)),
    AnswerMessage: st.builds(AnswerMessage, seed_shares=shares, key_shares=shares),
}
EVERY = pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)


@EVERY
@given(data=st.data())
def test_a_message_is_read_as_it_was_written(kind: Any, data: st.DataObject) -> None:
    message = data.draw(MESSAGES[kind])
    assert kind.read(message.to_bytes()) == message


@EVERY
@given(data=st.data())
def test_changed_bytes_are_refused_or_are_another_message(kind: Any, data: st.DataObject) -> None:
    content = bytearray(data.draw(MESSAGES[kind]).to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content)))
        inserted = data.draw(st.binary(max_size=4))
        content[place : place + data.draw(st.integers(0, 4))] = inserted
    try:
        found = kind.read(bytes(content))
    except WireError:
        return
    assert found.to_bytes() == bytes(content)


@EVERY
@given(content=st.binary(max_size=200))
def test_any_bytes_raise_no_other_error(kind: Any, content: bytes) -> None:
    label = MESSAGE_LABELS[kind]
    for candidate in (content, encode(f"sottovoce/pairwise/1 message {label}") + content):
        try:
            found = kind.read(candidate)
        except WireError:
            continue
        assert found.to_bytes() == candidate


MESSAGE_LABELS = {
    KeysMessage: "keys", KeyList: "list", Shares: "shares", BoxMessage: "box", Input: "input",
    Survivors: "survivors", SurvivorsSignature: "sign", Quorum: "quorum", AnswerMessage: "answer",
}  # fmt: skip


@EVERY
def test_a_message_is_none_of_another_kind(kind: Any) -> None:
    for other, label in MESSAGE_LABELS.items():
        if other is not kind:
            with pytest.raises(WireError, match="expected the message"):
                kind.read(write_message(Protocol.PAIRWISE, label, b""))


def test_a_message_of_another_protocol_is_refused() -> None:
    content = write_message(Protocol.TWO_SERVER_SUM, "survivors", ("a",))
    with pytest.raises(WireError, match="pairwise"):
        Survivors.read(content)


def test_a_message_of_another_version_is_refused() -> None:
    newer = encode("sottovoce/pairwise/2 message survivors", ("a",))
    older = encode("sottovoce/pairwise/1 message survivors", ("a",))
    assert Survivors.read(older).names == ("a",)
    with pytest.raises(WireError, match="pairwise/1"):
        Survivors.read(newer)


@pytest.mark.parametrize("found", [("b", "a"), ("a", "a"), ("",), ("x" * 1001,)])
def test_sets_of_names_are_sorted_distinct_and_of_bounded_length(found: tuple[str, ...]) -> None:
    with pytest.raises(WireError):
        Survivors.read(Survivors(names=found).to_bytes())


def test_the_number_of_fields_is_bounded() -> None:
    with pytest.raises(WireError, match="at most"):
        split(encode(*["a"] * (MAX_NAMES + 1)))
    with pytest.raises(WireError, match="at most"):
        read_message(
            write_message(Protocol.PAIRWISE, "x", *["a"] * 9), Protocol.PAIRWISE, "x", fields=2
        )


def test_names_that_are_no_text_are_refused() -> None:
    with pytest.raises(WireError, match="UTF-8"):
        Survivors.read(write_message(Protocol.PAIRWISE, "survivors", (b"\xff",)))


def test_a_share_of_an_answer_is_below_the_prime() -> None:
    content = write_message(Protocol.PAIRWISE, "answer", (b"\xff" * 32,), ())
    with pytest.raises(WireError, match="below"):
        AnswerMessage.read(content)
