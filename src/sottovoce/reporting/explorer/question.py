"""The questions that the explorer answers: a mechanism, a budget and an update, within limits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Domain, clipped_domain, geometry_of
from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.registry import Parameters, Registration
from sottovoce.planning.candidates import domain_for

MAX_DIMENSION, MAX_ROUNDS, MAX_BITS = 10**8, 10**6, 16
# The limit for mechanisms that are not coordinatewise; larger updates would take minutes.
MAX_WHOLE_DIMENSION = 10**6
MAX_RELEASES, MAX_RELEASES_SLOW = 10**5, 10**8  # they take some seconds; a minute or two
GEOMETRIES = ("l2", "l1", "linf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorerQuestion:
    """A question about one mechanism at a privacy budget; values out of range are refused.

    Attributes:
        mechanism: The mechanism's name.
        variant: Which of the settings that `variants` lists, from 0.
        bits: Bits per coordinate, where the mechanism has such a parameter.
        epsilon: The budget over all rounds.
        delta: The failure probability.
        rounds: The number of rounds in which a client takes part.
        dimension: The coordinates of an update.
        clip_norm: The clipping norm of an update.
        clip_geometry: 'l2', 'l1' or 'linf'.
        adjacency: 'zero-out' or 'replace-one'.
        slow: Whether to compute what takes a minute: calibration that solves a design for every
            value, or the composition of very many releases.
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
        """Raise if too many releases would be composed; in a box each coordinate is one."""
        if not isinstance(self.domain, Box):
            return
        releases, most = (
            self.dimension * self.rounds,
            MAX_RELEASES_SLOW if self.slow else MAX_RELEASES,
        )
        if releases > most:
            slowly = "" if self.slow else ", or allow computations of a minute"
            raise ParameterError(
                f"under linf '{self.mechanism}' releases each coordinate in each round, and here "
                f"{releases:.3g} releases would be composed, above {most:g}; ask for fewer "
                f"coordinates or rounds{slowly}"
            )

    @classmethod
    def from_plain(cls, given: Any) -> Self:
        """Return the question that plain data describe; integers are accepted as numbers.

        Args:
            given: The fields by name, as JSON has them; only `mechanism` is required.

        Raises:
            ParameterError: If the data has another form, or a value is out of range.
            UnknownNameError: If there is no such field or mechanism.
        """
        if not isinstance(given, Mapping):
            raise ParameterError("a question must be an object of names and values")
        kinds = {field.name: field.type for field in fields(cls)}
        for name, value in given.items():
            if name not in kinds:
                raise UnknownNameError.among("parameter", str(name), kinds)
            if not _is_a(value, kinds[name]):
                wanted = _WORDS[kinds[name]]
                raise ParameterError(f"{name} must be {wanted}, got {value!r}")
        if "mechanism" not in given:
            raise ParameterError("a question must name a 'mechanism'")
        return cls(**{name: _as(kinds[name], value) for name, value in given.items()})

    @property
    def registration(self) -> Registration:
        """The registration of the mechanism."""
        return registry.find(self.mechanism)

    @property
    def updates(self) -> Domain:
        """The set of clipped updates: an l2 or l1 ball, or a box for 'linf'."""
        return clipped_domain(self.clip_geometry, self.dimension, self.clip_norm)

    @property
    def domain(self) -> Domain:
        """The mechanism's input domain: that of the updates, or a Euclidean ball around it."""
        return domain_for(self.registration, self.updates)

    @property
    def free(self) -> dict[str, Any]:
        """The parameters that the question sets, by name, without the one that is calibrated."""
        registration = self.registration
        chosen = dict(variants(registration)[self.variant])
        if bits_parameter(registration):
            chosen |= _with_bits(registration, self.bits)
        return chosen


_ELSEWHERE = "use 'sottovoce plan' or 'privacy spend', which have no such limit"
_WORDS: dict[Any, str] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}
# The names that mechanisms have for the number of bits, or of levels.
_BITS_NAMES = ("bits", "output_bits", "levels")


def _is_a(value: Any, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _as(kind: Any, value: Any) -> Any:
    """Return a number as a float; one that is too large becomes infinite and is refused later."""
    if kind is not float:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def bits_parameter(registration: Registration) -> str | None:
    """Return the name of the parameter that sets the bits or levels per coordinate; None if none.

    It is "bits", "output_bits" or "levels".
    """
    return next((name for name in _BITS_NAMES if name in registration.parameters), None)


def _with_bits(registration: Registration, bits: int) -> dict[str, int]:
    name = bits_parameter(registration)
    assert name is not None
    return {name: 2**bits if name == "levels" else bits}


def variants(registration: Registration) -> tuple[Parameters, ...]:
    """Return the settings that planning tries, each once, without the parameter of bits or levels.

    The calibrated parameter is not part of them.
    """
    found: list[Parameters] = []
    for setting in registration.settings:
        rest = {name: value for name, value in setting.items() if name not in _BITS_NAMES}
        if rest not in found:
            found.append(rest)
    return tuple(found)


def describe_mechanisms() -> list[dict[str, Any]]:
    """Return descriptions of all mechanisms that can be calibrated, as plain data for the page.

    Mechanisms that planning tries for secure sums only are left out.
    """
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
        if one.calibrated_parameter is not None and one.settings
    ]


def _bits_in(setting: Parameters) -> int:
    for name in _BITS_NAMES:
        value = setting.get(name)
        if isinstance(value, int):
            return (value - 1).bit_length() if name == "levels" else value
    return 0
