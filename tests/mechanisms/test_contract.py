"""The contract, over the whole register: a new mechanism is tested by being there."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cases import cases
from numpy.typing import ArrayLike, NDArray

from sottovoce.auditing import contract
from sottovoce.auditing.contract import Case, ContractError
from sottovoce.auditing.enumeration import extreme_inputs, origin
from sottovoce.auditing.law_divergences import renyi_of
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, L2Ball
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.core.randomness import Keystream, SeededRandomness
from sottovoce.mechanisms import seeded_sign, seeded_step
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.mechanisms.mechanism import FiniteLaw, JointLaw, MomentLaw
from sottovoce.mechanisms.registry import MECHANISMS, Designed, parameter_hash
from sottovoce.privacy.divergences import finite_renyi


def sized(case: Case, **changes: int) -> Case:
    found = case.with_size(**changes)
    if found is None:
        pytest.skip("a box has no records")
    return found


def other_values(case: Case, name: str) -> Iterator[Any]:
    """Values that may be valid for a parameter in place of the example's."""
    yield from (other[name] for other in case.registration.examples if name in other)
    value = case.example[name]
    if not isinstance(value, str):
        yield from (value + 1, value - 1, value / 2)


CASES = [
    pytest.param(case, id=f"{case.registration.kind}-{number}-{type(case.domain).__name__}")
    for registration in MECHANISMS.ours().values()
    for number, case in enumerate(contract.cases(registration))
]
every_mechanism = pytest.mark.parametrize("case", CASES)
# The first example of each mechanism on each of its domains; the others differ in numbers.
FIRST = {
    f"{registration.kind}-{number}-{type(domain).__name__}"
    for registration in MECHANISMS.ours().values()
    for number, domain in enumerate(registration.example_domains)
}


@pytest.fixture
def few_signs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that draws of seeds are quick; with all signs tests/mechanisms/test_seeded_laws.py has."""
    for module in (seeded_sign, seeded_step):
        monkeypatch.setattr(module, "LEAST_SIGNS", 400)
        module._layout.cache_clear()
    yield
    for module in (seeded_sign, seeded_step):
        module._layout.cache_clear()


@pytest.mark.usefixtures("few_signs")
@pytest.mark.parametrize(
    ("case", "records"),
    [
        *(pytest.param(*one.values, 1, id=f"1-{one.id}") for one in CASES),
        *(
            # The first example of each mechanism, unless each message is a search.
            pytest.param(*one.values, 5, id=f"5-{one.id}", marks=[pytest.mark.slow] * more)
            for one in CASES
            for more in ["-0-" not in str(one.id) or "seeded" in str(one.id)]
        ),
    ],
)
def test_samples_follow_the_declared_law(case: Case, records: int) -> None:
    found = sized(case, records=records)
    # Records change the scale of noise and no path of the sampler: every other input will do.
    every = itertools.islice(
        extreme_inputs(found.domain, np.random.default_rng(1)), 0, None, min(records, 2)
    )
    # What is drawn message by message takes its time, and its own tests draw thousands.
    jointly = isinstance(found.mechanism().law(origin(found.domain)), JointLaw | MomentLaw)
    num_samples = cases(250 if jointly else 1500)
    for values in every:
        contract.samples_follow_the_law(found.mechanism(), values, num_samples=num_samples)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(
    ("case", "dimension", "records"),
    [
        pytest.param(*one.values, *size, id=f"{size[0]}-{size[1]}-{one.id}", marks=marks)
        for size in [(1, 1), (3, 1), (3, 4), (8, 1), (8, 20)]
        for one in CASES
        # Of eight coordinates the first example of each mechanism, and every box: it has no
        # records, so that it is left out of the case with several.
        for usual in ["-0-" in str(one.id) or str(one.id).endswith("-Box")]
        for more in [size == (3, 4) and one.id not in FIRST]
        for rare in [more or size in [(3, 1), (8, 20)] or (size == (8, 1) and not usual)]
        for marks in [[pytest.mark.slow] * rare]
    ],
)
def test_claimed_privacy_covers_the_exact_divergence(
    case: Case, adjacency: Adjacency, dimension: int, records: int
) -> None:
    found = sized(case, dimension=dimension, records=records)
    for seed in range(cases(1)):
        contract.privacy_covers_the_divergence(found.mechanism(), adjacency, seed=5 + seed)


@every_mechanism
@pytest.mark.parametrize("dimension", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_claimed_privacy_covers_a_record_that_is_left_out_next_to_others(
    case: Case, dimension: int
) -> None:
    found = sized(case, dimension=dimension)
    for seed in range(cases(1)):
        contract.privacy_covers_nonzero_reference(found.mechanism(), seed=5 + seed)


@every_mechanism
@pytest.mark.parametrize("dimension", [1, 7, 8, 1001])
def test_codes_fit_their_format_and_survive_the_wire(case: Case, dimension: int) -> None:
    found = sized(case, dimension=dimension)
    for values in extreme_inputs(found.domain, np.random.default_rng(2)):
        contract.codes_survive_the_wire(found.mechanism(), values)


@every_mechanism
def test_the_same_key_gives_the_same_codes_and_no_key_serves_twice(case: Case) -> None:
    contract.one_key_gives_one_message(case.mechanism())


@every_mechanism
def test_a_mechanism_is_immutable_and_leaves_its_input_alone(case: Case) -> None:
    contract.nothing_is_changed(case.mechanism())


@every_mechanism
def test_bad_input_is_refused_and_never_clamped(case: Case) -> None:
    contract.bad_input_is_refused(case.mechanism())


@every_mechanism
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda v: np.full_like(v, np.nan), "finite"),
        (lambda v: v[:-1], "dimension {dimension}"),
        (lambda v: v + 1e6, "project"),
    ],
)
def test_what_is_wrong_with_bad_input_is_said(case: Case, change: Any, reason: str) -> None:
    mechanism = case.mechanism()
    with pytest.raises(DomainError, match=reason.format(dimension=case.domain.dimension)):
        mechanism.encode(change(origin(case.domain)), SeededRandomness(1).stream("a"))


@every_mechanism
def test_the_parameter_hash_tells_every_public_parameter_apart(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Designs differ whenever parameters do; here the parameters must tell by themselves.
    if isinstance(case.mechanism(), Designed):
        monkeypatch.setattr(case.registration.factory, "design_digest", lambda self: "the same")
    domain, same = case.domain, case.mechanism()
    assert parameter_hash(case.mechanism()) == parameter_hash(same)
    changes = {"dimension": domain.dimension + 1}
    if not isinstance(domain, Box):
        changes["records"] = 2
    for name, value in changes.items():
        changed = sized(case, **{name: value}).mechanism()
        assert parameter_hash(changed) != parameter_hash(same)
    for name, value in case.example.items():
        tried = 0
        for other in other_values(case, name):
            if other == value:
                continue
            try:
                changed = case.registration.build(domain, {**case.example, name: other})
            except ParameterError:
                continue
            assert parameter_hash(changed) != parameter_hash(same)
            tried += 1
        assert tried or isinstance(value, str), f"no other value of {name} was found"


# Every knob value of an interpolated design takes a second; one bit (metric_mvu-4) takes less.
SLOW_TO_CALIBRATE = ("metric_mvu-1-L2Ball", "metric_mvu-4-L2Ball")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(*one.values, id=one.id, marks=pytest.mark.slow)
        if one.id in SLOW_TO_CALIBRATE or one.id not in FIRST
        else one
        for one in CASES
    ],
)
def test_calibration_lands_just_inside_the_budget(case: Case) -> None:
    contract.calibration_meets_the_budget(case)


@every_mechanism
def test_parameters_have_no_defaults_and_unknown_ones_are_named(case: Case) -> None:
    contract.parameters_have_no_defaults(case)


# The contract itself must be right, and able to fail.


@pytest.mark.parametrize("sharpness", [1e-6, 0.1, 3.0, 40.0])
def test_divergences_of_all_coordinates_and_orders_at_once_are_those_of_each(
    sharpness: float,
) -> None:
    generator = np.random.default_rng(7)
    tables = np.exp(sharpness * generator.normal(size=(2, 5, 9)))
    tables[:, 3, 4] = 0.0  # a code that neither sends
    tables[0, 4, 2] = 0.0  # and one that the second alone does
    tables /= tables.sum(axis=2, keepdims=True)
    orders = (1.01, 2.0, 8.0, 256.0)
    first, second = (FiniteLaw(points=np.arange(9.0), table=table) for table in tables)
    rows = list(zip(first.table, second.table, strict=True))
    expected = [math.fsum(finite_renyi(p, q, order) for p, q in rows) for order in orders]
    assert renyi_of(first, second, orders) == pytest.approx(expected, rel=1e-10, abs=1e-15)
    assert renyi_of(second, first, orders) == [math.inf] * len(orders)


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
    with pytest.raises(ContractError, match="claimed"):
        contract.privacy_covers_the_divergence(mechanism, Adjacency.ZERO_OUT)


def test_a_planted_bias_of_the_sampler_is_caught() -> None:
    domain = L2Ball(dimension=3, radius=1.0)
    mechanism = BiasedSampler(input_domain=domain, levels=4, noise_multiplier=2.0)
    with pytest.raises(ContractError):
        contract.samples_follow_the_law(mechanism, np.zeros(3), num_samples=20000)
