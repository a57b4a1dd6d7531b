"""The registry of accountants, and the smallest sound epsilon that they give for an event.

Accountants are registered by a decorator on a class:

    @register(summary="Renyi divergences, added up and converted")
    class FooAccountant:
        name = "foo"
        ...

Put the file into `privacy/`, or name its module under the entry point group `sottovoce.accountants`
(see `core.registry`). The accountants of this package are tested against exact enumeration, and the
smallest of their bounds is the epsilon that is reported. The bound of a plug-in is reported only
if the plug-in is requested by name, and never takes part in that minimum.
"""

import decimal
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Protocol, TypeVar

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.display import show_epsilon
from sottovoce.core.errors import PluginError, UnsupportedEventError
from sottovoce.core.registry import Register
from sottovoce.privacy.compositions import describe_assumptions, reveal_messages
from sottovoce.privacy.events import PrivacyEvent, describe_assumption


class Accountant(Protocol):
    """A sound upper bound on the privacy loss of events.

    Both methods are pure functions. They raise `UnsupportedEventError` for an event that this
    accountant does not handle.

    Attributes:
        name: The name by which the accountant is requested and reported.
    """

    @property
    def name(self) -> str:
        """The name by which the accountant is requested and reported."""
        ...

    def epsilon(self, event: PrivacyEvent, delta: float) -> float:
        """Return an epsilon such that the event is (epsilon, delta)-DP.

        Args:
            event: The privacy event, for example a composition of all releases.
            delta: The delta of the guarantee, strictly between 0 and 1.

        Returns:
            An upper bound on the smallest such epsilon; infinity if no finite bound is known.

        Raises:
            UnsupportedEventError: The accountant does not handle the event.
        """
        ...

    def delta(self, event: PrivacyEvent, epsilon: float) -> float:
        """Return a delta such that the event is (epsilon, delta)-DP.

        Args:
            event: The privacy event.
            epsilon: The epsilon of the guarantee, at least 0.

        Returns:
            An upper bound on the smallest such delta; at most 1.

        Raises:
            UnsupportedEventError: The accountant does not handle the event.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredAccountant:
    """A registered accountant with its description.

    Attributes:
        accountant: The accountant.
        summary: What it does, in a few words.
        turn: Its place in the order in which accountants are asked, smallest first.
        slow: Whether it takes long and is asked last.
    """

    accountant: Accountant
    summary: str
    turn: int
    slow: bool


A = TypeVar("A", bound=Callable[[], Accountant])

ACCOUNTANTS: Register[RegisteredAccountant] = Register("accountant", package="sottovoce.privacy")


def register(*, summary: str, turn: int = 100, slow: bool = False) -> Callable[[A], A]:
    """Return a class decorator that registers an accountant.

    Accountants are asked in the order of `turn`, and the first of equal bounds gives its name to
    the reported epsilon. Slow accountants are asked after all others.

    Args:
        summary: What the accountant does, in a few words, for listings.
        turn: Its place in the order of accountants, smallest first.
        slow: True if the accountant takes long; `within` then asks it only if the others do not
            show that the budget is met.

    Returns:
        The decorator. It creates one accountant, by calling the class without arguments, registers
        it under its `name`, and returns the class unchanged. If another module has registered that
        name, it raises `PluginError`.
    """

    def decorate(accountant_class: A) -> A:
        accountant = accountant_class()
        registered = RegisteredAccountant(
            accountant=accountant, summary=summary, turn=turn, slow=slow
        )
        ACCOUNTANTS.enter(accountant.name, registered, module=accountant_class.__module__)
        return accountant_class

    return decorate


@cache
def builtin_accountants(*, quick: bool = False) -> tuple[Accountant, ...]:
    """Return the accountants of this package, without plug-ins, in the order they are asked.

    That is the order of their `turn`, slow ones last. With `quick` the slow ones are left out.
    """
    known = sorted(ACCOUNTANTS.ours().values(), key=lambda one: (one.slow, one.turn))
    return tuple(one.accountant for one in known if not (quick and one.slow))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacySpent:
    """The privacy spent by an event: the smallest sound epsilon at a delta, and how it was found.

    Attributes:
        epsilon: The smallest bound of this package's accountants or, if an accountant was requested
            by name, its bound, whatever the others give. Infinity if no finite bound is known.
        delta: The delta of the guarantee.
        adjacency: The adjacency relation of the guarantee.
        accountant: Name of the accountant that gave epsilon, or "local" for the bound that holds if
            every single message is seen.
        bounds: (accountant's name, epsilon) of every bound that was computed at this delta.
        assumptions: Sentences that must be true for the guarantee to hold, for printing with it.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    accountant: str
    bounds: tuple[tuple[str, float], ...]
    assumptions: tuple[str, ...] = ()

    @property
    def assumes(self) -> str | None:
        """All assumptions in one line, separated by "; "; None if there are none."""
        return "; ".join(self.assumptions) or None

    def __str__(self) -> str:
        return (
            f"epsilon = {show_epsilon(self.epsilon)} at delta = {self.delta!r} ({self.adjacency}, "
            f"by the {self.accountant} accountant)"
            + "".join(f"; if {assumption}" for assumption in self.assumptions)
        )


def show_delta(value: float) -> str:
    """Return a delta as text with at most six significant digits, rounded up."""
    with decimal.localcontext(prec=6, rounding=decimal.ROUND_CEILING):
        return f"{float(+decimal.Decimal(repr(float(value)))):.6g}"


@lru_cache(maxsize=4096)
def privacy_spent(event: PrivacyEvent, delta: float, accountant: str | None = None) -> PrivacySpent:
    """Return the smallest epsilon at `delta` among the accountants with a bound for the event.

    If `accountant`, a name, is given, only its bound counts. A plug-in accountant is asked only in
    this case: then the bounds of this package's accountants are listed as well, and an assumption
    says that the epsilon depends on the plug-in's claim.

    Raises:
        UnsupportedEventError: No accountant, or not the requested one, has a bound for the event.
        UnknownNameError: There is no accountant of the requested name.
        PluginError: The requested accountant cannot be used, or returned no number of at least 0.
        ParameterError: `delta` does not lie strictly between 0 and 1.
    """
    parameter_rules.delta(delta)
    assumed = list(describe_assumptions(event))
    if accountant is not None:
        bounds = [(accountant, _valid_epsilon(accountant, event, delta))]
        plug_in = ACCOUNTANTS.describe_plugin(accountant)
        if plug_in is not None:
            assumed.append(describe_assumption(plug_in))
    else:
        plug_in = None
        # If no accountant applies, the Renyi accountant, which knows every event, raises the
        # error that says why.
        bounds = list(_bounds(event, delta)) or [
            ("renyi", find_accountant("renyi").epsilon(event, delta))
        ]
    name, epsilon = min(bounds, key=lambda bound: bound[1])
    if plug_in is not None:
        bounds += _bounds(event, delta)
    return PrivacySpent(
        epsilon=epsilon,
        delta=delta,
        adjacency=event.adjacency,
        accountant=name,
        bounds=tuple(bounds),
        assumptions=tuple(assumed),
    )


def _valid_epsilon(name: str, event: PrivacyEvent, delta: float) -> float:
    """Return the epsilon of the accountant of this name; raise if it is not a number >= 0."""
    bound = find_accountant(name).epsilon(event, delta)
    if not isinstance(bound, int | float) or math.isnan(bound) or bound < 0.0:
        raise PluginError(
            f"accountant '{name}' returned {bound!r}, expected an epsilon of at least 0; correct "
            "its method `epsilon`, or choose another accountant"
        )
    return float(bound)


def _bounds(
    event: PrivacyEvent, delta: float, asked: Sequence[Accountant] | None = None
) -> Iterator[tuple[str, float]]:
    """Yield every sound bound with the name of its accountant, the quick ones first.

    'local' is the bound that holds if every single message is seen. It is an upper bound, because
    shuffles and secure sums are post-processing of the messages, and the smallest one where they do
    not amplify.
    """
    known = False
    chosen: Sequence[Any] = builtin_accountants() if asked is None else asked
    for accountant in chosen:
        try:
            bound = _remembered_bound(accountant, event, delta)
        except TypeError:  # An accountant or an event of a plug-in may not be hashable.
            bound = _bound(accountant, event, delta)
        if bound is not None:
            yield accountant.name, bound
            known = True
    revealed = reveal_messages(event)
    if known and revealed != event:
        yield "local", min(bound for _, bound in _bounds(revealed, delta, asked))


def _bound(accountant: Any, event: PrivacyEvent, delta: float) -> float | None:
    """Return the epsilon that an accountant shows; None if it does not support the event."""
    try:
        found: float = accountant.epsilon(event, delta)
    except UnsupportedEventError:
        return None
    return found


# A round is asked about twice: whether a client can pay for it, and what it has spent after it.
_remembered_bound = lru_cache(maxsize=4096)(_bound)


def find_accountant(name: str) -> Accountant:
    """Return the accountant of this name, this package's or a plug-in's.

    An unknown name raises `UnknownNameError`, which suggests the nearest one.
    """
    return ACCOUNTANTS.find(name).accountant


def epsilon(event: PrivacyEvent, delta: float) -> float:
    """Return the smallest epsilon at `delta` that an accountant of this package shows.

    It is an upper bound on the true epsilon of the event, infinity if no finite one is known. It
    raises the errors of `privacy_spent`.
    """
    return privacy_spent(event, delta).epsilon


@lru_cache(maxsize=4096)
def within(event: PrivacyEvent, delta: float, budget: float, *, quickly: bool = False) -> bool:
    """Return whether some accountant shows that the event costs at most the budget.

    Accountants are asked in their order, the quick ones first, until one of them shows it.

    Args:
        event: The privacy event.
        delta: The delta of the guarantee.
        budget: The largest epsilon that is allowed at `delta`.
        quickly: True to ask the quick accountants only. The answer may then be False for an event
            that is within the budget, never the other way round.

    Returns:
        True if at least one of this package's accountants shows that the event is
        (budget, delta)-DP. False otherwise, also if none of them handles the event.

    Raises:
        ParameterError: `delta` does not lie strictly between 0 and 1.
    """
    parameter_rules.delta(delta)
    asked = builtin_accountants(quick=quickly)
    return any(bound <= budget for _, bound in _bounds(event, delta, asked))
