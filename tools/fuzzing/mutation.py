"""Small changes of valid inputs, so that most cases pass the first checks."""

import copy
import datetime
import json
import math
from collections.abc import Sequence
from random import Random
from typing import Any

ODD_NUMBERS: tuple[Any, ...] = (
    0, -0.0, 1, -1, 2, 7, 0.5, 1e-300, 5e-324, 1e308, -1e308, 2**31, 2**32, 2**53 + 1, 2**63, 2**64,
    2**127, 10**30, -(2**63), math.inf, -math.inf, math.nan, 1.0000000000000002, 255, 256, 65536,
)  # fmt: skip
ODD_TEXTS: tuple[str, ...] = (
    "", " ", "auto", "0", "-1", "nan", "inf", "1e999", "a" * 300, "\x00", "\x1b[2J", "\ud800",
    "\u202e", "é", "王", "../../etc/passwd", "/dev/null", "csv:x", "npz:x", "[red]", "{}", "%s",
    "²", "٣", "\n", "'", '"', "\\", "None", "true", "mvu", "gaussian", "no_privacy", "kind",
    "zero-out",
)  # fmt: skip
ODD_OTHERS: tuple[Any, ...] = (
    None, True, False, [], {}, [[]], [None], {"": None}, {"kind": 1}, {"0": {}}, [1, "a", None],
    {"kind": "mvu"}, (), datetime.date(2024, 1, 1), datetime.time(1), b"bytes",
)  # fmt: skip


def odd_value(random: Random) -> Any:
    """Return a value that is valid almost nowhere."""
    kind = random.randrange(4)
    if kind == 0:
        return random.choice(ODD_NUMBERS)
    if kind == 1:
        return random.choice(ODD_TEXTS)
    if kind == 2:
        return copy.deepcopy(random.choice(ODD_OTHERS))
    number = random.randrange(1 << random.randrange(1, 70))
    return random.choice((random.random(), number, [0] * 40))


def odd_json(random: Random) -> Any:
    """Return such a value that JSON can hold."""
    while True:
        value = odd_value(random)
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            continue
        return value


def near(random: Random, value: Any) -> Any:
    """Return a value similar to the given one."""
    match value:
        case bool():
            return not value
        case int():
            return value + random.choice((-1, 1, 2, value, -2 * value, 1 << random.randrange(66)))
        case float():
            return value * random.choice((0.0, -1.0, 0.5, 2.0, 1e10, 1e-10, 1 + 1e-15))
        case str():
            return text_mutated(random, value)
        case _:
            return odd_value(random)


def plain_mutated(random: Random, value: Any, *, times: int = 0) -> Any:
    """Return a copy of nested plain data with one to three changes inside."""
    found = copy.deepcopy(value)
    for _ in range(times or random.choice((1, 1, 1, 2, 3))):
        found = _changed(random, found)
    return found


def _changed(random: Random, value: Any) -> Any:
    places = list(_places(value, ()))
    if not places or random.random() < 0.01:
        return odd_value(random)
    *way, last = random.choice(places)
    inside = value
    for step in way:
        inside = inside[step]
    what = random.randrange(8)
    if what <= 1:
        inside[last] = odd_value(random)
    elif what <= 4:
        inside[last] = near(random, inside[last])
    elif what == 5:
        del inside[last]
    elif what == 6 and isinstance(inside, dict):
        name = text_mutated(random, last) if random.random() < 0.5 else random.choice(ODD_TEXTS)
        inside[name] = inside.pop(last) if random.random() < 0.5 else odd_value(random)
    elif what == 6:
        inside.append(copy.deepcopy(inside[last]))
    else:  # a part of the whole where another stood
        *other, end = random.choice(places)
        there = value
        for step in other:
            there = there[step]
        inside[last] = copy.deepcopy(there[end])
    return value


def _places(value: Any, way: tuple[Any, ...]) -> Any:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        yield (*way, key)
        if len(way) < 12:
            yield from _places(item, (*way, key))


def text_mutated(random: Random, text: str) -> str:
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(text) + 1)
        what = random.randrange(5)
        if what == 0:
            text = text[:at] + text[at + random.randrange(1, 4) :]
        elif what == 1:
            text = text[:at] + random.choice(ODD_TEXTS)[:40] + text[at:]
        elif what == 2:
            text = text[:at] + random.choice('\n",=[]0\x1b\x80') + text[at:]
        elif what == 3:
            end = min(len(text), at + random.randrange(1, 20))
            text = text[:at] + text[at:end] * 2 + text[end:]
        else:
            text = text[:at] + repr(random.choice(ODD_NUMBERS)) + text[at + 1 :]
    return text


def bytes_mutated(random: Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 5, 20))):
        what = random.randrange(6)
        at = random.randrange(len(found)) if found else 0
        if what == 0 and found:
            found[at] ^= 1 << random.randrange(8)
        elif what == 1 and found:
            found[at] = random.choice((0, 1, 127, 128, 255, random.randrange(256)))
        elif what == 2:
            del found[at : at + random.randrange(1, 1 + max(1, len(found) // 4))]
        elif what == 3:
            found[at:at] = random.randbytes(random.randrange(1, 9))
        elif what == 4 and len(found) > 8:
            found[at : at + 8] = random.choice((b"\xff" * 8, bytes(8), b"\x00\x00\x00\x80" * 2))
        elif what == 5 and found:
            start = random.randrange(len(found))
            found[at : at + 16] = found[start : start + 16]
    return bytes(found)


def one_of(random: Random, examples: Sequence[Any]) -> Any:
    return random.choice(examples)
