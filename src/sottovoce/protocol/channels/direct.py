"""The server receives every message and knows whose it is."""

from dataclasses import dataclass
from typing import ClassVar

from sottovoce.mechanisms.release import EveryMessage
from sottovoce.protocol.means import Cohort, Mean, mean_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """Nothing is hidden."""

    hides_sender: ClassVar[bool] = False

    @property
    def wire_name(self) -> str:
        """The name in the hash of a plan, whatever the class is called; it never changes."""
        return "Direct()"

    @property
    def visibility(self) -> EveryMessage:
        """Everything is seen."""
        return EveryMessage()

    def check(self, cohort: Cohort) -> None:
        """Any mechanisms and weights will do."""

    def serves(self, clients: int) -> bool:  # noqa: ARG002
        """Any cohort will do."""
        return True

    def collector(self, dimension: int, cohort: Cohort) -> Mean:
        return mean_of(dimension, cohort)

    def describe(self) -> str:
        return "direct: the server sees every message"
