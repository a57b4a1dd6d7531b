"""What every client of a round is sent, and what it reads of that.

The server's model stays in float64 with the server. Clients start from what arrives, and their
updates are relative to it, so that the server can add them to its own model: rounding on the way
down never adds up over rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from sottovoce.core.domains import Vector
from sottovoce.core.errors import WireError
from sottovoce.protocol.broadcast import DownlinkFormat, pack, unpack


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where clients start from in a round: the model, and the state that they may read."""

    model: Vector
    state: Mapping[str, NDArray[Any]]


def sent(start: Start, shared_state: Sequence[str], downlink: DownlinkFormat) -> tuple[bytes, ...]:
    """The vectors that go down, packed: the model, then what the algorithm shares of its state."""
    vectors = (start.model, *(start.state[name] for name in shared_state))
    return tuple(pack(vector, downlink) for vector in vectors)


def received(
    payloads: Sequence[bytes],
    shared_state: Sequence[str],
    dimension: int,
    downlink: DownlinkFormat,
) -> Start:
    """What a client reads of what was `sent`, else WireError."""
    if len(payloads) != 1 + len(shared_state):
        raise WireError(
            f"{len(payloads)} vectors arrived, expected {1 + len(shared_state)}; server and client "
            "need the same algorithm"
        )
    model, *others = (unpack(payload, dimension, downlink) for payload in payloads)
    return Start(model=model, state=dict(zip(shared_state, others, strict=True)))
