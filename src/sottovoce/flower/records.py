"""Orders and replies as Flower's records: bytes in one ConfigRecord, without headers of arrays."""

from collections.abc import Mapping

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from sottovoce.core.errors import WireError
from sottovoce.deployment.orders import MOST_VECTORS, Blobs

RECORD = "sottovoce"
MOST_PARTS = 8 + MOST_VECTORS  # an order and its vectors, or messages and what a ledger says
_LONGEST_NAME = 64
_LONGEST_REASON = 300
# What Flower says of a message without a reply; its own texts speak of databases and heartbeats.
_REASONS = {
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "its node could not load the app; see the site's log",
    ErrorCode.MESSAGE_UNAVAILABLE: "it did not answer by the deadline{deadline}",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "it did not answer by the deadline{deadline}",
    ErrorCode.NODE_UNAVAILABLE: "its node went offline before it answered; start it again",
    ErrorCode.INVALID_FAB: "its node did not accept the app of the run; see the site's log",
    ErrorCode.CLIENT_APP_CRASHED: "its process ended before it answered; see the site's log",
}


def to_records(blobs: Blobs) -> RecordDict:
    return RecordDict({RECORD: ConfigRecord(dict(blobs))})


def from_records(content: RecordDict) -> dict[str, bytes]:
    """The bytes of a message, which may be anybody's; WireError if it holds anything else."""
    if list(content) != [RECORD]:
        raise WireError(f"a message has the record '{RECORD}' and nothing else")
    record = content[RECORD]
    if not isinstance(record, ConfigRecord):
        raise WireError(f"the record '{RECORD}' is a {type(record).__name__}, not a ConfigRecord")
    found: Mapping[str, object] = record
    if len(found) > MOST_PARTS or any(len(name) > _LONGEST_NAME for name in found):
        raise WireError(
            f"the record '{RECORD}' has at most {MOST_PARTS} parts, whose names have at most "
            f"{_LONGEST_NAME} letters"
        )
    blobs = {name: value for name, value in found.items() if isinstance(value, bytes)}
    if len(blobs) < len(found):
        raise WireError(f"the record '{RECORD}' holds something else than bytes")
    return blobs


def failure_of(error: Error, deadline_seconds: float) -> str:
    """Why there is no reply, in plain words; a site's own reason is kept as it is."""
    words = _REASONS.get(error.code)
    if words is not None:
        return words.format(deadline=f", {deadline_seconds:.3g} s after it was asked")
    return (error.reason or f"it failed and gave no reason (error {error.code})")[:_LONGEST_REASON]


def total_bytes(message: Message) -> int:
    """What the objects of a message take, as they are sent; the transport adds its own."""
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())
