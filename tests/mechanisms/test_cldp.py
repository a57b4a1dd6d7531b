import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from cases import denser
from scipy.special import ndtri

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, L1Ball, L2Ball, Vector
from sottovoce.core.errors import DomainError, ParameterError
from sottovoce.core.randomness import Keystream, SeededRandomness, open_uniforms
from sottovoce.mechanisms.cldp import Cldp, mean_component
from sottovoce.mechanisms.mechanism import JointLaw

SCALAR = Box(dimension=1, lower=-1.0, upper=1.0)


def box(dimension: int) -> Box:
    return Box(dimension=dimension, lower=-1.0, upper=1.0)


def sampled_mean(mechanism: Cldp, values: Vector, samples: int) -> tuple[Vector, Vector]:
    """The mean of decoded samples, and how many standard errors it is off."""
    randomness = SeededRandomness(8)
    total = np.zeros(len(values))
    for n in range(samples):
        total += mechanism.decode(mechanism.encode(values, randomness.stream(n)))
    law = mechanism.law(values)
    return total / samples, (total / samples - values) / np.sqrt(law.variance() / samples)


# -- the published figures -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "mean", "largest"), [(1.0, 4.336, 4.682), (3.0, 0.874, 1.220), (5.0, 0.680, 1.027)]
)
@pytest.mark.parametrize(
    "domain", [SCALAR, L1Ball(dimension=1, radius=1.0), L2Ball(dimension=1, radius=1.0)]
)
def test_a_scalar_is_randomized_response(
    domain: Box | L1Ball | L2Ball, epsilon: float, mean: float, largest: float
) -> None:
    mechanism = Cldp(input_domain=domain, epsilon=epsilon)
    assert mechanism.code_format().payload_bits(1) == 1
    variances = [mechanism.law([x]).variance()[0] for x in np.linspace(-1.0, 1.0, 50)]
    assert float(np.mean(variances)) == pytest.approx(mean, abs=6e-4)
    assert max(variances) == pytest.approx(largest, abs=6e-4)


@pytest.mark.parametrize(
    ("epsilon", "error"), [(1.0, 4.68e-4), (2.0, 1.72e-4), (3.0, 1.22e-4), (5.0, 1.03e-4)]
)
def test_mean_estimation_over_ten_thousand_clients_has_the_published_error(
    epsilon: float, error: float
) -> None:
    ball = L1Ball(dimension=128, radius=1.0)
    mechanism = Cldp(input_domain=ball, epsilon=epsilon)
    values = ball.project(np.random.default_rng(1).uniform(size=128))
    law = mechanism.law(values)
    assert law.mean() == pytest.approx(values, abs=1e-12)
    assert float(np.mean(law.variance())) / 1e4 == pytest.approx(error, rel=5e-3)
    assert mechanism.code_format().payload_bits(128) == 8


# -- one code for the whole vector, or one for each coordinate ------------------------------


@pytest.mark.parametrize(
    ("domain", "bits"),
    [
        (box(128), 8),
        (box(100), 8),
        (L1Ball(dimension=100, radius=1.0), 8),
        (L1Ball(dimension=1025, radius=1.0), 12),
        (L2Ball(dimension=128, radius=1.0), 128 * 8),
        (L2Ball(dimension=100_000, radius=1.0), 100_000 * 18),
    ],
)
def test_codes_take_the_bits_of_a_direction_and_a_sign(
    domain: Box | L1Ball | L2Ball, bits: int
) -> None:
    mechanism = Cldp(input_domain=domain, epsilon=1.0)
    assert mechanism.code_format().payload_bits(domain.dimension) == bits


# -- unbiased --------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [1, 2, 3, 5, 8, 13])
def test_the_joint_laws_are_unbiased_to_the_last_digits(dimension: int) -> None:
    generator = np.random.default_rng(dimension)
    for domain in (box(dimension), L1Ball(dimension=dimension, radius=3.0)):
        values = domain.project(generator.normal(size=dimension))
        law = Cldp(input_domain=domain, epsilon=0.7).law(values)
        assert isinstance(law, JointLaw)
        assert math.fsum(law.pmf) == pytest.approx(1.0, abs=1e-14)
        assert law.mean() == pytest.approx(values, abs=1e-13)


@pytest.mark.parametrize(
    "domain",
    [
        box(3),
        L1Ball(dimension=3, radius=2.0),
        *(L2Ball(dimension=d, radius=2.0) for d in (2, 3, 9)),
    ],
)
def test_samples_are_unbiased(domain: Box | L1Ball | L2Ball) -> None:
    mechanism = Cldp(input_domain=domain, epsilon=3.0)
    values = domain.project(np.linspace(-0.4, 1.0, domain.dimension))
    _, errors = sampled_mean(mechanism, values, samples=2000)
    assert np.abs(errors).max() < 7.0


@pytest.mark.parametrize("dimension", [400, 2000])
def test_the_sphere_does_not_overflow_in_high_dimension(dimension: int) -> None:
    ball = L2Ball(dimension=dimension, radius=1.0)
    mechanism = Cldp(input_domain=ball, epsilon=4.0)
    values = ball.project(np.ones(dimension))
    mean, errors = sampled_mean(mechanism, values, samples=300)
    assert np.abs(errors).max() < 7.0
    variance = mechanism.law(values).variance().sum() / 300
    assert abs(float(mean @ values) - 1.0) < 7.0 * math.sqrt(variance / dimension) * 2.0


@pytest.mark.parametrize("dimension", [1, 2, 3, 10, 400, 1000, 1001, 10**6])
def test_the_mean_component_of_a_point_on_the_sphere(dimension: int) -> None:
    half = mp.mpf(dimension) / 2
    exact = mp.gammaprod([half], [half + mp.mpf(1) / 2]) / mp.sqrt(mp.pi)
    assert mean_component(dimension) == pytest.approx(float(exact), rel=1e-12)


# -- private ---------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", denser([1e-9, 1e-3, 0.1, 1.0, 3.0, 20.0, 44.0, 60.0, 1000.0]))
def test_the_integer_threshold_errs_toward_privacy_and_by_less_than_one_unit(
    epsilon: float,
) -> None:
    threshold = Cldp(input_domain=SCALAR, epsilon=epsilon).flip_threshold
    with mp.workdps(60):
        power = mp.e ** mp.mpf(epsilon)
        assert mp.mpf(2**64 - threshold) / threshold <= power
        assert threshold == 1 or mp.mpf(2**64 - threshold + 1) / (threshold - 1) > power


@pytest.mark.parametrize("domain", [box(3), L1Ball(dimension=3, radius=1.0)])
@pytest.mark.parametrize("epsilon", denser([0.1, 1.0, 5.0]))
def test_extreme_inputs_meet_the_claim_and_no_pair_exceeds_it(
    domain: Box | L1Ball, epsilon: float
) -> None:
    mechanism = Cldp(input_domain=domain, epsilon=epsilon)
    generator = np.random.default_rng(3)
    corner = np.array([1.0, 0.0, 0.0]) if isinstance(domain, L1Ball) else np.ones(3)
    points = [corner, -corner, *(domain.project(generator.normal(size=3)) for _ in range(40))]
    for adjacency, pairs in (
        (Adjacency.REPLACE_ONE, [(a, b) for a in points for b in points]),
        (Adjacency.ZERO_OUT, [(a, np.zeros(3)) for a in points]),
    ):
        losses = [
            float(np.abs(np.log(pmf_of(mechanism, a) / pmf_of(mechanism, b))).max())
            for a, b in pairs
        ]
        claim = mechanism.privacy(adjacency).epsilon
        assert max(losses) <= claim * (1.0 + 1e-12)
        assert max(losses) == pytest.approx(claim, rel=1e-9)


def pmf_of(mechanism: Cldp, values: Vector) -> Vector:
    law = mechanism.law(values)
    assert isinstance(law, JointLaw)
    return law.pmf


class ScriptedKeystream(Keystream):
    """Hands out chosen words, so that every outcome of a sampler can be enumerated."""

    def __init__(self, words: list[int]) -> None:
        super().__init__(bytes(32))
        self._script = words

    def words(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        assert count == len(self._script)
        return np.array(self._script, dtype=np.uint64)


def probability_of_facing_up(mechanism: Cldp, values: Vector, line: list[int]) -> Fraction:
    """P(V = +line rather than -line), exactly: measured on both words that decide it."""

    direction = ndtri(open_uniforms(np.array(line, dtype=np.uint64)))
    masses = np.abs(direction) / (np.linalg.norm(direction) * math.sqrt(2.0))
    # This draw picks vertex +e_1 (code 0) if V_1 > 0, and -e_1 (code 1) if V_1 < 0.
    draw = int(((1.0 - masses.sum()) / 4.0 + masses[0] / 2.0) * 2**64)

    def faces_up(rounding_word: int, flip_word: int) -> bool:
        script = [rounding_word, flip_word, *line, draw, draw]
        return bool(mechanism.encode(values, ScriptedKeystream(script))[0] == 0)

    def boundary(test: bool, along: str) -> int:
        """Words below the returned one behave like word 0 (bisection; the answer is monotone)."""
        low, high = 0, 2**64
        while high - low > 1:
            middle = (low + high) // 2
            words = (middle, 2**64 - 1) if along == "rounding" else (0, middle)
            low, high = (middle, high) if faces_up(*words) is test else (low, middle)
        return high

    flips = Fraction(boundary(faces_up(0, 0), "flip"), 2**64)
    heads = Fraction(boundary(faces_up(0, 2**64 - 1), "rounding"), 2**64)
    if faces_up(0, 2**64 - 1):
        return heads * (1 - flips) + (1 - heads) * flips
    return heads * flips + (1 - heads) * (1 - flips)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_on_the_sphere_only_the_sign_of_a_public_line_depends_on_the_data(epsilon: float) -> None:
    # Given the line, there are two outcomes; their exact odds under any two inputs are compared.
    ball = L2Ball(dimension=2, radius=1.0)
    mechanism = Cldp(input_domain=ball, epsilon=epsilon)
    inputs = [np.zeros(2), np.array([1.0, 0.0]), np.array([-0.6, -0.8]), np.array([-1.0, 0.0])]
    inputs += [np.array([0.3, 0.5]), np.array([1.0, -1e-12]) * (1 - 1e-15)]
    for line in ([2**62, 3 * 2**62], [2**60, 2**61], [3 * 2**62, 2**63 + 2**40]):
        ups = [probability_of_facing_up(mechanism, values, line) for values in inputs]
        ratios = [max(p / q, (1 - p) / (1 - q)) for p in ups for q in ups]
        against_zero = [max(p / q, q / p, (1 - p) / (1 - q), (1 - q) / (1 - p))
                        for p in ups for q in ups[:1]]  # fmt: skip
        assert ups[0] == Fraction(1, 2)
        assert math.log(max(ratios)) <= mechanism.privacy(Adjacency.REPLACE_ONE).epsilon
        assert math.log(max(ratios)) == pytest.approx(epsilon, rel=1e-6)
        assert math.log(max(against_zero)) <= mechanism.privacy(Adjacency.ZERO_OUT).epsilon


def test_a_record_of_several_is_charged_less_where_the_sign_s_probability_moves_less() -> None:
    def spent(domain: L1Ball | L2Ball) -> float:
        return Cldp(input_domain=domain, epsilon=2.0).privacy(Adjacency.REPLACE_ONE).epsilon

    expected = math.log1p(math.expm1(2.0) / 10.0)
    assert spent(L1Ball(dimension=4, radius=3.0, records=10)) == pytest.approx(expected)
    assert spent(L2Ball(dimension=4, radius=3.0, records=10)) == pytest.approx(2.0)


def test_epsilon_is_never_claimed_above_what_was_asked_for() -> None:
    for epsilon in (1e-6, 0.1, 1.0, 7.0, 20.0):
        claim = Cldp(input_domain=SCALAR, epsilon=epsilon).privacy(Adjacency.REPLACE_ONE).epsilon
        assert epsilon * (1 - 1e-8) < claim <= epsilon


# -- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 1e6, 1e-200, "1", True])
def test_an_epsilon_that_is_none_is_refused(epsilon: float) -> None:
    with pytest.raises(ParameterError, match="epsilon"):
        Cldp(input_domain=SCALAR, epsilon=epsilon)


def test_domains_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ParameterError, match="symmetric about 0"):
        Cldp(input_domain=Box(dimension=2, lower=0.0, upper=1.0), epsilon=1.0)
    with pytest.raises(ParameterError, match="a Box, an L1Ball or an L2Ball"):
        Cldp(input_domain="ball", epsilon=1.0)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="in parts"):
        Cldp(input_domain=box(2**32), epsilon=1.0)


@pytest.mark.parametrize(
    "domain", [box(3), L1Ball(dimension=3, radius=1.0), L2Ball(dimension=3, radius=1.0)]
)
def test_values_outside_are_refused(domain: Box | L1Ball | L2Ball) -> None:
    mechanism = Cldp(input_domain=domain, epsilon=1.0)
    with pytest.raises(DomainError, match="project"):
        mechanism.encode(np.full(3, 1.5), SeededRandomness(1).stream("a"))
