"""JSON is bounded before it is parsed: by bytes, depth, values and digits, and for no good text."""

import json
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.core.bounded_json import BoundsError, JsonError, loads

odd_text = st.text(st.sampled_from('a"\\[]{},0é\n'), max_size=9)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | odd_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(odd_text, inner, max_size=4),
    max_leaves=12,
)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth, inner), default=0) if isinstance(value, dict | list) else 0


def members(value: Any) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value
    return len(inner) + sum(map(members, inner)) if isinstance(value, dict | list) else 0


@settings(max_examples=50)
@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_what_json_writes_is_read_at_its_own_depth_and_not_below(
    value: Any, ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert loads(text, most_nested=depth(value), most_bytes=len(text)) == value
    if depth(value):
        with pytest.raises(BoundsError, match="nested more than"):
            loads(text, most_nested=depth(value) - 1)
    with pytest.raises(BoundsError, match="bytes"):
        loads(text, most_bytes=len(text) - 1)


@settings(max_examples=30)
@given(values)
def test_values_are_counted_and_none_twice(value: Any) -> None:
    text = json.dumps(value).encode()
    brackets = json.dumps(_without_text(value)).count("[") + json.dumps(_without_text(value)).count(
        "{"
    )
    assert loads(text, most_values=members(value) + brackets) == value
    if members(value) > 2:
        with pytest.raises(BoundsError, match="values"):
            loads(text, most_values=(members(value) - 1) // 2)


def _without_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(place): _without_text(one) for place, one in enumerate(value.values())}
    if isinstance(value, list):
        return [_without_text(one) for one in value]
    return 0


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 10**6,
        b"[" * 10**6 + b"]" * 10**6,
        b'{"a":' * 10**6,
        b"[[],[[" + b"[],{}," * 10**6,
        b'["\\"",' + b"[" * 10**6,
        b"9" * 10**6,
        b"-" + b"9" * 5000,
        b'"' * 10**6,
        b"[" + b"1," * 10**6,
    ],
)
def test_text_out_of_bounds_never_reaches_the_parser(
    text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("json.loads", lambda *_, **__: pytest.fail("it was parsed"))
    with pytest.raises(BoundsError):
        loads(text, most_values=1000)


def test_a_number_may_be_as_long_as_a_float_is_large_and_no_longer() -> None:
    assert loads(b"9" * 300) == 10**300 - 1 < sys.float_info.max
    with pytest.raises(BoundsError, match="a number of more than 300 digits"):
        loads(b"[1, 1" + b"0" * 300 + b"]")
    assert loads(b'"' + b"9" * 400 + b'"') == "9" * 400  # text


@pytest.mark.parametrize("text", [b"", b"{", b"]", b"[}", b"\\", b'"\\', b'["', b"[1 2]", b"]]]["])
def test_what_is_no_json_is_refused_as_such(text: bytes) -> None:
    with pytest.raises(JsonError, match="is not valid JSON"):
        loads(text)


def test_only_utf8_is_read_and_only_finite_numbers_where_asked() -> None:
    with pytest.raises(JsonError, match="not UTF-8"):
        loads('["é"]'.encode("latin-1"))
    for text in (b"NaN", b"-Infinity", b"1e999"):
        assert isinstance(loads(text), float)
        with pytest.raises(JsonError, match="not valid JSON"):
            loads(text, finite=True)
