"""What clients of a relay train on: one order for all of them, the content of an announcement.

It is public, like any order of a server, and names no client. A client takes from it what to
compute; what it may answer, it decides by its own policy.
"""

import dataclasses
import struct

from sottovoce.core.errors import WireError
from sottovoce.deployment.orders import MOST_VECTORS, ORDER, Order

EVERYONE = "everyone"  # In the place of the client's name.
_LENGTH = struct.Struct("<I")


def pack_order(order: Order) -> bytes:
    """Return an order for all clients as the content of an announcement."""
    parts = [dataclasses.replace(order, client=EVERYONE).table()[ORDER], *order.vectors]
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def unpack_order(content: bytes, client: str) -> Order:
    """Return the order in an announcement's content, as an order to one client.

    Args:
        content: The content.
        client: The name of the client that reads it.

    Raises:
        WireError: It is no order for all clients.
    """
    parts: list[bytes] = []
    start = 0
    while start < len(content):
        if start + _LENGTH.size > len(content) or len(parts) > MOST_VECTORS:
            raise WireError(f"expected an order with at most {MOST_VECTORS} vectors")
        (length,) = _LENGTH.unpack_from(content, start)
        start += _LENGTH.size
        if start + length > len(content):
            raise WireError("expected an order, got one that is cut off")
        parts.append(content[start : start + length])
        start += length
    if not parts:
        raise WireError("expected an order, got an announcement without content")
    found = Order.read(parts[0], vectors=tuple(parts[1:]))
    if found.client != EVERYONE:
        raise WireError("expected an order for all clients, got one for a single client")
    return dataclasses.replace(found, client=client)
