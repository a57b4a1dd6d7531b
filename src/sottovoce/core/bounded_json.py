"""A JSON parser with bounds on size, depth and numbers, checked before anything is parsed.

A few bytes of JSON can take a hundred times their size in memory (`[[],[],...`), and text nested
some thousand levels deep exceeds Python's recursion limit. So the text is scanned first, in time
and memory proportional to its length: strings are left out, brackets and commas are counted.
"""

import json
import math
from typing import Any

MOST_NESTED = 64  # A spec inside a run's record is nested less than half as deep.
_MOST_DIGITS = 300  # A longer whole number is close to, or above, the largest float.
_SKELETON = bytes.maketrans(b"{}123456789", b"[]000000000")  # One kind of brackets and digits.
_REST = bytes(set(range(256)) - set(b"[]{},0123456789"))


class JsonError(ValueError):
    """An error for text that is not parsed.

    The message has no subject, so that the caller can put the name of the text before it: "is not
    valid JSON ...".
    """


class BoundsError(JsonError):
    """An error for text that is too large, too deep, or has numbers that are too long."""


def loads(
    text: bytes,
    *,
    most_bytes: int | None = None,
    most_values: int | None = None,
    most_nested: int = MOST_NESTED,
    finite: bool = False,
) -> Any:
    """Parse UTF-8 JSON within bounds.

    Args:
        text: The JSON.
        most_bytes: The longest text that is parsed, in bytes; None for no bound.
        most_values: The most members of lists and objects, all together; an empty one counts as if
            it had one member. None for no bound.
        most_nested: How deep lists and objects may be nested.
        finite: Whether NaN, Infinity and numbers that overflow a float64 raise JsonError.

    Returns:
        The parsed value.

    Raises:
        BoundsError: The text exceeds a bound, or has a number of more than 300 digits; it was not
            parsed.
        JsonError: The text is not JSON in UTF-8.

    Examples:
        >>> loads(b'{"rounds": [1, 2]}', most_values=3)
        {'rounds': [1, 2]}
        >>> loads(b"[" * 100_000)
        Traceback (most recent call last):
        sottovoce.core.bounded_json.BoundsError: is nested more than 64 deep
    """
    if most_bytes is not None and len(text) > most_bytes:
        raise BoundsError(f"has {len(text)} bytes, and at most {most_bytes} are read")
    _check_structure(text, most_values, most_nested)
    hook = _finite_number if finite else None
    try:
        return json.loads(text.decode(), parse_constant=hook, parse_float=hook)
    except UnicodeDecodeError:
        raise JsonError("is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise JsonError(f"is not valid JSON: {error}") from None


def _check_structure(text: bytes, most_values: int | None, most_nested: int) -> None:
    unescaped = text.replace(rb"\\", b"").replace(rb"\"", b"")
    # A member has at most two strings, its key and its value, each with two quotation marks.
    if most_values is not None and unescaped.count(b'"') > 4 * most_values + 2:
        raise BoundsError(f"holds more than {most_values} values")
    skeleton = b"".join(unescaped.split(b'"')[::2]).translate(_SKELETON, _REST)
    if b"0" * (_MOST_DIGITS + 1) in skeleton:
        raise BoundsError(f"holds a number of more than {_MOST_DIGITS} digits")
    if most_values is not None and skeleton.count(b",") + skeleton.count(b"[") > most_values:
        raise BoundsError(f"holds more than {most_values} values")
    brackets = skeleton.translate(None, b",0")
    for _ in range(most_nested):  # Each pass removes the innermost pairs.
        brackets = brackets.replace(b"[]", b"")
    if b"[]" in brackets or brackets.count(b"[") > most_nested:
        raise BoundsError(f"is nested more than {most_nested} deep")


def _finite_number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a number in JSON")
    return value
