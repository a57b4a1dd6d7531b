"""Text of others, written so that it can only be read.

Names of clients, columns and nodes, keys of specs and reasons for refusals come from elsewhere. A
terminal obeys control characters in them: it moves, erases, changes colours or the window's title;
and characters that turn the direction of writing make a line read as another. Whatever is not
printable is written out as \\uXXXX, which is also how JSON writes it.

What a client is called unless a spec says; here, since it is asked where torch is not.
"""

import logging
import traceback
from collections.abc import Mapping
from typing import Any


def client_name(number: int) -> str:
    return f"client-{number:04d}"


LOGGER = "sottovoce"
_MOST_TOLD = 3


def printable(text: object) -> str:
    """One line: line ends are written out too."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(one if one.isprintable() else _escaped(one) for one in plain)


def printable_lines(text: object) -> str:
    """The same for text of several lines, which are kept."""
    return "\n".join(printable(line) for line in str(text).split("\n"))


def printable_data(value: Any) -> Any:
    """Nested plain data with every text in it, keys too, on one printable line."""
    match value:
        case str():
            return printable(value)
        case Mapping():
            return {printable_data(key): printable_data(item) for key, item in value.items()}
        case list() | tuple():
            return [printable_data(item) for item in value]
        case _:
            return value


def logger() -> logging.Logger:
    """Our logger: what it is told of others' names and errors is printable."""
    found = logging.getLogger(LOGGER)
    if not any(isinstance(one, _Printable) for one in found.filters):
        found.addFilter(_Printable())
    return found


class _Printable(logging.Filter):
    """Rewrites a record before any handler sees it, its traceback too."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = printable_lines(record.getMessage()), ()
        if record.exc_info and not record.exc_text:
            lines = "".join(traceback.format_exception(*record.exc_info))
            record.exc_text = printable_lines(lines.rstrip("\n"))
        return True


def _escaped(one: str) -> str:
    number = ord(one)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def reasons_told(reasons: Mapping[str, str]) -> str:
    """What was heard of some clients instead of a reply, for an error's text."""
    some = list(reasons.items())[:_MOST_TOLD]
    return "".join(f"'{client}': {reason}; " for client, reason in some)
