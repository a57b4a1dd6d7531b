"""What an accountant is."""

from typing import Protocol

from sottovoce.privacy.events import PrivacyEvent


class Accountant(Protocol):
    """A sound bound on what an event gives away. Pure; an unsupported event is an error."""

    @property
    def name(self) -> str: ...

    def epsilon(self, event: PrivacyEvent, delta: float) -> float:
        """An epsilon such that the event is (epsilon, delta)-DP; infinity if there is none."""
        ...

    def delta(self, event: PrivacyEvent, epsilon: float) -> float:
        """A delta such that the event is (epsilon, delta)-DP."""
        ...
