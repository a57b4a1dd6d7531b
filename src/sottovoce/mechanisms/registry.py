"""The register of mechanisms: a decorator enters a frozen dataclass under a name.

    @register("foo", summary="...", examples=[{"noise_multiplier": 1.0}], ...)
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Foo: ...

Put the file into `mechanisms/`, or name its module under the entry point group
`sottovoce.mechanisms` (see `sottovoce.core.registry`); nothing else has to change. The examples
are used by the contract tests (`sottovoce.auditing.contract`), by the documentation and by
`sottovoce mechanism show`.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, get_args, get_origin, runtime_checkable

import numpy as np

from sottovoce.core.domains import (
    Box,
    Categories,
    Domain,
    L1Ball,
    L2Ball,
    SteppedL1Ball,
    SteppedL2Ball,
)
from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.core.plugin_returns import Contract, ReturnCondition, enforce_contract, instance
from sottovoce.core.registry import Register, is_ours
from sottovoce.mechanisms.encoding import Privatizing, WithPrivatize
from sottovoce.mechanisms.mechanism import CodeFormat, Law, Mechanism, Sampling
from sottovoce.privacy import accounting
from sottovoce.privacy.calibration import ENDS, Direction, calibrate
from sottovoce.privacy.events import PrivacyEvent, Repeated

Parameters = Mapping[str, Any]
M = TypeVar("M", bound=type)
# Returns the privacy event of one release; see `mechanisms.release.ReleaseTerms`.
EventOf = Callable[[Mechanism], PrivacyEvent]


def _type_name(annotation: Any) -> str:
    """Return the type of a parameter for display, such as int | 'continuous'."""
    if get_origin(annotation) is Literal:
        return " | ".join(repr(value) for value in get_args(annotation))
    if get_args(annotation):
        return " | ".join(_type_name(part) for part in get_args(annotation))
    return getattr(annotation, "__name__", str(annotation))


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedParameter:
    """The parameter that calibration searches for, and the direction in which it is more private.

    Attributes:
        parameter: The name of the parameter, such as "noise_multiplier".
        more_private: "larger" or "smaller": the direction in which epsilon falls.
        ends: The range to search, the least private value first, if the default range of that
            direction does not fit. It may be a function of the domain and the other parameters.
        relative_tolerance: The relative precision of the search. A mechanism that takes long to
            build may ask for less.
    """

    parameter: str
    more_private: Direction
    ends: tuple[float, float] | Callable[[Domain, Parameters], tuple[float, float]] | None = None
    relative_tolerance: float = 1e-7

    def ends_on(self, domain: Domain, given: Parameters) -> tuple[float, float]:
        """Return the range to search on a domain, the least private value first.

        Args:
            domain: The input domain.
            given: The other parameters of the mechanism.

        Returns:
            `ends`, evaluated if it is a function, or the default range of `more_private`.
        """
        ends = self.ends(domain, given) if callable(self.ends) else self.ends
        return ends or ENDS[self.more_private]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The registration of a mechanism, which builds it and calibrates it to a privacy budget.

    Attributes:
        kind: The registered name, such as "gauss_hermite".
        factory: The class of the mechanism.
        summary: One line that says what the mechanism is.
        examples: Parameters that work on every example domain.
        example_domains: The domains on which the contract tests run.
        calibrated_parameter: The parameter that calibration searches for, or None if there is none.
        automatic: For each parameter that may be "auto", the function that chooses its value.
        settings: The parameters that planning tries, without the calibrated one; empty if it is
            made for secure sums.
        coordinatewise: Whether the law of a decoded coordinate depends on that coordinate alone.
        slow_on: Domain classes on which calibration takes half a minute or more.
        automatic_in_sums: As `automatic`, for a secure sum: functions of domain, parameters and the
            number of clients in the sum, for parameters whose choice depends on that number.
        settings_in_sums: As `settings`, for a secure sum; empty if they are the same.
        may_omit: Parameters that count as "auto" if they are left out.

    Examples:
        >>> from sottovoce.core.domains import L2Ball
        >>> found = find("gauss_hermite")
        >>> found.parameters
        {'levels': 'int', 'noise_multiplier': 'float'}
        >>> ball = L2Ball(dimension=4, radius=1.0)
        >>> found.build(ball, {"levels": "auto", "noise_multiplier": 2.0}).levels
        4
    """

    kind: str
    factory: Callable[..., Privatizing]
    summary: str
    examples: tuple[Parameters, ...]
    example_domains: tuple[Domain, ...]
    calibrated_parameter: CalibratedParameter | None
    automatic: Mapping[str, Callable[[Domain, Parameters], Any]]
    settings: tuple[Parameters, ...]
    coordinatewise: bool
    slow_on: tuple[type[Domain], ...]
    automatic_in_sums: Mapping[str, Callable[[Domain, Parameters, int], Any]] = field(
        default_factory=dict
    )
    settings_in_sums: tuple[Parameters, ...] = ()
    may_omit: tuple[str, ...] = ()

    @property
    def example_domain(self) -> Domain:
        """The first of `example_domains`, on which examples are shown."""
        return self.example_domains[0]

    @property
    def parameters(self) -> dict[str, str]:
        """The type of every parameter except the domain as text, by the parameter's name."""
        fields = dataclasses.fields(self.factory)  # type: ignore[arg-type]
        return {f.name: _type_name(f.type) for f in fields if f.name != "input_domain"}

    def in_sum(self, clients: int) -> "Registration":
        """Return the registration whose "auto" suits a secure sum over so many clients.

        Args:
            clients: The largest number of messages in a sum.

        Returns:
            The same registration with the settings, and the choices of "auto", for sums.
        """
        chosen = {
            name: lambda domain, given, choose=choose: choose(domain, given, clients)
            for name, choose in self.automatic_in_sums.items()
        }
        automatic = {**self.automatic, **chosen}
        settings = self.settings_in_sums or self.settings
        return dataclasses.replace(self, automatic=automatic, settings=settings)

    def check_names(self, given: Parameters) -> None:
        """Check that the mechanism has parameters of these names.

        Args:
            given: Parameters by name.

        Raises:
            UnknownNameError: If there is no parameter of one of the names.
        """
        for name in given:
            if name not in self.parameters:
                raise UnknownNameError.among(f"parameter of '{self.kind}'", name, self.parameters)

    def check_complete(self, given: Parameters) -> None:
        """Check that every parameter is given that may not be left out, and no other.

        Args:
            given: Parameters by name.

        Raises:
            UnknownNameError: If there is no parameter of one of the names.
            ParameterError: If a parameter is missing.
        """
        self.check_names(given)
        missing = sorted(set(self.parameters) - set(given) - set(self.may_omit))
        if missing:
            example = ", ".join(f"{name}={self.examples[0][name]}" for name in missing)
            raise ParameterError(
                f"mechanism '{self.kind}' needs {', '.join(missing)}; give a value, "
                f"for example {example}"
            )

    @property
    def sampling(self) -> Sampling:
        """How the mechanism draws noise: "exact", "float" (for simulations only) or "none"."""
        return self.factory.sampling  # type: ignore[attr-defined, no-any-return]

    def build(self, domain: Domain, given: Parameters) -> Privatizing:
        """Return the mechanism on a domain.

        Args:
            domain: The input domain.
            given: Every parameter by name; "auto" stands for the mechanism's own choice, and so
                does one of `may_omit` that is left out.

        Returns:
            The mechanism, an instance of `factory`.

        Raises:
            UnknownNameError: If there is no parameter of one of the names, or a parameter that is a
                name, such as a metric, has an unknown one.
            ParameterError: If a parameter is missing or out of range, is "auto" but cannot be, or
                the domain does not suit the mechanism.
        """
        self.check_complete(given)
        return self.factory(input_domain=domain, **self.resolve(domain, given))

    def resolve(self, domain: Domain, given: Parameters) -> dict[str, Any]:
        """Return the parameters with each "auto" replaced by the mechanism's own choice.

        Args:
            domain: The input domain.
            given: Parameters by name, complete if one is "auto": the choice may depend on others.
                If only parameters of `may_omit` are left out, they count as "auto".

        Returns:
            A new dictionary, which has the names that were left out, too.

        Raises:
            ParameterError: If a parameter is "auto" that cannot be.
        """
        if set(self.parameters) <= {*given, *self.may_omit}:
            given = {**given, **{name: "auto" for name in self.may_omit if name not in given}}
        resolved = dict(given)
        for name, value in given.items():
            if value == "auto":
                if name not in self.automatic:
                    choices = ", ".join(self.automatic) or "none"
                    raise ParameterError(
                        f"parameter '{name}' of '{self.kind}' cannot be 'auto'; give a value "
                        f"(parameters that can be 'auto': {choices})"
                    )
                resolved[name] = self.automatic[name](domain, given)
        return resolved

    def calibrated(
        self,
        domain: Domain,
        given: Parameters,
        *,
        rounds: int,
        epsilon: float,
        delta: float,
        event_of: EventOf,
        relative_tolerance: float = 0.0,
        near: float | None = None,
    ) -> dict[str, Any]:
        """Return parameters that spend at most `epsilon` over `rounds` releases.

        Args:
            domain: The input domain.
            given: Every parameter except the calibrated one.
            rounds: The number of releases that compose.
            epsilon: The epsilon that all of them may spend together.
            delta: The delta at which epsilon is computed.
            event_of: Returns the privacy event that one release of a mechanism is charged with.
            relative_tolerance: A coarser precision than the mechanism's own, for comparisons. The
                value found keeps the budget all the same.
            near: A guess at the value, which makes the search faster; None for no guess.

        Returns:
            `given` with the calibrated parameter, and "auto" resolved.

        Raises:
            ParameterError: If the mechanism has no parameter to calibrate, it is already given,
                another one is missing or out of range, or no value in its range keeps the budget.
            UnknownNameError: If there is no parameter of one of the names.
            PrivacyError: If `event_of` raises it, because no bound is proved for its terms.
        """
        if self.calibrated_parameter is None:
            raise ParameterError(
                f"mechanism '{self.kind}' has no parameter to calibrate; choose one of "
                + ", ".join(r.kind for r in registrations() if r.calibrated_parameter)
            )
        searched = self.calibrated_parameter
        if searched.parameter in given:
            raise ParameterError(
                f"'{searched.parameter}' is given, but it is the parameter that calibration finds; "
                "leave it out, or give no target epsilon"
            )
        self.check_complete({**given, searched.parameter: None})

        def event_at(value: float) -> Repeated:
            mechanism = self.build(domain, {**given, searched.parameter: value})
            return Repeated(event=event_of(mechanism), count=rounds)

        value = calibrate(
            event_at,
            epsilon=epsilon,
            delta=delta,
            more_private=searched.more_private,
            ends=searched.ends_on(domain, given),
            relative_tolerance=max(relative_tolerance, searched.relative_tolerance),
            initial_guess=near,
        )
        return self.resolve(domain, {**given, searched.parameter: value})

    def calibrate_for_all(
        self,
        domains: Sequence[Domain],
        given: Parameters,
        *,
        rounds: int,
        epsilon: float,
        delta: float,
        event_of: EventOf,
    ) -> dict[str, Any]:
        """Return one set of parameters that keeps the budget on every domain.

        The parameters are calibrated on the first domain, where "auto" is resolved, and again on
        each domain where the value found so far spends too much. A more private value still keeps
        the budget on the domains that were checked before.

        Args:
            domains: The input domains, at least one, for instance of clients with different numbers
                of records.
            given: Every parameter except the calibrated one.
            rounds: The number of releases that compose.
            epsilon: The epsilon that all of them may spend together.
            delta: The delta at which epsilon is computed.
            event_of: Returns the privacy event that one release of a mechanism is charged with.

        Returns:
            `given` with the calibrated parameter, and "auto" resolved.

        Raises:
            ParameterError: As for `calibrated`, on any of the domains.
            UnknownNameError: As for `calibrated`.
        """

        def calibrated(domain: Domain, fixed: Parameters) -> dict[str, Any]:
            return self.calibrated(
                domain, fixed, rounds=rounds, epsilon=epsilon, delta=delta, event_of=event_of
            )

        found = calibrated(domains[0], given)
        for domain in domains[1:]:
            event = event_of(self.build(domain, found))
            if accounting.epsilon(Repeated(event=event, count=rounds), delta) > epsilon:
                found = calibrated(domain, {name: found[name] for name in given})
        return found


@runtime_checkable
class Designed(Protocol):
    """A mechanism that a solver designed, so that its parameters alone do not determine its law."""

    def design_digest(self) -> str:
        """Return a digest of the design, which server and client compare."""
        ...


@runtime_checkable
class PostProcesses(Protocol):
    """A mechanism that sends what a client computed from the outputs of another mechanism."""

    @property
    def charged(self) -> Mechanism:
        """The mechanism that added the noise, which is charged."""
        ...

    def message_form(self) -> dict[str, Any]:
        """Return what determines the messages in addition to `charged`, as plain data."""
        ...


def charged_mechanism(mechanism: Mechanism) -> Mechanism:
    """Return the mechanism whose noise protects the messages: the mechanism itself in most cases.

    Args:
        mechanism: A mechanism.

    Returns:
        The mechanism whose outputs it post-processes, or the mechanism itself.
    """
    return mechanism.charged if isinstance(mechanism, PostProcesses) else mechanism


MECHANISMS: Register[Registration] = Register("mechanism", package="sottovoce.mechanisms")


_ARRAY = instance(np.ndarray, "a numpy array")
_CONTRACT = Contract(
    needs=("sampling", "input_domain", "code_format", "encode", "decode", "law", "privacy"),
    returns={
        "code_format": instance(get_args(CodeFormat), "LevelCodes or Float32Codes"),
        "encode": _ARRAY,
        "encode_packed": _ARRAY,
        "decode": _ARRAY,
        "law": ReturnCondition(
            what="a law, such as sottovoce.mechanisms.FiniteLaw",
            fits=lambda value: isinstance(value, get_args(Law)),
        ),
        "privacy": ReturnCondition(
            what="a privacy event, such as sottovoce.privacy.PureDp",
            fits=lambda value: isinstance(value, PrivacyEvent),
        ),
    },
)


def register(
    kind: str,
    *,
    summary: str,
    examples: Sequence[Parameters],
    example_domain: Domain,
    further_domains: Sequence[Domain] = (),
    calibrated_parameter: CalibratedParameter | None = None,
    automatic: Mapping[str, Callable[[Domain, Parameters], Any]] | None = None,
    automatic_in_sums: Mapping[str, Callable[[Domain, Parameters, int], Any]] | None = None,
    settings: Sequence[Parameters] = (),
    settings_in_sums: Sequence[Parameters] = (),
    only_in_sums: bool = False,
    may_omit: Sequence[str] = (),
    coordinatewise: bool = False,
    slow_on: Sequence[type[Domain]] = (),
) -> Callable[[M], M]:
    """Return a class decorator that registers a mechanism and adds `privatize` to it.

    The class must be a frozen dataclass that implements `Mechanism`. Every example must be valid on
    `example_domain` and on each of `further_domains`: the contract tests run on all of them. The
    last three parameters are for planning.

    Args:
        kind: The name under which specs and commands find the mechanism.
        summary: One line that says what the mechanism is.
        examples: One or more sets of parameters.
        example_domain: The domain on which examples are shown and tested.
        further_domains: More domains for the tests.
        calibrated_parameter: The parameter that calibration searches for, if there is one.
        automatic: For each parameter that may be "auto", a function of domain and parameters that
            chooses its value.
        automatic_in_sums: The same for parameters whose choice depends on the number of clients
            in a secure sum, as functions of domain, parameters and that number.
        settings: The parameters to try, without the calibrated one. By default those of the
            examples, with "auto" where it is possible.
        settings_in_sums: The same for a secure sum; by default the same settings.
        only_in_sums: True for a mechanism that planning tries for secure sums only.
        may_omit: The parameters in `automatic` that count as "auto" if they are left out.
        coordinatewise: Promises that with any of the settings the law of a decoded coordinate
            depends on that coordinate alone, and not on the dimension.
        slow_on: Domain classes on which calibration takes half a minute or more.

    Returns:
        The decorator, which returns the class itself. It raises PluginError if a plug-in's class is
        no dataclass or lacks a method, or if another source has registered the name.
    """

    def enter(mechanism: M) -> M:
        enforce_contract(MECHANISMS, kind, mechanism, _CONTRACT)
        if not hasattr(mechanism, "privatize"):
            mechanism.privatize = WithPrivatize.privatize  # type: ignore[attr-defined]
        tried = tuple(settings) or _settings_of(examples, calibrated_parameter, automatic or {})
        registration = Registration(
            kind=kind,
            factory=mechanism,
            summary=summary,
            examples=tuple(examples),
            example_domains=(example_domain, *further_domains),
            calibrated_parameter=calibrated_parameter,
            automatic=automatic or {},
            automatic_in_sums=automatic_in_sums or {},
            settings=() if only_in_sums else tried,
            settings_in_sums=tuple(settings_in_sums),
            may_omit=tuple(may_omit),
            coordinatewise=coordinatewise,
            slow_on=tuple(slow_on),
        )
        MECHANISMS.enter(kind, registration, module=mechanism.__module__)
        return mechanism

    return enter


def _settings_of(
    examples: Sequence[Parameters],
    searched: CalibratedParameter | None,
    automatic: Mapping[str, Any],
) -> tuple[Parameters, ...]:
    """Return the distinct examples without the calibrated parameter, with "auto" if possible."""
    found: list[Parameters] = []
    for example in examples:
        free = {
            name: value
            for name, value in example.items()
            if not searched or name != searched.parameter
        }
        setting = {name: "auto" if name in automatic else free[name] for name in free}
        if setting not in found:
            found.append(setting)
    return tuple(found)


def registrations() -> tuple[Registration, ...]:
    """Return every registered mechanism; plug-ins that do not work here are left out.

    Returns:
        The registrations, sorted by name.
    """
    return tuple(MECHANISMS.all_working().values())


def find(kind: str) -> Registration:
    """Return the mechanism that is registered under a name.

    Args:
        kind: The registered name, such as "gauss_hermite".

    Returns:
        The registration.

    Raises:
        UnknownNameError: The name is unknown; the message suggests the nearest one.
        PluginError: The plug-in of that name does not work, or two sources claim the name.

    Examples:
        >>> find("gauss_hermite").summary
        'a few bits per coordinate (one if levels = 2), nearly as accurate as Gaussian noise'
    """
    return MECHANISMS.find(kind)


def kind_of(mechanism: Mechanism) -> str:
    """Return the registered name of a mechanism's class.

    The name of a mechanism that compresses private vectors is that of the mechanism of its noise.

    Raises:
        UnknownNameError: The class is not registered.
    """
    mechanism, known = charged_mechanism(mechanism), MECHANISMS.imported()
    for registration in known.values():
        if type(mechanism) is registration.factory:
            return registration.kind
    raise UnknownNameError.among("mechanism class", type(mechanism).__name__, known)


def is_builtin(mechanism: Mechanism) -> bool:
    """Return whether a mechanism belongs to this package and is not a plug-in."""
    return is_ours(type(mechanism).__module__)


def public_parameters(mechanism: Mechanism) -> dict[str, Any]:
    """Return everything that server and client must agree on, as plain data.

    Returns:
        Under "kind" the registered name, then "domain" and "parameters", and under "design" the
        digest of the table if a solver designed it.
    """
    if isinstance(mechanism, PostProcesses):
        return {**public_parameters(mechanism.charged), "messages": mechanism.message_form()}
    public = {
        "kind": kind_of(mechanism),
        "domain": _plain_fields(mechanism)["input_domain"],
        "parameters": parameters_of(mechanism),
    }
    if isinstance(mechanism, Designed):
        public["design"] = mechanism.design_digest()
    return public


def parameters_of(mechanism: Mechanism) -> dict[str, Any]:
    """Return the values of all parameters except the domain by name; solves for no design."""
    plain = _plain_fields(charged_mechanism(mechanism))
    return {name: v for name, v in plain.items() if name != "input_domain"}


# The names of domains in messages. They never change, even if the classes are renamed.
_SHAPE_NAMES: dict[type[Any], str] = {
    L2Ball: "L2Ball",
    L1Ball: "L1Ball",
    SteppedL2Ball: "SteppedL2Ball",
    SteppedL1Ball: "SteppedL1Ball",
    Box: "Box",
    Categories: "Categories",
}


def _shape_name(shape: type[Any]) -> str:
    """Return the name of a domain in messages; for a plug-in's domain its class name."""
    return _SHAPE_NAMES.get(shape, shape.__name__)


def _plain_fields(value: Any) -> dict[str, Any]:
    """Return a dataclass as plain data; an integer in a float field becomes a float."""
    plain: dict[str, Any] = {}
    for one in dataclasses.fields(value):
        item = getattr(value, one.name)
        if dataclasses.is_dataclass(item):
            item = {"shape": _shape_name(type(item)), **_plain_fields(item)}
        elif one.type in (float, "float"):
            item = float(item)
        plain[one.name] = item
    return plain


def parameter_hash(mechanism: Mechanism) -> bytes:
    """Return the 16-byte digest of `public_parameters`, which stands for them in messages."""
    text = json.dumps(public_parameters(mechanism), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
