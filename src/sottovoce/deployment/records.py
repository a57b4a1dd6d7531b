"""Orders and replies as Flower's records: bytes in one ConfigRecord, without headers of arrays."""

from collections.abc import Mapping

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from sottovoce.deployment.orders import Blobs
from sottovoce.errors import WireError

RECORD = "sottovoce"


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
    blobs = {name: value for name, value in found.items() if isinstance(value, bytes)}
    if len(blobs) < len(found):
        raise WireError(f"the record '{RECORD}' holds something else than bytes")
    return blobs


def total_bytes(message: Message) -> int:
    """What the objects of a message take, as they are sent; the transport adds its own."""
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())
