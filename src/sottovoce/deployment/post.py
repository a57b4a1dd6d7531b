"""Between server and clients: what the rounds need of whoever carries orders and replies."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

from sottovoce.deployment.orders import Blobs


class Parcel(Protocol):
    """What one client is sent: bytes, as a message of this type of Flower's, in this round."""

    message_type: ClassVar[str]

    @property
    def round(self) -> int: ...

    def blobs(self) -> dict[str, bytes]: ...


P = TypeVar("P", bound=Parcel, contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Something that came back for an order: `blobs`, or why there are none."""

    client: str
    blobs: Blobs | None
    failure: str | None = None
    total_bytes: int = 0


class Post(Protocol[P]):
    """Carries parcels to clients by name, and replies back; trusts no reply."""

    def reachable(self, clients: Sequence[str]) -> frozenset[str]:
        """Which of these can be asked now."""
        ...

    def send(self, orders: Mapping[str, P], *, expires_seconds: float) -> int:
        """Ask; replies to earlier orders are no longer collected. The bytes that were sent."""
        ...

    def traffic(self) -> tuple[int, int] | None:
        """All bytes so far from clients and to them, control and all; None if nobody counts."""
        ...

    def collect(self) -> Iterable[Reply]:
        """Whatever has come since the last call."""
        ...
