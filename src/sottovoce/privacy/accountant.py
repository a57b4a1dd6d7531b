"""What an accountant is, and the register of accountants: one decorator on a class.

    @register(summary="Renyi divergences, added up and converted")
    class FooAccountant:
        name = "foo"
        ...

Drop the file into `privacy/`, or name its module under the entry point group
`accountants` (see `core.registry`). Our own are held against exact enumeration, and
the smallest of their bounds is the epsilon that is printed; a plug-in's bound is printed only where
it is asked for by name, and never takes part in that minimum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sottovoce.core.registry import Register
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """An accountant, what it does in a few words, its turn, and whether it takes long."""

    accountant: Accountant
    summary: str
    turn: int
    slow: bool


A = TypeVar("A", bound=Callable[[], Accountant])

ACCOUNTANTS: Register[Registered] = Register("accountant", package="sottovoce.privacy")


def register(*, summary: str, turn: int = 100, slow: bool = False) -> Callable[[A], A]:
    """Class decorator that enters an accountant.

    Accountants are asked by turn, and the first of equal bounds gives its name to the epsilon; slow
    ones come last, and only where the others have not shown enough.
    """

    def enter(own: A) -> A:
        accountant = own()
        registered = Registered(accountant=accountant, summary=summary, turn=turn, slow=slow)
        ACCOUNTANTS.enter(accountant.name, registered, module=own.__module__)
        return own

    return enter
