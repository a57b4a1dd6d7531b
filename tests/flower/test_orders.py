"""Orders and replies as bytes: what is written comes back, and of the rest only WireError."""

import dataclasses
import json
import math
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.errors import WireError
from sottovoce.deployment.orders import (
    MOST_JSON_BYTES,
    MOST_VALUES,
    MOST_VECTORS,
    Order,
    read_order,
    read_refusal,
    read_reply,
    read_rounds_charged,
    refusal_blobs,
    reply_blobs,
)
from sottovoce.flower.records import MOST_PARTS, RECORD, from_records, to_records

ORDER = Order(
    spec={"name": "x", "rounds": 3, "data": {"sites": {"ada": 3}}},
    run="0123-ab",
    round=2,
    client="ada",
    cohort=4,
    mechanism={"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 0.1},
    classes=10,
    keep_from=2,
    vectors=(b"\x00" * 8, b"", b"\xff"),
)
PUBLIC: dict[str, Any] = json.loads(ORDER.blobs()["order"])

names = st.text(min_size=1, max_size=20).filter(str.isprintable)
counts = st.integers(min_value=1, max_value=2**32 - 1)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
finite = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.text(max_size=20)
    # What JSON writes, it reads back to the last bit.
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
tables = st.dictionaries(st.text(max_size=8), finite, max_size=5)


def written(**changes: Any) -> dict[str, bytes]:
    return {"order": json.dumps({**PUBLIC, **changes}).encode()}


# -- orders --------------------------------------------------------------------------------------


def test_an_order_comes_back() -> None:
    assert read_order(ORDER.blobs()) == ORDER


@given(
    spec=tables,
    run=names,
    client=names,
    mechanism=tables,
    numbers=st.tuples(counts, counts, counts),
    classes=st.none() | counts,
    vectors=st.lists(st.binary(max_size=9), max_size=MOST_VECTORS),
)
@settings(max_examples=50)
def test_every_order_comes_back(
    spec: dict[str, Any],
    run: str,
    client: str,
    mechanism: dict[str, Any],
    numbers: tuple[int, int, int],
    classes: int | None,
    vectors: list[bytes],
) -> None:
    number, cohort, keep_from = numbers
    order = Order(
        spec=spec,
        run=run,
        round=number,
        client=client,
        cohort=cohort,
        mechanism=mechanism,
        classes=classes,
        keep_from=keep_from,
        vectors=tuple(vectors),
    )
    assert read_order(order.blobs()) == order


@pytest.mark.parametrize("missing", sorted(PUBLIC))
def test_an_order_that_lacks_anything_is_refused(missing: str) -> None:
    table = {key: value for key, value in PUBLIC.items() if key != missing}
    with pytest.raises(WireError):
        read_order({"order": json.dumps(table).encode()})


@pytest.mark.parametrize("version", [0, 3, 4, 6, "5", 5.0, True, None, [5]])
def test_another_version_is_refused_with_what_to_do(version: Any) -> None:
    with pytest.raises(WireError, match="install the same version"):
        read_order(written(version=version))


def test_more_than_an_order_says_is_refused() -> None:
    with pytest.raises(
        WireError, match="an order must have exactly the keys attempt, classes, client, "
    ):
        read_order(written(weight=1e9))


NO_COUNTS = [-1, 2**32, 10**30, -(10**30), 1.0, 1e300, "1", True, None, [1], {}]


@pytest.mark.parametrize("key", ["round", "cohort", "keep_from"])
@pytest.mark.parametrize("value", NO_COUNTS, ids=repr)
def test_counts_are_whole_numbers_of_a_size_that_ledgers_hold(key: str, value: Any) -> None:
    with pytest.raises(WireError, match=f"the order: '{key}' must be "):
        read_order(written(**{key: value}))


@pytest.mark.parametrize("value", [*(v for v in NO_COUNTS if v is not None), 0], ids=repr)
def test_classes_are_a_count_or_none(value: Any) -> None:
    with pytest.raises(WireError, match="'classes' must be "):
        read_order(written(classes=value))
    assert read_order(written(classes=None)).classes is None


def test_no_one_is_asked_alone_by_no_one() -> None:
    with pytest.raises(WireError, match=r"'cohort' must .*greater than or equal to 1"):
        read_order(written(cohort=0))
    assert read_order(written(round=0, keep_from=0)).keep_from == 0


@pytest.mark.parametrize("key", ["run", "client"])
@pytest.mark.parametrize(
    "value", ["", "a\nb", "\x00", "\ud800", "x" * 257, 3, None, ["a"], {}, True], ids=ascii
)
def test_names_can_be_written_into_ledgers_and_logs(key: str, value: Any) -> None:
    with pytest.raises(WireError, match=f"'{key}': .*1 to 256 characters"):
        read_order(written(**{key: value}))


@pytest.mark.parametrize("key", ["spec", "mechanism"])
@pytest.mark.parametrize("value", [None, [], "x", 3, True], ids=repr)
def test_tables_are_tables(key: str, value: Any) -> None:
    with pytest.raises(WireError, match=f"'{key}' must be a table"):
        read_order(written(**{key: value}))


def _nested(depth: int, opening: str, closing: str) -> bytes:
    text = json.dumps({**PUBLIC, "spec": {"deep": "HERE"}})
    return text.replace('"HERE"', opening * depth + "1" + closing * depth).encode()


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("depth", [31, 100, 900, 100_000])
def test_deep_nesting_is_refused(depth: int, opening: str, closing: str) -> None:
    with pytest.raises(WireError):
        read_order({"order": _nested(depth, opening, closing)})
    assert read_order({"order": _nested(20, opening, closing)}).round == ORDER.round


def test_an_order_is_bounded_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = json.dumps({**PUBLIC, "spec": {"wide": []}}).encode()
    members = wide.replace(b"[]", b"[" + b"[]," * MOST_VALUES + b"[]]")
    large = wide.replace(b"[]", b'"%s"' % (b"x" * MOST_JSON_BYTES))
    monkeypatch.setattr("json.loads", lambda *_, **__: pytest.fail("it was parsed"))
    for text, reason in (
        (_nested(100_000, "[", "]"), "nested more than 32 deep"),
        (members, f"more than {MOST_VALUES} values"),
        (large, f"at most {MOST_JSON_BYTES} are read"),
    ):
        with pytest.raises(WireError, match=f"the order .*{reason}"):
            read_order({"order": text})


def test_the_order_of_a_federation_of_65536_sites_is_read() -> None:
    names = [f"hospital-of-some-length-{number:05}" for number in range(65536)]
    groups = [{"clients": names[:30_000]}, {"clients": names[30_000:]}]
    spec = {"data": {"sites": dict.fromkeys(names, 123_456)}, "privacy": {"groups": groups}}
    order = dataclasses.replace(ORDER, spec=spec)
    assert len(order.blobs()["order"]) < MOST_JSON_BYTES / 2
    assert read_order(order.blobs()) == order


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_numbers_are_finite(number: str) -> None:
    text = json.dumps({**PUBLIC, "spec": {"rate": "HERE"}}).replace('"HERE"', number)
    with pytest.raises(WireError, match="not valid JSON"):
        read_order({"order": text.encode()})


def test_a_number_of_thousands_of_digits_is_refused() -> None:
    text = json.dumps({**PUBLIC, "round": "HERE"}).replace('"HERE"', "9" * 100_000)
    with pytest.raises(WireError):
        read_order({"order": text.encode()})


def test_of_a_key_that_is_given_twice_one_value_counts_for_everything() -> None:
    """There is one reading: what is checked is what is run."""
    text = ORDER.blobs()["order"].decode().replace('"cohort":4', '"cohort":4,"cohort":1000')
    assert read_order({"order": text.encode()}).cohort == 1000


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"order"',
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
    ],
)
def test_what_is_no_order_is_refused(text: bytes) -> None:
    with pytest.raises(WireError):
        read_order({"order": text})


@pytest.mark.parametrize(
    "blobs",
    [
        {},
        {"vector0": b""},
        {**ORDER.blobs(), "vector3": b"", "vector5": b""},
        {**ORDER.blobs(), "vector00": b""},
        {**ORDER.blobs(), "Order": b""},
        {key: value for key, value in ORDER.blobs().items() if key != "vector0"},
        {**ORDER.blobs(), **{f"vector{i}": b"" for i in range(MOST_VECTORS + 1)}},
        {"order": ORDER.blobs()["order"], **{f"vector{i}": b"" for i in range(10**5)}},
    ],
)
def test_vectors_are_counted_from_0_without_gaps(blobs: dict[str, bytes]) -> None:
    with pytest.raises(WireError):
        read_order(blobs)


@given(st.dictionaries(st.sampled_from(["order", "vector0", "vector1", "x"]), st.binary()))
def test_any_bytes_are_an_order_or_a_wire_error(blobs: dict[str, bytes]) -> None:
    with pytest.raises(WireError):
        read_order(blobs)


@given(st.dictionaries(st.sampled_from([*sorted(PUBLIC), "x"]), anything))
@settings(max_examples=150)
def test_any_json_is_an_order_or_a_wire_error(changes: dict[str, Any]) -> None:
    text = json.dumps({**PUBLIC, **changes})  # with NaN and Infinity, as Python writes them
    try:
        order = read_order({"order": text.encode()})
    except WireError:
        return
    assert read_order(order.blobs()) == order
    assert all(math.isfinite(value) for value in _floats(order.spec))


def _floats(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [found for inner in value.values() for found in _floats(inner)]
    if isinstance(value, list):
        return [found for inner in value for found in _floats(inner)]
    return [value] if isinstance(value, float) else []


@given(st.data())
def test_an_order_with_bytes_changed_is_an_order_or_a_wire_error(data: st.DataObject) -> None:
    text = bytearray(ORDER.blobs()["order"])
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_order({"order": bytes(text)})
    except WireError:
        return


# -- replies -------------------------------------------------------------------------------------


@given(st.lists(st.binary(), max_size=12))
def test_every_reply_comes_back(messages: list[bytes]) -> None:
    assert read_reply(reply_blobs(messages), uplinks=len(messages)) == messages


@given(
    st.dictionaries(st.sampled_from(["uplink0", "uplink1", "uplink2", "uplink", ""]), st.binary()),
    st.integers(0, 3),
)
def test_a_reply_is_what_was_asked_for_or_a_wire_error(
    blobs: dict[str, bytes], uplinks: int
) -> None:
    wanted = {f"uplink{number}" for number in range(uplinks)}
    if set(blobs) == wanted:
        assert read_reply(blobs, uplinks=uplinks) == [blobs[f"uplink{i}"] for i in range(uplinks)]
        return
    with pytest.raises(WireError, match="and no other part"):
        read_reply(blobs, uplinks=uplinks)


@given(st.lists(st.binary(), max_size=3), st.none() | st.integers(0, 2**32 - 1), st.text())
def test_what_a_site_says_of_its_ledger_comes_back(
    messages: list[bytes], charged: int | None, reason: str
) -> None:
    blobs = reply_blobs(messages, charged)
    assert read_reply(blobs, uplinks=len(messages)) == messages
    assert read_refusal(blobs) is None
    assert read_rounds_charged(blobs) == charged
    reason = reason.encode(errors="ignore").decode()
    refused = refusal_blobs(reason, charged)
    assert read_refusal(refused) == (reason[:300] or "no reason given")
    assert read_rounds_charged(refused) == charged


@pytest.mark.parametrize(
    "text", [b"", b"-1", b"+1", b" 1", b"1.0", b"1e3", b"4294967296", b"9" * 5000, "٣".encode()]
)
def test_a_count_that_is_none_is_a_wire_error(text: bytes) -> None:
    with pytest.raises(WireError, match="integer from 0 to 4294967295"):
        read_rounds_charged({"rounds_charged": text})


def test_a_refusal_with_messages_is_a_wire_error_and_a_long_or_odd_reason_is_cut() -> None:
    with pytest.raises(WireError, match="no messages"):
        read_refusal({"refused": b"no", "uplink0": b""})
    assert read_refusal({"refused": b"\xff" * 10**6}) == "\ufffd" * 300


# -- records -------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(max_size=64), st.binary(), max_size=MOST_PARTS))
def test_every_record_comes_back(blobs: dict[str, bytes]) -> None:
    assert from_records(to_records(blobs)) == blobs


@pytest.mark.parametrize("names", [range(MOST_PARTS + 1), ["x" * 65]])
def test_a_record_of_many_parts_or_of_long_names_is_refused(names: Any) -> None:
    with pytest.raises(WireError, match=r"at most 24 parts .* names of at most 64 letters"):
        from_records(to_records({str(name): b"" for name in names}))


plain = st.binary() | st.text() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.booleans()
values = plain | st.lists(st.binary(), min_size=1) | st.lists(st.floats(), min_size=1)


@given(st.dictionaries(st.text(max_size=5), values, min_size=1, max_size=6))
def test_a_record_of_bytes_alone_is_read(entries: dict[str, Any]) -> None:
    content = RecordDict({RECORD: ConfigRecord(entries)})
    if all(isinstance(value, bytes) for value in entries.values()):
        assert from_records(content) == entries
        return
    with pytest.raises(WireError, match="expected only bytes"):
        from_records(content)


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({}),
        RecordDict({"other": ConfigRecord({})}),
        RecordDict({RECORD: ConfigRecord({}), "metrics": MetricRecord({"loss": 0.1})}),
        RecordDict({RECORD: MetricRecord({"loss": 0.1})}),
        RecordDict({RECORD: ArrayRecord({})}),
    ],
)
def test_a_message_with_anything_else_is_refused(content: RecordDict) -> None:
    with pytest.raises(WireError):
        from_records(content)
