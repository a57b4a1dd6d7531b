"""Conversion of orders and replies to Flower records: bytes in one ConfigRecord."""

from collections.abc import Mapping

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from sottovoce.core.errors import WireError
from sottovoce.deployment.orders import MOST_VECTORS, Blobs

RECORD = "sottovoce"
MOST_PARTS = 8 + MOST_VECTORS  # An order and its vectors, or messages and a ledger statement.
_LONGEST_NAME = 64
_LONGEST_REASON = 300
# Replacements for Flower's error texts, which mention databases and heartbeats.
_REASONS = {
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "its node could not load the app; see the site's log",
    ErrorCode.MESSAGE_UNAVAILABLE: "it did not answer by the deadline{deadline}",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "it did not answer by the deadline{deadline}",
    ErrorCode.NODE_UNAVAILABLE: "its node went offline before it answered; start it again",
    ErrorCode.INVALID_FAB: "its node did not accept the app of the run; see the site's log",
    ErrorCode.CLIENT_APP_CRASHED: "its process ended before it answered; see the site's log",
}


def to_records(blobs: Blobs) -> RecordDict:
    """Return bytes by name as the content of a Flower message."""
    return RecordDict({RECORD: ConfigRecord(dict(blobs))})


def from_records(content: RecordDict) -> dict[str, bytes]:
    """Return the bytes by name in the content of a message, which is not trusted.

    Raises WireError if it holds anything else, more than `MOST_PARTS` parts or too long names.
    """
    if list(content) != [RECORD]:
        raise WireError(f"expected one record '{RECORD}' in a message, got {len(content)} records")
    record = content[RECORD]
    if not isinstance(record, ConfigRecord):
        raise WireError(
            f"expected the record '{RECORD}' to be a ConfigRecord, got a {type(record).__name__}"
        )
    found: Mapping[str, object] = record
    if len(found) > MOST_PARTS or any(len(name) > _LONGEST_NAME for name in found):
        raise WireError(
            f"expected at most {MOST_PARTS} parts in the record '{RECORD}', with names of at most "
            f"{_LONGEST_NAME} letters; got {len(found)} parts"
        )
    blobs = {name: value for name, value in found.items() if isinstance(value, bytes)}
    if len(blobs) < len(found):
        raise WireError(f"expected only bytes in the record '{RECORD}', got other types")
    return blobs


def describe_failure(error: Error, deadline_seconds: float) -> str:
    """Return in plain words why there is no reply; a reason that the site gave is kept.

    `deadline_seconds` is the time that the site had, for the text. The result has at most 300
    letters.
    """
    words = _REASONS.get(error.code)
    if words is not None:
        return words.format(deadline=f", {deadline_seconds:.3g} s after it was asked")
    return (error.reason or f"it failed and gave no reason (error {error.code})")[:_LONGEST_REASON]


def total_bytes(message: Message) -> int:
    """Return the bytes of all objects of a message, without those of the transport."""
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())
