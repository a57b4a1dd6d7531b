"""The smallest sound bound, and the name of the accountant that gave it.

Accountants are registered by one decorator on a class:

    @register(summary="Renyi divergences, added up and converted")
    class FooAccountant:
        name = "foo"
        ...

Drop the file into `privacy/`, or name its module under the entry point group
`accountants` (see `core.registry`). Our own are held against exact enumeration, and
the smallest of their bounds is the epsilon that is printed; a plug-in's bound is printed only where
it is asked for by name, and never takes part in that minimum.
"""

import decimal
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Protocol, TypeVar

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.display import show_epsilon
from sottovoce.core.errors import PluginError, UnsupportedEventError
from sottovoce.core.registry import Register
from sottovoce.privacy.compositions import assumptions_in_words, unhidden
from sottovoce.privacy.events import PrivacyEvent, assumption_in_words


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


@cache
def accountants(*, quick: bool = False) -> tuple[Accountant, ...]:
    """Our own accountants, whose bounds are proved and tested, in their turn; the slow ones last.

    A slow one leaves to the others what they are exact for.
    """
    known = sorted(ACCOUNTANTS.ours().values(), key=lambda one: (one.slow, one.turn))
    return tuple(one.accountant for one in known if not (quick and one.slow))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacySpent:
    """(epsilon, delta) under an adjacency, by the accountant that gave the smallest epsilon."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    accountant: str
    bounds: tuple[tuple[str, float], ...]
    assumptions: tuple[str, ...] = ()  # sentences, to be printed beside the epsilon

    @property
    def assumes(self) -> str | None:
        """What epsilon rests on beside its proof, in a line; None for nothing."""
        return "; ".join(self.assumptions) or None

    def __str__(self) -> str:
        return (
            f"epsilon = {show_epsilon(self.epsilon)} at delta = {self.delta!r} ({self.adjacency}, "
            f"by the {self.accountant} accountant)"
            + "".join(f"; if {assumption}" for assumption in self.assumptions)
        )


def show_delta(value: float) -> str:
    """A delta for people: at most six digits, rounded up."""
    with decimal.localcontext(prec=6, rounding=decimal.ROUND_CEILING):
        return f"{float(+decimal.Decimal(repr(float(value)))):.6g}"


@lru_cache(maxsize=4096)
def privacy_spent(event: PrivacyEvent, delta: float, accountant: str | None = None) -> PrivacySpent:
    """The smallest epsilon among the accountants that have a sound bound for the event.

    With `accountant` its bound alone; it is an error if it has none. One from outside is asked only
    then: our own bounds stand beside it, and it is said that the epsilon rests on its word.
    """
    parameter_rules.delta(delta)
    assumed = list(assumptions_in_words(event))
    if accountant is not None:
        bounds = [(accountant, _checked(accountant, find_accountant(accountant), event, delta))]
        foreign = ACCOUNTANTS.plug_in(accountant)
        if foreign is not None:
            assumed.append(assumption_in_words(foreign))
    else:
        foreign = None
        # If none applies, the Renyi accountant, which knows every event, says why.
        bounds = list(_bounds(event, delta)) or [
            ("renyi", find_accountant("renyi").epsilon(event, delta))
        ]
    name, epsilon = min(bounds, key=lambda bound: bound[1])
    if foreign is not None:
        bounds += _bounds(event, delta)
    return PrivacySpent(
        epsilon=epsilon,
        delta=delta,
        adjacency=event.adjacency,
        accountant=name,
        bounds=tuple(bounds),
        assumptions=tuple(assumed),
    )


def _checked(name: str, accountant: Accountant, event: PrivacyEvent, delta: float) -> float:
    """An accountant's epsilon, which must be one."""
    bound = accountant.epsilon(event, delta)
    if not isinstance(bound, int | float) or math.isnan(bound) or bound < 0.0:
        raise PluginError(f"accountant '{name}' gives {bound!r} for an epsilon; mend it")
    return float(bound)


def _bounds(
    event: PrivacyEvent, delta: float, asked: Sequence[Accountant] | None = None
) -> Iterator[tuple[str, float]]:
    """Every sound bound by name, the quick ones first.

    'local' is what would hold if every message were seen: never smaller than the truth, and the
    best there is where hiding is worth nothing.
    """
    known = False
    for accountant in accountants() if asked is None else asked:
        try:
            yield accountant.name, accountant.epsilon(event, delta)
            known = True
        except UnsupportedEventError:
            continue
    seen = unhidden(event)
    if known and seen != event:
        yield "local", min(bound for _, bound in _bounds(seen, delta, asked))


def find_accountant(name: str) -> Accountant:
    """The accountant of this name, or an error that names the nearest."""
    return ACCOUNTANTS.find(name).accountant


def epsilon(event: PrivacyEvent, delta: float) -> float:
    """The smallest sound epsilon of the event at `delta`."""
    return privacy_spent(event, delta).epsilon


@lru_cache(maxsize=4096)
def within(event: PrivacyEvent, delta: float, budget: float, *, quickly: bool = False) -> bool:
    """Whether some accountant (or, quickly, a quick one) shows that the event costs at most that.

    The quick ones are asked first, and nobody after the first who does.
    """
    parameter_rules.delta(delta)
    asked = accountants(quick=quickly)
    return any(bound <= budget for _, bound in _bounds(event, delta, asked))
