"""What every mechanism must keep: checks that a test (or a plug-in's author) can call."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from typing import assert_never

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from sottovoce.adjacency import Adjacency
from sottovoce.auditing.enumeration import MAX_OUTCOMES, delta_of, num_outcomes
from sottovoce.auditing.neighbours import inputs as inputs
from sottovoce.auditing.neighbours import neighbours
from sottovoce.auditing.neighbours import origin as origin
from sottovoce.domains import Domain, Vector
from sottovoce.errors import UnsupportedEventError
from sottovoce.mechanisms.mechanism import (
    Codes,
    FiniteLaw,
    Float32Codes,
    GaussianLaw,
    JointLaw,
    LaplaceLaw,
    Law,
    LevelCodes,
    Mechanism,
    MomentLaw,
    PointLaw,
    StaircaseLaw,
    bits_per_coordinate,
    points_of,
)
from sottovoce.mechanisms.registry import parameter_hash
from sottovoce.privacy.accounting import ACCOUNTANTS
from sottovoce.privacy.divergences import (
    finite_renyi,
    log_sum_exp,
)
from sottovoce.privacy.events import NonPrivate, PrivacyEvent
from sottovoce.privacy.renyi import renyi_divergence
from sottovoce.randomness import SeededRandomness
from sottovoce.wire.message import Envelope, open_sealed, seal

ORDERS = (1.01, 1.5, 2.0, 3.0, 8.0, 32.0, 256.0)
EPSILONS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
# Across all contract tests some thousand comparisons are made: a false alarm once in 1e6 runs.
SMALLEST_P_VALUE = 1e-9


def check_samples_follow_the_law(mechanism: Mechanism, values: Vector, num_samples: int) -> None:
    """Mean, and the whole law, of decoded samples are the declared ones."""
    law = mechanism.law(values)
    randomness = SeededRandomness(20)
    decoded = np.stack(
        [
            mechanism.decode(mechanism.encode(values, randomness.stream("contract", n)))
            for n in range(num_samples)
        ]
    )
    if isinstance(law, PointLaw):
        np.testing.assert_allclose(decoded, np.tile(law.centre, (num_samples, 1)), rtol=1e-6)
        return
    errors = (decoded.mean(axis=0) - law.mean()) / np.sqrt(law.variance() / num_samples + 1e-18)
    assert np.abs(errors).max() < 7.0, f"declared mean missed by {np.abs(errors).max():.1f} sigma"
    for what, p_value in _p_values(law, decoded):
        assert p_value > SMALLEST_P_VALUE, f"{what}: p = {p_value:.2g}"


def _p_values(law: Law, decoded: Vector) -> Iterator[tuple[str, float]]:
    """How likely such samples are under the law, for each coordinate or for the whole vector."""
    coordinates = range(decoded.shape[1])
    match law:
        case FiniteLaw():
            # Codes that decode to the same number are one outcome.
            points, outcome_of = np.unique(law.points, return_inverse=True)
            for i in coordinates:
                outcomes = np.abs(decoded[:, i, None] - points).argmin(axis=1)
                pmf = np.zeros(len(points))
                np.add.at(pmf, outcome_of, law.table[i])
                yield f"coordinate {i}", _chi_square(outcomes, pmf)
        case JointLaw():
            distances = np.abs(decoded[:, None, :] - law.points[None, :, :]).sum(axis=2)
            assert distances.min(axis=1).max() <= 1e-9 * np.abs(law.points).max()
            yield "joint", _chi_square(distances.argmin(axis=1), law.pmf)
        case GaussianLaw():
            for i in coordinates:
                standard = (decoded[:, i] - law.centre[i]) / law.stddev
                yield f"coordinate {i}", float(stats.kstest(standard, "norm").pvalue)
        case LaplaceLaw():
            for i in coordinates:
                standard = (decoded[:, i] - law.centre[i]) / law.scale
                yield f"coordinate {i}", float(stats.kstest(standard, "laplace").pvalue)
        case StaircaseLaw():
            for i in coordinates:
                p_value = stats.kstest(decoded[:, i] - law.centre[i], _staircase_cdf(law)).pvalue
                yield f"coordinate {i}", float(p_value)
        case MomentLaw():
            squares = (decoded - law.centre) ** 2
            errors = squares.std(axis=0) / math.sqrt(len(squares)) + 1e-12 * law.spread
            scores = (squares.mean(axis=0) - law.spread) / errors
            for i in coordinates:
                yield f"variance of coordinate {i}", float(2.0 * stats.norm.sf(abs(scores[i])))
        case PointLaw():
            raise AssertionError("a point law has no p-value")
        case _:
            assert_never(law)


def _staircase_cdf(law: StaircaseLaw) -> Callable[[Vector], Vector]:
    """From the definition of the density: whole steps, and the higher and lower part of one."""
    step, decay, nu = law.noise.step, math.exp(-law.noise.epsilon), law.noise.nu
    top = (1.0 - decay) / (2.0 * (nu + decay * (1.0 - nu)))

    def cdf(values: Vector) -> Vector:
        whole, part = np.divmod(np.abs(values) / step, 1.0)
        within = top * (np.minimum(part, nu) + decay * np.maximum(part - nu, 0.0))
        tail = decay**whole * (0.5 - within)
        return np.where(values > 0.0, 1.0 - tail, tail)

    return cdf


def _chi_square(outcomes: NDArray[np.intp], pmf: Vector) -> float:
    expected = pmf * len(outcomes)
    observed = np.bincount(outcomes, minlength=len(pmf)).astype(np.float64)
    # Cells too rare for the chi-square approximation are pooled with their neighbour.
    order = np.argsort(expected)
    keep = expected[order] >= 5.0
    pooled_expected = [*expected[order][keep], expected[order][~keep].sum()]
    pooled_observed = [*observed[order][keep], observed[order][~keep].sum()]
    if pooled_expected[-1] < 5.0:
        rare_e, rare_o = pooled_expected.pop(), pooled_observed.pop()
        pooled_expected[0] += rare_e
        pooled_observed[0] += rare_o
    if len(pooled_expected) < 2:
        return 1.0
    return float(stats.chisquare(pooled_observed, pooled_expected).pvalue)


def check_privacy_covers_the_divergence(
    mechanism: Mechanism, domain: Domain, adjacency: Adjacency, *, seed: int = 5
) -> None:
    """No neighbouring pair has a Renyi divergence or a delta above what the event claims.

    A law of moments says too little for that: such a mechanism brings a test of its own.
    """
    event = mechanism.privacy(adjacency)
    assert event.adjacency is adjacency
    if isinstance(event, NonPrivate):
        return
    divergences = {order: renyi_divergence(event, order) for order in ORDERS}
    deltas = {(name, epsilon): delta for name, epsilon, delta in _claimed_deltas(event)}
    for first, second in neighbours(domain, adjacency, np.random.default_rng(seed)):
        laws = mechanism.law(first), mechanism.law(second)
        if isinstance(laws[0], MomentLaw):
            continue
        for order, claimed in divergences.items():
            assert renyi_of(*laws, order) <= claimed * (1.0 + 1e-9) + 1e-12
        if num_outcomes(laws[0]) > MAX_OUTCOMES:
            continue
        exact = {epsilon: delta_of(*laws, epsilon) for epsilon in EPSILONS}
        for (name, epsilon), claimed in deltas.items():
            assert exact[epsilon] <= claimed * (1.0 + 1e-9) + 1e-12, name


def _claimed_deltas(event: PrivacyEvent) -> Iterator[tuple[str, float, float]]:
    for accountant, epsilon in itertools.product(ACCOUNTANTS, EPSILONS):
        with contextlib.suppress(UnsupportedEventError):
            yield accountant.name, epsilon, accountant.delta(event, epsilon)


def renyi_of(first: Law, second: Law, order: float) -> float:
    """The exact Renyi divergence of two laws; for products it adds up over coordinates."""
    match first, second:
        case FiniteLaw(), FiniteLaw():
            rows = zip(first.table, second.table, strict=True)
            return math.fsum(finite_renyi(p, q, order) for p, q in rows)
        case JointLaw(), JointLaw():
            np.testing.assert_array_equal(first.points, second.points)
            return finite_renyi(first.pmf, second.pmf, order)
        case GaussianLaw(), GaussianLaw():
            shift = float(np.linalg.norm(first.centre - second.centre)) / first.stddev
            return order * shift**2 / 2.0
        case LaplaceLaw(), LaplaceLaw():
            shifts = np.abs(first.centre - second.centre) / first.scale
            return math.fsum(_laplace_renyi(float(shift), order) for shift in shifts)
        case StaircaseLaw(), StaircaseLaw():
            noise = first.noise
            shifts = np.abs(first.centre - second.centre) / noise.step
            return math.fsum(
                _staircase_renyi(noise.epsilon, noise.nu, float(shift), order) for shift in shifts
            )
        case _:
            return math.inf


def _staircase_renyi(epsilon: float, nu: float, shift: float, order: float) -> float:
    """D_a of staircase noise: summed over every stretch on which both densities are constant."""
    reach = math.ceil(60.0 / epsilon) + 2
    edges = (np.arange(reach)[:, None] + np.array([0.0, nu])).ravel()
    marks = np.concatenate([edges, -edges, edges + shift, shift - edges])
    marks = np.unique(marks.round(12))  # edges that differ by rounding are one
    middles, widths = (marks[1:] + marks[:-1]) / 2.0, np.diff(marks)
    levels = [np.floor(np.abs(at) + 1.0 - nu) for at in (middles, middles - shift)]
    decay = math.exp(-epsilon)
    top = (1.0 - decay) / (2.0 * (nu + decay * (1.0 - nu)))
    logs = np.log(top * widths) - epsilon * (order * levels[0] + (1.0 - order) * levels[1])
    return log_sum_exp(logs) / (order - 1.0)


def _laplace_renyi(shift: float, order: float) -> float:
    """D_a of Laplace noise, `shift` scales apart (Mironov 2017, proposition 6)."""
    a = order
    weights = a / (2.0 * a - 1.0), (a - 1.0) / (2.0 * a - 1.0)
    excess = weights[0] * math.expm1(min(700.0, (a - 1.0) * shift))
    excess += weights[1] * math.expm1(-a * shift)
    if (a - 1.0) * shift > 700.0:
        return shift + math.log(weights[0]) / (a - 1.0)
    return math.log1p(excess) / (a - 1.0)


def check_codes_and_wire(mechanism: Mechanism, values: Vector) -> None:
    """Codes fit their format, survive the wire, and take exactly the bytes announced."""
    codes = mechanism.encode(values, SeededRandomness(3).stream("wire"))
    code_format = mechanism.code_format()
    match code_format:
        case LevelCodes(levels=levels):
            assert codes.dtype == np.min_scalar_type(levels - 1)
            assert codes.max() < levels <= 2**code_format.bits
        case Float32Codes():
            assert codes.dtype == np.float32
        case _:
            assert_never(code_format)
    envelope = Envelope(
        parameter_hash=parameter_hash(mechanism),
        round=7,
        uplink=0,
        dimension=mechanism.input_domain.dimension,
        code_format=code_format,
    )
    message = seal(codes, envelope)
    assert len(message) == envelope.total_bytes
    assert envelope.payload_bytes == math.ceil(len(codes) * code_format.bits / 8)
    assert bits_per_coordinate(mechanism) == len(codes) * code_format.bits / len(values)
    assert mechanism.decode(codes).shape == values.shape
    points = points_of(mechanism, most=256)
    if points is not None and isinstance(code_format, LevelCodes):
        drawn = np.random.default_rng(3).integers(0, code_format.levels, len(values))
        every: Codes = drawn.astype(code_format.dtype)
        assert points.shape == (code_format.levels,)
        assert points[every].tobytes() == mechanism.decode(every).tobytes()
    np.testing.assert_array_equal(open_sealed(message, envelope), codes)
