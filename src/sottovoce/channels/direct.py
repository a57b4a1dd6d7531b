"""The server receives every message and knows whose it is."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from sottovoce.adjacency import Adjacency
from sottovoce.aggregation.mean import StreamingMean
from sottovoce.domains import Vector
from sottovoce.mechanisms.mechanism import Codes, Mechanism
from sottovoce.privacy.events import PrivacyEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """No hiding: a message is charged with its mechanism's local privacy."""

    hides_sender: ClassVar[bool] = False

    def event(self, mechanism: Mechanism, adjacency: Adjacency) -> PrivacyEvent:
        return mechanism.privacy(adjacency)

    def check(self, cohort: Iterable[tuple[Mechanism, float]]) -> None:
        """Any mechanisms and weights will do."""

    def serves(self, clients: int) -> bool:  # noqa: ARG002
        """Any cohort will do."""
        return True

    def collector(self, dimension: int) -> "DecodedMean":
        return DecodedMean(dimension)

    def describe(self) -> str:
        return "direct: the server sees every message"


class DecodedMean:
    """The weighted mean of decoded messages."""

    def __init__(self, dimension: int) -> None:
        self._mean = StreamingMean(dimension)

    def add(self, mechanism: Mechanism, weight: float, codes: Codes) -> None:
        self._mean.add(mechanism.decode(codes), weight)

    def result(self) -> Vector | None:
        return self._mean.result()
