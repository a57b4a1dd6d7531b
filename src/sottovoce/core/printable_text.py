r"""Conversion of untrusted text into text that is safe to print.

Names of clients, columns and nodes, keys of specs and reasons of refusals come from other parties.
A terminal obeys control characters in them: they move the cursor, erase text, change colors or the
window's title; and characters that change the writing direction make a line read as another one.
Every character that is not printable is written as \uXXXX, as in JSON.

This module also defines the default names of clients, because it does not import torch.
"""

import logging
import traceback
from collections.abc import Mapping
from typing import Any


def client_name(number: int) -> str:
    """Return the default name of client number `number`, such as "client-0007"."""
    return f"client-{number:04d}"


LOGGER = "sottovoce"
_MOST_TOLD = 3


def printable(text: object) -> str:
    r"""Return text on one line with everything that is not printable escaped, line ends too.

    A character is escaped as \uXXXX, or as \UXXXXXXXX above U+FFFF.

    Examples:
        >>> print(printable("a\nb"))
        a\u000ab
    """
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(one if one.isprintable() else _escaped(one) for one in plain)


def printable_lines(text: object) -> str:
    r"""Return text with everything that is not printable escaped as \uXXXX, except "\n"."""
    return "\n".join(printable(line) for line in str(text).split("\n"))


def printable_data(value: Any) -> Any:
    r"""Return a copy of nested data in which every string, also a key, is printable on one line.

    Other characters are escaped as \uXXXX. Tuples become lists; other values stay as they are.
    """
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
    """Return the logger "sottovoce", which makes each record that is logged to it printable.

    What is not printable is escaped, except line ends. Records of child loggers are not changed.
    """
    found = logging.getLogger(LOGGER)
    if not any(isinstance(one, _Printable) for one in found.filters):
        found.addFilter(_Printable())
    return found


class _Printable(logging.Filter):
    """A filter that makes a log record and its traceback printable before any handler sees it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record in place and accept it."""
        record.msg, record.args = printable_lines(record.getMessage()), ()
        if record.exc_info and not record.exc_text:
            lines = "".join(traceback.format_exception(*record.exc_info))
            record.exc_text = printable_lines(lines.rstrip("\n"))
        return True


def _escaped(one: str) -> str:
    number = ord(one)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def format_reasons(reasons: Mapping[str, str]) -> str:
    """Return the first three clients' reasons for not replying, for an error message.

    Args:
        reasons: The reasons by the name of the client.

    Returns:
        "'NAME': REASON; " for each of them, so that the message can go on after it; an empty
        string if there are no reasons. Nothing is escaped.
    """
    some = list(reasons.items())[:_MOST_TOLD]
    return "".join(f"'{client}': {reason}; " for client, reason in some)
