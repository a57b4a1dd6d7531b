"""What the mechanisms on a grid share: codes, laws, grids, and the privacy of what really runs."""

import itertools
import math
from typing import Any

import mpmath
import numpy as np
import pytest

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Domain, L1Ball, L2Ball, Vector
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms import rounded_noise
from sottovoce.mechanisms.discrete_gaussian import DiscreteGaussian
from sottovoce.mechanisms.discrete_laplace import DiscreteLaplace
from sottovoce.mechanisms.mechanism import FiniteLaw, MomentLaw
from sottovoce.mechanisms.noise.laws import Noise
from sottovoce.mechanisms.registry import find
from sottovoce.mechanisms.rounded_noise import ROUNDING, RoundedNoise
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.divergences import finite_hockey_stick
from sottovoce.privacy.events import GaussianNoise, LaplaceNoise, PrivacyEvent, Repeated

BALL = L2Ball(dimension=8, radius=1.0)
BOX = Box(dimension=8, lower=1.0, upper=4.0)
GAUSSIAN = {"noise_multiplier": 2.0, "bits": 8, "steps_per_radius": 4.0}
KINDS = ("discrete_gaussian", "discrete_laplace")
every_kind = pytest.mark.parametrize("kind", KINDS)


def build(kind: str, domain: Domain = BALL, **changes: Any) -> RoundedNoise:
    mechanism = find(kind).build(domain, {**GAUSSIAN, **changes})
    assert isinstance(mechanism, RoundedNoise)
    return mechanism


def spike(domain: Domain) -> Vector:
    if isinstance(domain, Box):
        return np.full(domain.dimension, domain.upper)
    return np.asarray(np.eye(domain.dimension)[0])


# -- codes and grids ---------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 8, 9, 16, 17, 20])
def test_codes_have_the_smallest_type_and_decode_to_the_centered_grid(bits: int) -> None:
    mechanism = build("discrete_gaussian", bits=bits, steps_per_radius="auto")
    codes = mechanism.encode(np.zeros(8), SeededRandomness(1).stream("a"))
    assert codes.dtype == np.min_scalar_type(2**bits - 1)
    half = 2 ** (bits - 1)
    ends = np.array([0, 1, half - 1, half, 2 * half - 1], dtype=np.uint32)
    expected = mechanism.step * np.array([0.0, 1.0, half - 1.0, -half, -1.0])
    assert mechanism.decode(ends) == pytest.approx(expected)
    with pytest.raises(DomainError, match="codes must be integers"):
        mechanism.decode(np.array([2**bits], dtype=np.uint32))


def test_a_box_is_counted_from_its_middle() -> None:
    mechanism = build("discrete_laplace", BOX, noise_multiplier=1e-4, steps_per_radius=6.0)
    assert mechanism.step == 0.5
    values = np.array([1.0, 1.4, 2.0, 2.5, 2.6, 3.0, 3.9, 4.0])
    codes = mechanism.encode(values, SeededRandomness(1).stream("a"))
    assert mechanism.decode(codes).tolist() == [1.0, 1.5, 2.0, 2.5, 2.5, 3.0, 4.0, 4.0]


@every_kind
@pytest.mark.parametrize("bits", [4, 8, 20])
@pytest.mark.parametrize("noise_multiplier", [1e-3, 0.5, 30.0])
@pytest.mark.parametrize("records", [1, 50])
def test_on_the_automatic_grid_a_full_value_wraps_around_once_in_a_billion_times(
    kind: str, bits: int, noise_multiplier: float, records: int
) -> None:
    domain = L2Ball(dimension=8, radius=1.0, records=records)
    mechanism = build(
        kind, domain, bits=bits, noise_multiplier=noise_multiplier, steps_per_radius="auto"
    )
    room = (2 ** (bits - 1) - 0.5) * mechanism.step - 1.0
    assert mechanism.noise.tail(np.array([room]))[0] == pytest.approx(0.5e-9, rel=1e-6)


def test_on_a_box_the_automatic_grid_leaves_the_same_room_on_both_sides() -> None:
    mechanism = build("discrete_laplace", BOX, steps_per_radius="auto")
    room = 127.5 * mechanism.step - 1.5
    assert mechanism.noise.tail(np.array([room]))[0] == pytest.approx(0.5e-9, rel=1e-6)


# -- the law -----------------------------------------------------------------------------------


def precise_cells(mechanism: RoundedNoise, value: float) -> list[float]:
    """P(code) by mpmath, cells added up over turns of the modulus."""
    noise, step, size = mechanism.noise, mpmath.mpf(mechanism.step), mechanism.levels
    stddev = mpmath.sqrt(noise.variance)

    def below(t: mpmath.mpf) -> mpmath.mpf:
        if isinstance(mechanism, DiscreteGaussian):
            return mpmath.ncdf(t / stddev)
        tail = mpmath.exp(-abs(t) * mpmath.sqrt(2) / stddev) / 2
        return tail if t < 0 else 1 - tail

    def cell(j: int) -> mpmath.mpf:
        return below((j + 0.5) * step - value) - below((j - 0.5) * step - value)

    reach = 8 if isinstance(mechanism, DiscreteGaussian) else 24
    turns = range(-reach, reach + 1)
    return [float(mpmath.fsum(cell(j + turn * size) for turn in turns)) for j in range(size)]


@every_kind
@pytest.mark.parametrize(("bits", "steps"), [(2, 0.7), (4, 8.0), (5, 2.0)])
def test_the_law_is_the_wrapped_sum_of_cells(kind: str, bits: int, steps: float) -> None:
    mechanism = build(kind, bits=bits, steps_per_radius=steps, noise_multiplier=1.0)
    values = BALL.project(np.array([1.0, 0.3, -0.7, 0.1, 0.0, -0.2, 0.01, 0.5]))
    law = mechanism.law(values)
    assert isinstance(law, FiniteLaw)
    assert law.table.sum(axis=1) == pytest.approx(np.ones(8), abs=1e-13)
    with mpmath.workdps(40):
        for value, row in zip(values.tolist()[::2], law.table[::2], strict=True):
            assert row == pytest.approx(precise_cells(mechanism, value), rel=1e-9, abs=1e-18)


@every_kind
def test_the_mean_is_the_value_as_nearly_as_the_docstring_says(kind: str) -> None:
    values = BALL.project(np.linspace(-0.4, 0.4, 8))
    for steps in (1.0, 2.0, 3.0):
        mechanism = build(kind, bits=10, noise_multiplier=0.5, steps_per_radius=steps)
        law, step = mechanism.law(values), mechanism.step
        relative = mechanism.noise_stddev / step
        if kind == "discrete_gaussian":
            bound = step * math.exp(-2.0 * math.pi**2 * relative**2)
        else:
            bound = step / (50.0 * relative**2)
        assert np.abs(law.mean() - values).max() <= bound + 1e-12
        assert np.abs(law.mean() - values).max() >= bound / 30.0 - 1e-12  # and no better


def test_wrap_around_is_declared_as_bias() -> None:
    assert build("discrete_gaussian", bits=4).law(spike(BALL)).mean()[0] < 0.9
    law = build("discrete_gaussian").law(spike(BALL))
    assert law.mean()[0] == pytest.approx(1.0, abs=1e-9)


@every_kind
@pytest.mark.parametrize(("bits", "noise_multiplier"), [(12, 2.0), (14, 2.0), (6, 1.0)])
def test_moments_of_large_tables_are_those_of_the_whole_law(
    kind: str, bits: int, noise_multiplier: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = BALL.project(np.arange(8.0) - 2.5)
    mechanism = build(kind, bits=bits, noise_multiplier=noise_multiplier, steps_per_radius="auto")
    whole = mechanism.law(values)
    assert isinstance(whole, FiniteLaw)
    monkeypatch.setattr(rounded_noise, "_MAX_TABLE_CELLS", 10)
    monkeypatch.setattr(rounded_noise, "_CHUNK_CELLS", 3 * 2**bits)
    moments = mechanism.law(values)
    assert isinstance(moments, MomentLaw)
    step, fine = mechanism.step, mechanism.noise_stddev >= 64.0 * mechanism.step
    assert fine == (bits > 6)
    # What wraps around once in 10^9 times is a whole turn away.
    wrapped = 1e-9 * mechanism.levels * step
    assert np.abs(moments.mean() - whole.mean()).max() <= (1e-5 * step + wrapped if fine else 1e-15)
    tolerance = 1e-6 if fine else 1e-12
    assert moments.variance() == pytest.approx(whole.variance(), rel=tolerance)


# -- privacy, of what really runs --------------------------------------------------------------


def event_pairs() -> list[Any]:
    cases: list[Any] = []
    for adjacency, bits in itertools.product(Adjacency, (2, 4, 6)):
        for noise_multiplier, steps in ((0.7, 1.0), (2.0, 2.0), (1.0, 2 ** (bits - 1))):
            common = {"noise_multiplier": noise_multiplier, "bits": bits, "steps_per_radius": steps}
            ball = L2Ball(dimension=1, radius=1.0)
            cases.append(("discrete_gaussian", ball, common, adjacency))
            for domain in (
                ball,
                L1Ball(dimension=1, radius=1.0),
                Box(dimension=1, lower=-0.25, upper=1.0),
            ):
                cases.append(("discrete_laplace", domain, common, adjacency))
    return cases


@pytest.mark.parametrize(("kind", "domain", "given", "adjacency"), event_pairs())
def test_no_bound_lies_below_the_exact_hockey_stick_of_the_cells(
    kind: str, domain: Domain, given: dict[str, Any], adjacency: Adjacency
) -> None:
    mechanism = find(kind).build(domain, given)
    event = mechanism.privacy(adjacency)
    low, high = (-1.0, 1.0) if not isinstance(domain, Box) else (domain.lower, domain.upper)
    if adjacency is Adjacency.ZERO_OUT:
        pairs = [(end, 0.0) for end in (low, high)]
    else:
        pairs = [(low, high), (low, 0.3 * low), (0.2, high)]
    for times, delta in ((1, 1e-6), (1, 0.05), (2, 1e-4)):
        bounds = privacy_spent(Repeated(event=event, count=times), delta).bounds
        for pair in pairs:
            rows = [mechanism.law([value]).table[0] for value in pair]  # type: ignore[union-attr]
            p, q = (row if times == 1 else np.outer(row, row).ravel() for row in rows)
            for name, epsilon in bounds:
                for one, other in ((p, q), (q, p)):
                    exact = finite_hockey_stick(one, other, epsilon)
                    assert exact <= delta * (1.0 + 1e-9) + 1e-15, f"{name} says {epsilon}"


def test_a_fine_grid_spends_what_is_claimed_to_the_last_digits() -> None:
    """Nothing is lost either: the exact delta of the cells nears the Gaussian's."""
    mechanism = DiscreteGaussian(
        input_domain=L2Ball(dimension=1, radius=1.0),
        noise_multiplier=1.0,
        bits=12,
        steps_per_radius=200.0,
    )
    p, q = (mechanism.law([value]).table[0] for value in (1.0, 0.0))  # type: ignore[union-attr]
    spent = privacy_spent(mechanism.privacy(Adjacency.ZERO_OUT), 1e-5)
    assert finite_hockey_stick(p, q, spent.epsilon) == pytest.approx(1e-5, rel=1e-3)


def test_events_are_those_of_the_real_valued_noise() -> None:
    up = 1.0 + ROUNDING
    for adjacency, factor in ((Adjacency.ZERO_OUT, 1.0), (Adjacency.REPLACE_ONE, 2.0)):
        expected: PrivacyEvent
        for records in (1, 20):
            ball = L2Ball(dimension=8, radius=3.0, records=records)
            expected = GaussianNoise(
                mu=factor / 2.0 * up, adjacency=adjacency, zero_centered=factor == 2.0
            )
            assert build("discrete_gaussian", ball).privacy(adjacency) == expected  # type: ignore[attr-defined]
            expected = LaplaceNoise(shift=factor / 2.0 * up, dimension=8, adjacency=adjacency)
            assert build("discrete_laplace", ball).privacy(adjacency) == expected  # type: ignore[attr-defined]
            octahedron = L1Ball(dimension=8, radius=3.0, records=records)
            expected = LaplaceNoise(shift=factor / 2.0 * up, dimension=1, adjacency=adjacency)
            assert build("discrete_laplace", octahedron).privacy(adjacency) == expected  # type: ignore[attr-defined]
    each = LaplaceNoise(shift=0.5 * up, dimension=1, adjacency=Adjacency.REPLACE_ONE)
    found = build("discrete_laplace", BOX).privacy(Adjacency.REPLACE_ONE)  # type: ignore[attr-defined]
    assert found == Repeated(event=each, count=8)


@every_kind
def test_they_are_for_deployment(kind: str) -> None:
    assert build(kind).sampling == "exact"


# -- what is refused ---------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("bits", [0, 1, 21, -3, 8.0, True])
def test_bits_outside_two_to_twenty_are_refused(kind: str, bits: Any) -> None:
    with pytest.raises(ParameterError, match="bits must be an integer from 2 to 20"):
        build(kind, bits=bits)


@every_kind
@pytest.mark.parametrize("steps", [0.0, -1.0, math.nan, math.inf, 129.0, 1e-31, "fine"])
def test_a_grid_that_wraps_or_vanishes_is_refused(kind: str, steps: Any) -> None:
    with pytest.raises(ParameterError, match="steps_per_radius"):
        build(kind, steps_per_radius=steps)


def test_a_box_may_have_as_many_steps_as_there_are_codes() -> None:
    build("discrete_laplace", BOX, steps_per_radius=256.0)
    with pytest.raises(ParameterError, match="steps_per_radius"):
        build("discrete_laplace", BOX, steps_per_radius=257.0)


@every_kind
@pytest.mark.parametrize("noise_multiplier", [0.0, -1.0, math.nan, 1e13, "2"])
def test_a_noise_multiplier_that_is_none_is_refused(kind: str, noise_multiplier: Any) -> None:
    for steps in (4.0, "auto"):
        with pytest.raises(ParameterError, match="noise_multiplier"):
            build(kind, noise_multiplier=noise_multiplier, steps_per_radius=steps)


@every_kind
def test_noise_that_is_too_wide_for_the_grid_is_refused_and_not_looked_for(kind: str) -> None:
    with pytest.raises(ParameterError, match="use a coarser grid"):
        build(kind, noise_multiplier=1e7)
    given = {"bits": 20, "steps_per_radius": 2.0**19}
    with pytest.raises(ParameterError, match="not even the parameter"):
        find(kind).calibrated(
            BALL,
            given,
            rounds=1000,
            epsilon=0.1,
            delta=1e-6,
            event_of=lambda mechanism: mechanism.privacy(Adjacency.ZERO_OUT),
        )
    for noise_multiplier in (1e-5, 1e12):
        for bits in (2, 20):
            build(kind, noise_multiplier=noise_multiplier, bits=bits, steps_per_radius="auto")


def test_foreign_domains_are_refused() -> None:
    with pytest.raises(ParameterError, match="must be an L2Ball"):
        build("discrete_gaussian", BOX)
    with pytest.raises(ParameterError, match="L1Ball, an L2Ball or a Box"):
        DiscreteLaplace(input_domain="ball", **GAUSSIAN)  # type: ignore[arg-type]


def test_noise_and_step_follow_the_domain() -> None:
    ball = build("discrete_gaussian", L2Ball(dimension=8, radius=6.0, records=3))
    assert (ball.noise_stddev, ball.step) == (4.0, 1.5)
    box = build("discrete_laplace", BOX)
    noise: Noise = box.noise
    assert (noise.mean_absolute, box.step) == (6.0, 0.75)
