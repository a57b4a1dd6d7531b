"""What is asked of the explorer: a mechanism, a budget, an update. Absurd sizes are refused."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Domain, clipped, geometry_of
from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.registry import Parameters, Registration
from sottovoce.planning.candidates import domain_for

MAX_DIMENSION, MAX_ROUNDS, MAX_BITS = 10**8, 10**6, 16
# Of a mechanism whose law is that of the whole update: more would be minutes.
MAX_WHOLE_DIMENSION = 10**6
MAX_RELEASES, MAX_RELEASES_SLOW = 10**5, 10**8  # some seconds; a minute or two
GEOMETRIES = ("l2", "l1", "linf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One mechanism at a budget; `variant` counts the settings that `variants` lists.

    slow      also what takes a minute: every value tried is a design to solve, or a composition of
              very many releases.
    """

    mechanism: str
    variant: int = 0
    bits: int = 1
    epsilon: float = 4.0
    delta: float = 1e-5
    rounds: int = 100
    dimension: int = 1000
    clip_norm: float = 1.0
    clip_geometry: str = "l2"
    adjacency: str = "zero-out"
    slow: bool = False

    def __post_init__(self) -> None:
        found = variants(self.registration)
        parameter_rules.integer("variant", self.variant, low=0, high=len(found) - 1)
        parameter_rules.integer("bits", self.bits, low=1, high=MAX_BITS)
        parameter_rules.epsilon(self.epsilon)
        parameter_rules.delta(self.delta)
        parameter_rules.integer("rounds", self.rounds, low=1, high=MAX_ROUNDS, remedy=_ELSEWHERE)
        whole = not self.registration.coordinatewise
        most = MAX_WHOLE_DIMENSION if whole else MAX_DIMENSION
        parameter_rules.integer("dimension", self.dimension, low=1, high=most, remedy=_ELSEWHERE)
        parameter_rules.clip_norm("clip norm", self.clip_norm)
        if self.clip_geometry not in GEOMETRIES:
            raise UnknownNameError.among("clip geometry", self.clip_geometry, GEOMETRIES)
        Adjacency.parse(self.adjacency)
        self._check_releases()

    def _check_releases(self) -> None:
        """In a box each coordinate is a release of its own, and all of them are composed."""
        if not isinstance(self.domain, Box):
            return
        releases, most = (
            self.dimension * self.rounds,
            MAX_RELEASES_SLOW if self.slow else MAX_RELEASES,
        )
        if releases > most:
            slowly = "" if self.slow else ", or allow what takes a minute"
            raise ParameterError(
                f"under linf '{self.mechanism}' releases each coordinate in each round, and here "
                f"{releases:.3g} releases would be composed, above {most:g}; ask for fewer "
                f"coordinates or rounds{slowly}"
            )

    @classmethod
    def from_plain(cls, given: Any) -> Self:
        """The question that plain data asks; a whole number will do for any number."""
        if not isinstance(given, Mapping):
            raise ParameterError("a question is an object of names and values")
        kinds = {field.name: field.type for field in fields(cls)}
        for name, value in given.items():
            if name not in kinds:
                raise UnknownNameError.among("parameter", str(name), kinds)
            if not _is_a(value, kinds[name]):
                wanted = _WORDS[kinds[name]]
                raise ParameterError(f"{name} must be {wanted}, got {value!r}")
        if "mechanism" not in given:
            raise ParameterError("a question names a 'mechanism'")
        return cls(**{name: _as(kinds[name], value) for name, value in given.items()})

    @property
    def registration(self) -> Registration:
        return registry.find(self.mechanism)

    @property
    def updates(self) -> Domain:
        """Where updates lie."""
        return clipped(self.clip_geometry, self.dimension, self.clip_norm)

    @property
    def domain(self) -> Domain:
        """Where the mechanism takes them: there, or in a Euclidean ball around."""
        return domain_for(self.registration, self.updates)

    @property
    def free(self) -> dict[str, Any]:
        """Every parameter but the one that calibration finds."""
        registration = self.registration
        chosen = dict(variants(registration)[self.variant])
        if bits_parameter(registration):
            chosen |= _with_bits(registration, self.bits)
        return chosen


_ELSEWHERE = "ask 'sottovoce plan' or 'privacy spend', which go further"
_WORDS: dict[Any, str] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}
# How a number of bits is called among a mechanism's parameters.
_BITS_NAMES = ("bits", "output_bits", "levels")


def _is_a(value: Any, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _as(kind: Any, value: Any) -> Any:
    """A number as the float it is; one that no float holds is infinite, and refused as such."""
    if kind is not float:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def bits_parameter(registration: Registration) -> str | None:
    """The parameter that says how many bits a coordinate takes, if there is one."""
    return next((name for name in _BITS_NAMES if name in registration.parameters), None)


def _with_bits(registration: Registration, bits: int) -> dict[str, int]:
    name = bits_parameter(registration)
    assert name is not None
    return {name: 2**bits if name == "levels" else bits}


def variants(registration: Registration) -> tuple[Parameters, ...]:
    """The settings that planning tries, bits and knob apart: the other choices there are."""
    found: list[Parameters] = []
    for setting in registration.settings:
        rest = {name: value for name, value in setting.items() if name not in _BITS_NAMES}
        if rest not in found:
            found.append(rest)
    return tuple(found)


def offered() -> list[dict[str, Any]]:
    """Every mechanism that can be calibrated, for a list to choose from."""
    return [
        {
            "kind": one.kind,
            "summary": one.summary,
            "geometries": sorted({geometry_of(domain) for domain in one.example_domains}),
            "bits_parameter": bits_parameter(one),
            "bits": sorted({_bits_in(setting) for setting in one.settings} - {0}),
            "variants": [
                ", ".join(f"{name} = {value}" for name, value in rest.items())
                for rest in variants(one)
            ],
            "sampling_grade": one.sampling,
        }
        for one in registry.registrations()
        if one.knob is not None
    ]


def _bits_in(setting: Parameters) -> int:
    for name in _BITS_NAMES:
        value = setting.get(name)
        if isinstance(value, int):
            return (value - 1).bit_length() if name == "levels" else value
    return 0
