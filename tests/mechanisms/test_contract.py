"""The contract, over the whole register: a new mechanism is tested by being there."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cases import cases
from contract import (
    check_codes_and_wire,
    check_privacy_covers_the_divergence,
    check_samples_follow_the_law,
    inputs,
    origin,
)
from numpy.typing import ArrayLike, NDArray

from sottovoce.adjacency import Adjacency
from sottovoce.domains import Box, Domain, L2Ball
from sottovoce.errors import DomainError, ParameterError, RandomnessError, UnknownNameError
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.registry import Designed, Parameters, Registration, parameter_hash
from sottovoce.privacy.accounting import epsilon
from sottovoce.privacy.events import Repeated
from sottovoce.randomness import Keystream, SeededRandomness


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One example of a registered mechanism, on one of its domains."""

    registration: Registration
    example: Parameters
    domain: Domain

    def build(self, **changes: int) -> tuple[Mechanism, Domain]:
        """The mechanism, on the domain with another dimension or number of records."""
        if isinstance(self.domain, Box) and changes.get("records") == 1:
            del changes["records"]
        if isinstance(self.domain, Box) and "records" in changes:
            pytest.skip("a box has no records")
        domain = dataclasses.replace(self.domain, **changes)  # type: ignore[type-var]
        return self.registration.build(domain, self.example), domain

    def other_values(self, name: str) -> Iterator[Any]:
        """Values that may be valid for a parameter in place of the example's."""
        yield from (other[name] for other in self.registration.examples if name in other)
        value = self.example[name]
        if not isinstance(value, str):
            yield from (value + 1, value - 1, value / 2)


CASES = [
    pytest.param(
        Case(registration=registration, example=example, domain=domain),
        id=f"{registration.kind}-{number}-{type(domain).__name__}",
    )
    for registration in registry.registrations()
    for number, example in enumerate(registration.examples)
    for domain in registration.example_domains
]
every_mechanism = pytest.mark.parametrize("case", CASES)


@every_mechanism
@pytest.mark.parametrize("records", [1, 5])
def test_samples_follow_the_declared_law(case: Case, records: int) -> None:
    mechanism, domain = case.build(records=records)
    for values in inputs(domain, np.random.default_rng(1)):
        check_samples_follow_the_law(mechanism, values, num_samples=cases(1500))


@every_mechanism
@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(("dimension", "records"), [(1, 1), (3, 1), (3, 4), (8, 1), (8, 20)])
def test_claimed_privacy_covers_the_exact_divergence(
    case: Case, adjacency: Adjacency, dimension: int, records: int
) -> None:
    mechanism, domain = case.build(dimension=dimension, records=records)
    for seed in range(cases(1)):
        check_privacy_covers_the_divergence(mechanism, domain, adjacency, seed=5 + seed)


@every_mechanism
@pytest.mark.parametrize("dimension", [1, 7, 8, 1001])
def test_codes_fit_their_format_and_survive_the_wire(case: Case, dimension: int) -> None:
    mechanism, domain = case.build(dimension=dimension)
    for values in inputs(domain, np.random.default_rng(2)):
        check_codes_and_wire(mechanism, values)


@every_mechanism
def test_the_same_key_gives_the_same_codes_and_no_key_serves_twice(case: Case) -> None:
    mechanism, domain = case.build()
    values = domain.project(np.arange(domain.dimension, dtype=np.float64))
    streams = [SeededRandomness(9).stream("a") for _ in range(2)]
    first, second = (mechanism.encode(values, stream) for stream in streams)
    np.testing.assert_array_equal(first, second)
    if mechanism.sampling != "none":
        with pytest.raises(RandomnessError, match="fresh"):
            mechanism.encode(values, streams[0])


@every_mechanism
def test_a_mechanism_is_immutable_and_leaves_its_input_alone(case: Case) -> None:
    mechanism, domain = case.build()
    for field in dataclasses.fields(mechanism):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(mechanism, field.name, None)
    hash(mechanism)
    values = domain.project(np.ones(domain.dimension))
    values.flags.writeable = False
    codes = mechanism.encode(values, SeededRandomness(1).stream("a"))
    codes.flags.writeable = False
    mechanism.decode(codes)


@every_mechanism
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda v: np.full_like(v, np.nan), "finite"),
        (lambda v: np.full_like(v, np.inf), "finite"),
        (lambda v: v[:-1], "dimension {dimension}"),
        (lambda v: v[None, :], "dimension {dimension}"),
        (lambda v: v + 1e6, "project"),
    ],
)
def test_bad_input_is_refused_and_never_clamped(case: Case, change: Any, reason: str) -> None:
    mechanism, domain = case.build()
    keystream = SeededRandomness(1).stream("a")
    with pytest.raises(DomainError, match=reason.format(dimension=domain.dimension)):
        mechanism.encode(change(origin(domain)), keystream)


@every_mechanism
def test_the_parameter_hash_tells_every_public_parameter_apart(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Designs differ whenever parameters do; here the parameters must tell by themselves.
    if isinstance(case.build()[0], Designed):
        monkeypatch.setattr(case.registration.factory, "design_digest", lambda self: "the same")
    mechanism, domain = case.build()
    same, _ = case.build()
    assert parameter_hash(mechanism) == parameter_hash(same)
    changes = {"dimension": domain.dimension + 1}
    if not isinstance(domain, Box):
        changes["records"] = 2
    for name, value in changes.items():
        assert parameter_hash(case.build(**{name: value})[0]) != parameter_hash(same)
    for name, value in case.example.items():
        tried = 0
        for other in case.other_values(name):
            if other == value:
                continue
            try:
                changed = case.registration.build(domain, {**case.example, name: other})
            except ParameterError:
                continue
            assert parameter_hash(changed) != parameter_hash(same)
            tried += 1
        assert tried or isinstance(value, str), f"no other value of {name} was found"


@every_mechanism
def test_calibration_lands_just_inside_the_budget(case: Case) -> None:
    registration, domain = case.registration, case.domain
    if registration.knob is None:
        return
    given = {k: v for k, v in case.example.items() if k != registration.knob.parameter}
    found = registration.calibrated(
        domain,
        given,
        rounds=10,
        epsilon=2.0,
        delta=1e-6,
        event_of=registry.seen(Adjacency.REPLACE_ONE),
    )
    event = registration.build(domain, found).privacy(Adjacency.REPLACE_ONE)
    # Epsilon moves at most as the square of the knob, by as much as its tolerance leaves open.
    least = 2.0 * min(0.9995, 1.0 - 2.5 * registration.knob.relative_tolerance)
    assert least < epsilon(Repeated(event=event, count=10), 1e-6) <= 2.0


@every_mechanism
def test_parameters_have_no_defaults_and_unknown_ones_are_named(case: Case) -> None:
    registration, example = case.registration, case.example
    for name in example:
        with pytest.raises(ParameterError, match=name):
            registration.build(case.domain, {k: v for k, v in example.items() if k != name})
    with pytest.raises(UnknownNameError, match="noise_multiplyer"):
        registration.build(case.domain, {**example, "noise_multiplyer": 1.0})


# The contract itself must be able to fail.


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfNoise(Gaussian):
    """A planted bug: claims the noise it was given, adds and declares half of it."""

    @property
    def noise_stddev(self) -> float:
        return 0.5 * self.noise_multiplier * self.input_domain.radius

    def privacy(self, adjacency: Adjacency) -> Any:
        honest = Gaussian(input_domain=self.input_domain, noise_multiplier=self.noise_multiplier)
        return honest.privacy(adjacency)


@dataclass(frozen=True, slots=True, kw_only=True)
class BiasedSampler(GaussHermite):
    """A planted bug: one code in fifty is forced up."""

    def encode(self, values: ArrayLike, keystream: Keystream) -> NDArray[np.uint8]:
        codes = GaussHermite.encode(self, values, keystream)
        force = keystream.extension(0, len(codes))
        forced = np.frombuffer(force, dtype=np.uint8) < 5
        return np.where(forced, self.levels - 1, codes).astype(np.uint8)


def test_a_planted_halving_of_the_noise_is_caught() -> None:
    domain = L2Ball(dimension=3, radius=1.0)
    mechanism = HalfNoise(input_domain=domain, noise_multiplier=2.0)
    with pytest.raises(AssertionError):
        check_privacy_covers_the_divergence(mechanism, domain, Adjacency.ZERO_OUT)


def test_a_planted_bias_of_the_sampler_is_caught() -> None:
    domain = L2Ball(dimension=3, radius=1.0)
    mechanism = BiasedSampler(input_domain=domain, levels=4, noise_multiplier=2.0)
    with pytest.raises(AssertionError):
        check_samples_follow_the_law(mechanism, np.zeros(3), num_samples=20000)
