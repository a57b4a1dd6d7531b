"""What every mechanism must keep: checks that a test (or a plug-in's author) can call."""

import itertools
import math
from collections.abc import Iterator
from typing import assert_never

import numpy as np
from scipy import stats

from sottovoce.adjacency import Adjacency
from sottovoce.domains import L2Ball, Vector
from sottovoce.errors import UnsupportedEventError
from sottovoce.mechanisms.mechanism import (
    FiniteLaw,
    Float32Codes,
    GaussianLaw,
    Law,
    LevelCodes,
    Mechanism,
    PointLaw,
)
from sottovoce.mechanisms.registry import parameter_hash
from sottovoce.privacy.accounting import ACCOUNTANTS
from sottovoce.privacy.divergences import finite_hockey_stick, finite_renyi, gaussian_delta
from sottovoce.privacy.events import NonPrivate, PrivacyEvent
from sottovoce.privacy.renyi import renyi_divergence
from sottovoce.randomness import SeededRandomness
from sottovoce.wire.message import Envelope, open_sealed, seal

ORDERS = (1.01, 1.5, 2.0, 3.0, 8.0, 32.0, 256.0)
EPSILONS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
# Across all contract tests some thousand comparisons are made: a false alarm once in 1e6 runs.
SMALLEST_P_VALUE = 1e-9


def inputs(domain: L2Ball, generator: np.random.Generator) -> Iterator[Vector]:
    """Zero, spikes, a flat vector on the boundary, and random ones."""
    yield np.zeros(domain.dimension)
    for sign in (1.0, -1.0):
        spike = np.zeros(domain.dimension)
        spike[0] = sign * domain.radius
        yield spike
    yield domain.project(np.ones(domain.dimension) * 10.0 * domain.radius)
    for _ in range(3):
        yield domain.project(generator.normal(size=domain.dimension) * domain.radius)


def neighbours(
    domain: L2Ball, adjacency: Adjacency, generator: np.random.Generator
) -> Iterator[tuple[Vector, Vector]]:
    """Pairs that differ in one record: removed, or replaced by its opposite or another."""
    for start in inputs(domain, generator):
        for record in inputs(domain, generator):
            base = start * (domain.records - 1) / domain.records
            others = [np.zeros(domain.dimension)]
            if adjacency is Adjacency.REPLACE_ONE:
                others = [-record, *itertools.islice(inputs(domain, generator), 4, 6)]
            for other in others:
                yield base + record / domain.records, base + other / domain.records


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
    for coordinate in range(len(values)):
        p_value = _p_value(law, decoded[:, coordinate], coordinate)
        assert p_value > SMALLEST_P_VALUE, f"coordinate {coordinate}: p = {p_value:.2g}"


def _p_value(law: Law, samples: Vector, coordinate: int) -> float:
    match law:
        case FiniteLaw():
            expected = law.table[coordinate] * len(samples)
            nearest = np.abs(samples[:, None] - law.points).argmin(axis=1)
            observed = np.bincount(nearest, minlength=len(law.points)).astype(np.float64)
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
        case GaussianLaw():
            standard = (samples - law.centre[coordinate]) / law.stddev
            return float(stats.kstest(standard, "norm").pvalue)
        case PointLaw():
            raise AssertionError("a point law has no p-value")
        case _:
            assert_never(law)


def check_privacy_covers_the_divergence(
    mechanism: Mechanism, domain: L2Ball, adjacency: Adjacency
) -> None:
    """No neighbouring pair has a Renyi divergence or a delta above what the event claims."""
    event = mechanism.privacy(adjacency)
    assert event.adjacency is adjacency
    if isinstance(event, NonPrivate):
        return
    for first, second in neighbours(domain, adjacency, np.random.default_rng(5)):
        laws = mechanism.law(first), mechanism.law(second)
        for order in ORDERS:
            exact = renyi_of(*laws, order)
            assert exact <= renyi_divergence(event, order) * (1.0 + 1e-9) + 1e-12
        if domain.dimension <= 4:
            _check_deltas(event, *laws)


def _check_deltas(event: PrivacyEvent, first: Law, second: Law) -> None:
    for epsilon in EPSILONS:
        exact = delta_of(first, second, epsilon)
        for accountant in ACCOUNTANTS:
            try:
                claimed = accountant.delta(event, epsilon)
            except UnsupportedEventError:
                continue
            assert exact <= claimed * (1.0 + 1e-9) + 1e-12, accountant.name


def renyi_of(first: Law, second: Law, order: float) -> float:
    """The exact Renyi divergence of two product laws: it adds up over coordinates."""
    match first, second:
        case FiniteLaw(), FiniteLaw():
            rows = zip(first.table, second.table, strict=True)
            return math.fsum(finite_renyi(p, q, order) for p, q in rows)
        case GaussianLaw(), GaussianLaw():
            shift = float(np.linalg.norm(first.centre - second.centre)) / first.stddev
            return order * shift**2 / 2.0
        case _:
            return math.inf


def delta_of(first: Law, second: Law, epsilon: float) -> float:
    """The exact delta of two product laws, by enumeration of every outcome."""
    match first, second:
        case FiniteLaw(), FiniteLaw():
            p, q = np.ones(1), np.ones(1)
            for row_p, row_q in zip(first.table, second.table, strict=True):
                p, q = np.outer(p, row_p).ravel(), np.outer(q, row_q).ravel()
            return finite_hockey_stick(p, q, epsilon)
        case GaussianLaw(), GaussianLaw():
            shift = float(np.linalg.norm(first.centre - second.centre)) / first.stddev
            return gaussian_delta(shift, epsilon) if shift > 0.0 else 0.0
        case _:
            return 1.0


def check_codes_and_wire(mechanism: Mechanism, values: Vector) -> None:
    """Codes fit their format, survive the wire, and take exactly the bytes announced."""
    codes = mechanism.encode(values, SeededRandomness(3).stream("wire"))
    code_format = mechanism.code_format()
    match code_format:
        case LevelCodes(levels=levels):
            assert codes.dtype == np.uint8
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
    assert envelope.payload_bytes == math.ceil(len(values) * code_format.bits / 8)
    np.testing.assert_array_equal(open_sealed(message, envelope), codes)
