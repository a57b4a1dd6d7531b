"""The server receives every message and knows whose it is."""

from dataclasses import dataclass
from typing import ClassVar

from sottovoce.core.adjacency import Adjacency
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.protocol.means import Cohort, Mean, mean_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """No hiding: a message is charged with its mechanism's local privacy."""

    hides_sender: ClassVar[bool] = False

    def event(self, mechanism: Mechanism, adjacency: Adjacency) -> PrivacyEvent:
        return mechanism.privacy(adjacency)

    def check(self, cohort: Cohort) -> None:
        """Any mechanisms and weights will do."""

    def serves(self, clients: int) -> bool:  # noqa: ARG002
        """Any cohort will do."""
        return True

    def collector(self, dimension: int, cohort: Cohort) -> Mean:
        return mean_of(dimension, cohort)

    def describe(self) -> str:
        return "direct: the server sees every message"
