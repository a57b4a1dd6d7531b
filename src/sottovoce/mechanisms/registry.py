"""The register of mechanisms: one decorator on a frozen dataclass.

    @register("foo", summary="...", examples=[{"noise_multiplier": 1.0}], ...)
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Foo: ...

Drop the file into `mechanisms/`, or name its module under the entry point group
`sottovoce.mechanisms` (see `sottovoce.core.registry`); nothing else changes. The examples feed the
contract (`sottovoce.auditing.contract`), the docs and `sottovoce mechanism show`.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, get_args, get_origin, runtime_checkable

import numpy as np

from sottovoce.core.domains import Box, Categories, Domain, L1Ball, L2Ball
from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.core.plugin_returns import Contract, Returns, hold, instance
from sottovoce.core.registry import Register, is_ours
from sottovoce.mechanisms.encoding import Privatizing, WithPrivatize
from sottovoce.mechanisms.mechanism import CodeFormat, Law, Mechanism, Sampling
from sottovoce.privacy import accounting
from sottovoce.privacy.calibration import ENDS, Direction, calibrate
from sottovoce.privacy.events import PrivacyEvent, Repeated

Parameters = Mapping[str, Any]
M = TypeVar("M", bound=type)
# What one release is charged with; see `mechanisms.release.ReleaseTerms`.
EventOf = Callable[[Mechanism], PrivacyEvent]


def _type_name(annotation: Any) -> str:
    """A parameter's type for people: int | 'continuous'."""
    if get_origin(annotation) is Literal:
        return " | ".join(repr(value) for value in get_args(annotation))
    if get_args(annotation):
        return " | ".join(_type_name(part) for part in get_args(annotation))
    return getattr(annotation, "__name__", str(annotation))


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """The parameter that calibration turns, and the way in which it is more private.

    `ends` are where to look, the least private first, if the parameter has a range of its own; it
    may depend on the domain and the other parameters. A mechanism that takes long to build asks for
    less precision.
    """

    parameter: str
    more_private: Direction
    ends: tuple[float, float] | Callable[[Domain, Parameters], tuple[float, float]] | None = None
    relative_tolerance: float = 1e-7

    def ends_on(self, domain: Domain, given: Parameters) -> tuple[float, float]:
        """Where to look on `domain` beside these parameters, the least private first."""
        ends = self.ends(domain, given) if callable(self.ends) else self.ends
        return ends or ENDS[self.more_private]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One registered mechanism."""

    kind: str
    factory: Callable[..., Privatizing]
    summary: str
    examples: tuple[Parameters, ...]
    example_domains: tuple[Domain, ...]
    knob: Knob | None
    automatic: Mapping[str, Callable[[Domain, Parameters], Any]]
    settings: tuple[Parameters, ...]
    coordinatewise: bool
    slow_on: tuple[type[Domain], ...]

    @property
    def example_domain(self) -> Domain:
        """The domain that examples are shown on."""
        return self.example_domains[0]

    @property
    def parameters(self) -> dict[str, str]:
        """Name and type of every parameter but the domain."""
        fields = dataclasses.fields(self.factory)  # type: ignore[arg-type]
        return {f.name: _type_name(f.type) for f in fields if f.name != "input_domain"}

    def check_names(self, given: Parameters) -> None:
        for name in given:
            if name not in self.parameters:
                raise UnknownNameError.among(f"parameter of '{self.kind}'", name, self.parameters)

    def check_complete(self, given: Parameters) -> None:
        """Every parameter is given, and no other."""
        self.check_names(given)
        missing = sorted(set(self.parameters) - set(given))
        if missing:
            example = ", ".join(f"{name}={self.examples[0][name]}" for name in missing)
            raise ParameterError(
                f"mechanism '{self.kind}' needs {', '.join(missing)}; for example {example}"
            )

    @property
    def sampling(self) -> Sampling:
        """How the mechanism samples, whatever its parameters."""
        return self.factory.sampling  # type: ignore[attr-defined, no-any-return]

    def build(self, domain: Domain, given: Parameters) -> Privatizing:
        """The mechanism on `domain`; 'auto' is resolved, a missing parameter is an error."""
        self.check_complete(given)
        return self.factory(input_domain=domain, **self.resolve(domain, given))

    def resolve(self, domain: Domain, given: Parameters) -> dict[str, Any]:
        """`given` with every 'auto' replaced by the mechanism's own choice."""
        resolved = dict(given)
        for name, value in given.items():
            if value == "auto":
                if name not in self.automatic:
                    choices = ", ".join(self.automatic) or "none"
                    raise ParameterError(
                        f"parameter '{name}' of '{self.kind}' cannot be 'auto' "
                        f"(those that can: {choices}); give a value"
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
        """`given` plus the knob's value that spends at most `epsilon` over `rounds` releases.

        Whoever only compares may allow a coarser `relative_tolerance` than the knob's own, and say
        which value it should be `near`: the value found keeps the budget all the same.
        """
        if self.knob is None:
            raise ParameterError(
                f"mechanism '{self.kind}' has no parameter to calibrate; "
                f"choose one of {', '.join(r.kind for r in registrations() if r.knob)}"
            )
        knob = self.knob
        if knob.parameter in given:
            raise ParameterError(
                f"'{knob.parameter}' is what calibration finds; leave it out or drop the target"
            )
        self.check_complete({**given, knob.parameter: None})

        def event_at(value: float) -> Repeated:
            mechanism = self.build(domain, {**given, knob.parameter: value})
            return Repeated(event=event_of(mechanism), count=rounds)

        value = calibrate(
            event_at,
            epsilon=epsilon,
            delta=delta,
            more_private=knob.more_private,
            ends=knob.ends_on(domain, given),
            relative_tolerance=max(relative_tolerance, knob.relative_tolerance),
            near=near,
        )
        return self.resolve(domain, {**given, knob.parameter: value})

    def calibrated_for_all(
        self,
        domains: Sequence[Domain],
        given: Parameters,
        *,
        rounds: int,
        epsilon: float,
        delta: float,
        event_of: EventOf,
    ) -> dict[str, Any]:
        """One set of parameters that keeps the budget on every domain; 'auto' is for the first.

        Calibrated on the first domain, and again on each where the value found so far spends more;
        a more private value keeps what was checked before.
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
    """A mechanism whose parameters alone do not say what runs: it was designed by a solver."""

    def design_digest(self) -> str: ...


MECHANISMS: Register[Registration] = Register("mechanism", package="sottovoce.mechanisms")


_ARRAY = instance(np.ndarray, "a numpy array")
_CONTRACT = Contract(
    needs=("sampling", "input_domain", "code_format", "encode", "decode", "law", "privacy"),
    returns={
        "code_format": instance(get_args(CodeFormat), "LevelCodes or Float32Codes"),
        "encode": _ARRAY,
        "encode_packed": _ARRAY,
        "decode": _ARRAY,
        "law": Returns(
            what="a law, such as sottovoce.mechanisms.FiniteLaw",
            fits=lambda value: isinstance(value, get_args(Law)),
        ),
        "privacy": Returns(
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
    knob: Knob | None = None,
    automatic: Mapping[str, Callable[[Domain, Parameters], Any]] | None = None,
    settings: Sequence[Parameters] = (),
    coordinatewise: bool = False,
    slow_on: Sequence[type[Domain]] = (),
) -> Callable[[M], M]:
    """Class decorator that enters a frozen dataclass into the register, and adds `privatize`.

    Every example must hold on `example_domain`, which is shown, and on each of `further_domains`:
    the contract tests run on all of them.

    The rest is for planning. `settings` are the parameters to try beside the knob [those of the
    examples, 'auto' where that can be]. `coordinatewise` promises that with any of them the law of
    a decoded coordinate depends on that coordinate alone, and not on the dimension. Domains on
    which calibration takes half a minute or more are `slow_on`.
    """

    def enter(mechanism: M) -> M:
        hold(MECHANISMS, kind, mechanism, _CONTRACT)
        if not hasattr(mechanism, "privatize"):
            mechanism.privatize = WithPrivatize.privatize  # type: ignore[attr-defined]
        registration = Registration(
            kind=kind,
            factory=mechanism,
            summary=summary,
            examples=tuple(examples),
            example_domains=(example_domain, *further_domains),
            knob=knob,
            automatic=automatic or {},
            settings=tuple(settings) or _settings_of(examples, knob, automatic or {}),
            coordinatewise=coordinatewise,
            slow_on=tuple(slow_on),
        )
        MECHANISMS.enter(kind, registration, module=mechanism.__module__)
        return mechanism

    return enter


def _settings_of(
    examples: Sequence[Parameters], knob: Knob | None, automatic: Mapping[str, Any]
) -> tuple[Parameters, ...]:
    """The examples without the knob, each once, with 'auto' where that can be."""
    found: list[Parameters] = []
    for example in examples:
        free = {
            name: value for name, value in example.items() if not knob or name != knob.parameter
        }
        setting = {name: "auto" if name in automatic else free[name] for name in free}
        if setting not in found:
            found.append(setting)
    return tuple(found)


def registrations() -> tuple[Registration, ...]:
    """Every registered mechanism that works, by name."""
    return tuple(MECHANISMS.every().values())


def find(kind: str) -> Registration:
    """The mechanism called `kind`, or an error that names the nearest."""
    return MECHANISMS.find(kind)


def kind_of(mechanism: Mechanism) -> str:
    """The registered name of a mechanism."""
    known = MECHANISMS.imported()
    for registration in known.values():
        if type(mechanism) is registration.factory:
            return registration.kind
    raise UnknownNameError.among("mechanism class", type(mechanism).__name__, known)


def is_own(mechanism: Mechanism) -> bool:
    """Whether a mechanism is one of this package, and no plug-in."""
    return is_ours(type(mechanism).__module__)


def public_parameters(mechanism: Mechanism) -> dict[str, Any]:
    """Everything that server and client must agree on, as plain data."""
    public = {
        "kind": kind_of(mechanism),
        "domain": _plain_fields(mechanism)["input_domain"],
        "parameters": parameters_of(mechanism),
    }
    if isinstance(mechanism, Designed):
        public["design"] = mechanism.design_digest()
    return public


def parameters_of(mechanism: Mechanism) -> dict[str, Any]:
    """Every parameter but the domain, as plain data; nothing is designed for it."""
    return {name: v for name, v in _plain_fields(mechanism).items() if name != "input_domain"}


# The names of domains on the wire, whatever the classes are called here; none of them ever changes.
_SHAPE_NAMES: dict[type[Any], str] = {
    L2Ball: "L2Ball",
    L1Ball: "L1Ball",
    Box: "Box",
    Categories: "Categories",
}


def _shape_name(shape: type[Any]) -> str:
    """Return the name of a domain on the wire; a plug-in's own domain goes by its class name."""
    return _SHAPE_NAMES.get(shape, shape.__name__)


def _plain_fields(value: Any) -> dict[str, Any]:
    """A dataclass as plain data; a whole number in a float field is a float, whoever typed it."""
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if dataclasses.is_dataclass(item):
            item = {"shape": _shape_name(type(item)), **_plain_fields(item)}
        elif field.type in (float, "float"):
            item = float(item)
        plain[field.name] = item
    return plain


def parameter_hash(mechanism: Mechanism) -> bytes:
    """Sixteen bytes that stand for the public parameters on the wire."""
    text = json.dumps(public_parameters(mechanism), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
