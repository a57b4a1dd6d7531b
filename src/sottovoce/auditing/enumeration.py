"""The exact delta between the laws of neighboring inputs, by enumeration of outcomes.

For the laws p and q of two neighbors, delta(epsilon) = sum max(0, p - e^eps q) over all outcomes.
For a mechanism with an integer table, the sum is computed with fractions from the integers that the
sampler uses. For other finite laws, for Gaussian noise, and for Laplace or staircase noise on one
coordinate, it is computed from the declared law in float64 and rounded down (by a factor of
1 - 1e-9 and then by 1e-12). The inputs that are compared are extreme points of the domain and some
random points.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import partial

import numpy as np

from sottovoce.auditing.laws import cache_laws, have_same_noise
from sottovoce.auditing.verdict import Certificate, Point, Verdict
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Domain, L1Ball, L2Ball, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.finite_channel import TableMechanism
from sottovoce.mechanisms.mechanism import (
    FiniteLaw,
    GaussianLaw,
    JointLaw,
    LaplaceLaw,
    Law,
    Mechanism,
    PointLaw,
    StaircaseLaw,
)
from sottovoce.mechanisms.noise.laws import ScalarStaircase
from sottovoce.privacy.divergences import finite_hockey_stick, gaussian_delta


def origin(domain: Domain) -> Vector:
    """Return what replaces a record under zero-out: 0, projected onto the domain."""
    return domain.project(np.zeros(domain.dimension))


def extreme_inputs(domain: Domain, generator: np.random.Generator) -> Iterator[Vector]:
    """Yield seven test inputs: the origin, two spikes, a constant boundary vector, random points.

    A spike is the center of the domain with its first coordinate at one end of the range. The three
    random points are normal vectors, projected onto the domain. Raise ParameterError unless the
    domain is a Box, an L1Ball or an L2Ball.
    """
    match domain:
        case L1Ball() | L2Ball():
            domain = dataclasses.replace(domain, records=1)  # Records and means have the same ball.
            center, reach = np.zeros(domain.dimension), domain.radius
        case Box():
            middle = (domain.lower + domain.upper) / 2.0
            center, reach = np.full(domain.dimension, middle), (domain.upper - domain.lower) / 2.0
        case _:
            raise ParameterError(
                f"no extreme inputs are known for the domain {type(domain).__name__}; use a Box, "
                "an L1Ball or an L2Ball"
            )
    yield origin(domain)
    for sign in (1.0, -1.0):
        spike = center.copy()
        spike[0] += sign * reach
        yield domain.check(spike)
    yield domain.project(center + 10.0 * reach)
    for _ in range(3):
        yield domain.project(center + generator.normal(size=domain.dimension) * reach)


def neighboring_pairs(
    domain: Domain, adjacency: Adjacency, generator: np.random.Generator
) -> Iterator[tuple[Vector, Vector]]:
    """Yield pairs of inputs that differ in one record.

    An input is the mean of the domain's number of records, of which all but one are the same in
    both inputs of a pair. Under zero-out the record of the first input is replaced in the second by
    the origin; under replace-one by its opposite and by other records.
    """
    records = domain.records if isinstance(domain, L1Ball | L2Ball) else 1
    for start in extreme_inputs(domain, generator) if records > 1 else (origin(domain),):
        for record in extreme_inputs(domain, generator):
            base = start * (records - 1) / records
            others = [origin(domain)]
            if adjacency is Adjacency.REPLACE_ONE:
                others = [
                    _opposite(domain, record),
                    *itertools.islice(extreme_inputs(domain, generator), 7),
                ]
            for other in others:
                yield base + record / records, base + other / records


def neighboring_pairs_nonzero_reference(
    domain: Domain, generator: np.random.Generator
) -> Iterator[tuple[Vector, Vector]]:
    """Yield pairs of inputs that differ by one removed record, with other records in both.

    Such pairs occur where a client samples its own records and divides by the expected number, here
    1: the sum of the other records may be any input. Projection to the domain does not increase L2
    or L_inf distances; it can increase L1 distances, so on an L1 ball only pairs that need no
    projection are used.
    """
    for base in extreme_inputs(domain, generator):
        for record in extreme_inputs(domain, generator):
            yield _halfway(domain, record), _halfway(domain, _opposite(domain, base))
            if not isinstance(domain, L1Ball):
                yield domain.project(base + record - origin(domain)), base


def _halfway(domain: Domain, values: Vector) -> Vector:
    """Return the midpoint between the center of the domain and the input.

    Two such points are at most half the domain's width apart.
    """
    middle = (values + _opposite(domain, values)) / 2.0
    return (values + middle) / 2.0


def _opposite(domain: Domain, values: Vector) -> Vector:
    return domain.lower + domain.upper - values if isinstance(domain, Box) else -values


# Laws with more outcomes, over all coordinates together, are not enumerated.
MAX_OUTCOMES = 5_000
_ROUNDING = 1e-12
_LARGEST_EPSILON = 1e12  # The search for epsilon ends here.
_DIGITS = 60  # Digits of e^epsilon in the computation with fractions.


def num_outcomes(law: Law) -> float:
    """Return the number of outcomes of a law, over all coordinates together.

    It is 1 for Gaussian noise and for a law with one output, where delta has a closed form, and
    infinite for every other law that is not finite.
    """
    match law:
        case FiniteLaw():
            return float(len(law.points)) ** len(law.table)
        case JointLaw():
            return float(len(law.pmf))
        case GaussianLaw() | PointLaw():
            return 1.0
        case _:
            return math.inf


def delta_of(first: Law, second: Law, epsilon: float) -> float:
    """Return the delta of two laws at `epsilon`: sum max(0, p - e^epsilon q) over all outcomes.

    p is the probability under `first`, q under `second`. It is computed in float64; products are
    enumerated outcome by outcome. It is 1, the trivial bound, where `delta_function` does not
    compute it.
    """
    return delta_function(first, second)(epsilon)


def delta_function(first: Law, second: Law) -> Callable[[float], float]:
    """Return the exact delta of two laws as a function of epsilon; outcomes are enumerated once.

    delta(epsilon) = sum max(0, p - e^epsilon q) over all outcomes, with p the probability under
    `first` and q under `second`, in float64. With equal means and the same noise the function is
    constant 0. It is constant 1, the trivial bound, where delta is not computed: for noise of
    different sizes, for Laplace or staircase noise with means that differ in more than one
    coordinate, and for laws of different kinds or with moments only whose means differ.
    """
    if not have_same_noise(first, second):
        return lambda epsilon: 1.0  # noqa: ARG005
    match first, second:
        case FiniteLaw(), FiniteLaw():
            return partial(finite_hockey_stick, *_product(first, second))
        case JointLaw(), JointLaw():
            return partial(finite_hockey_stick, first.pmf, second.pmf)
        case _ if _num_differing(first, second) == 0:
            return lambda epsilon: 0.0  # noqa: ARG005
        case GaussianLaw(), GaussianLaw():
            return partial(
                gaussian_delta, float(np.linalg.norm(first.center - second.center)) / first.stddev
            )
        case LaplaceLaw(), LaplaceLaw() if _num_differing(first, second) == 1:
            shift = float(np.abs(first.center - second.center).max()) / first.scale
            return lambda epsilon: -math.expm1(min(0.0, (epsilon - shift) / 2.0))
        case StaircaseLaw(), StaircaseLaw() if _num_differing(first, second) == 1:
            steps = float(np.abs(first.center - second.center).max()) / first.noise.step
            return partial(finite_hockey_stick, *_staircase_masses(first.noise, steps))
        case _:
            return lambda epsilon: 1.0  # noqa: ARG005


def _is_known(first: Law, second: Law) -> bool:
    """Return whether `delta_of` computes this pair's delta and not the trivial bound 1."""
    if isinstance(first, LaplaceLaw | StaircaseLaw):
        return _num_differing(first, second) <= 1
    return num_outcomes(first) <= MAX_OUTCOMES


def _num_differing(first: Law, second: Law) -> int:
    """Return the number of coordinates on which the means of two laws differ."""
    return int(np.count_nonzero(first.mean() != second.mean()))


def _product(first: FiniteLaw, second: FiniteLaw) -> tuple[Vector, Vector]:
    """Return the probabilities of all outcomes of two product laws."""
    p, q = np.ones(1), np.ones(1)
    for row_p, row_q in zip(first.table, second.table, strict=True):
        p, q = np.outer(p, row_p).ravel(), np.outer(q, row_q).ravel()
    return p, q


def _staircase_masses(noise: ScalarStaircase, shift: float) -> tuple[Vector, Vector]:
    """Return the masses of each interval on which both densities are constant.

    The two staircase densities are `shift` steps apart.
    """
    reach = math.ceil(60.0 / noise.epsilon) + 2
    edges = (np.arange(reach)[:, None] + np.array([0.0, noise.nu])).ravel()
    marks = np.concatenate([edges, -edges, edges + shift, shift - edges])
    marks = np.unique(marks.round(12))  # Merge edges that differ by rounding only.
    middles, widths = (marks[1:] + marks[:-1]) / 2.0, np.diff(marks)
    decay = math.exp(-noise.epsilon)
    top = (1.0 - decay) / (2.0 * (noise.nu + decay * (1.0 - noise.nu)))
    levels = [np.floor(np.abs(at) + 1.0 - noise.nu) for at in (middles, middles - shift)]
    first, second = (top * widths * np.exp(-noise.epsilon * level) for level in levels)
    return first, second


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Two neighbors, in the order in which they are compared, and their delta in float64."""

    first: Vector
    second: Vector
    delta: Callable[[float], float]

    def certain_delta(self, mechanism: Mechanism, epsilon: float) -> float:
        """Return the exact delta, rounded down."""
        if isinstance(mechanism, TableMechanism):
            return table_delta(mechanism, self.first, self.second, epsilon)
        return max(0.0, self.delta(epsilon) * (1.0 - 1e-9) - _ROUNDING)


def table_delta(mechanism: TableMechanism, first: Vector, second: Vector, epsilon: float) -> float:
    """Return the delta between the codes of two inputs, from the integer table, rounded down.

    It is sum max(0, p - e^epsilon q) over all outcomes, with p the probability for the input
    `first` and q for `second`, in fractions: exact except for e^epsilon, which has 60 digits.
    """
    with localcontext(prec=_DIGITS):
        factor = Fraction(Decimal(epsilon).exp())
    pairs = [(Fraction(1), Fraction(1))]
    for row_p, row_q in zip(
        table_rows(mechanism, first), table_rows(mechanism, second), strict=True
    ):
        letters = list(zip(row_p, row_q, strict=True))
        pairs = [(p * a, q * b) for p, q in pairs for a, b in letters]
    excess = sum((max(Fraction(0), p - factor * q) for p, q in pairs), Fraction(0))
    return math.nextafter(float(excess), 0.0)


def table_rows(mechanism: TableMechanism, values: Vector) -> list[list[Fraction]]:
    """Return the exact probabilities of each coordinate's codes, one list for each coordinate.

    They are two adjacent rows of the integer table, interpolated at the input `values`.
    """
    table, found = mechanism.table, []
    for position in mechanism.positions(values):
        k = int(
            np.clip(np.searchsorted(table.knots, position, "right") - 1, 0, len(table.knots) - 2)
        )
        left, right = Fraction(float(table.knots[k])), Fraction(float(table.knots[k + 1]))
        share = (Fraction(float(position)) - left) / (right - left)
        one = table.cumulative[k][-1]
        rows = zip(table.rows[k], table.rows[k + 1], strict=True)
        found.append([((1 - share) * a + share * b) / one for a, b in rows])
    return found


def audit_by_enumeration(
    mechanism: Mechanism, adjacency: Adjacency, *, delta: float
) -> Verdict | None:
    """Return the largest exact delta found among neighboring inputs, compared with the certificate.

    The certificate is the mechanism's privacy event. The verdict has the largest epsilon found at
    `delta`, and the largest delta at some smaller epsilons, all rounded down and exact (confidence
    1) for the declared law. Return None if no law can be enumerated, or if the mechanism has no
    guarantee to compare with.
    """
    certificate = Certificate(event=mechanism.privacy(adjacency), delta=delta)
    pairs = list(_known_pairs(mechanism, adjacency))
    if not pairs or not math.isfinite(certificate.epsilon):
        return None
    points = []
    for epsilon, certified in certificate.curve:
        worst = max(pairs, key=lambda pair: pair.delta(epsilon))
        measured = worst.certain_delta(mechanism, epsilon)
        points.append(Point(epsilon=epsilon, certified_delta=certified, measured_delta=measured))
    exactly = isinstance(mechanism, TableMechanism)
    return Verdict(
        method="exact enumeration of " + ("the integer table" if exactly else "the declared law"),
        adjacency=adjacency,
        delta=delta,
        confidence=1.0,
        certified=certificate.epsilon,
        lower_bound=_epsilon_at(pairs, delta),
        points=tuple(points),
        trials=f"{len(pairs)} ordered pairs of neighbors at {1 + len(points)} points",
    )


def _known_pairs(mechanism: Mechanism, adjacency: Adjacency) -> Iterator[_Pair]:
    law_of = cache_laws(mechanism)
    for pair in neighboring_pairs(mechanism.input_domain, adjacency, np.random.default_rng(5)):
        for first, second in (pair, pair[::-1]):
            laws = law_of(first), law_of(second)
            if _is_known(*laws):
                yield _Pair(first=first, second=second, delta=delta_function(*laws))


def _epsilon_at(pairs: list[_Pair], delta: float) -> float:
    """Return an epsilon at which the delta of some pair still exceeds `delta`: a lower bound."""
    slack = delta * 1e-9 + _ROUNDING
    largest = 0.0
    for pair in pairs:
        if pair.delta(largest) <= delta + slack:
            continue  # An earlier pair has a larger epsilon.
        low, high = largest, 2.0 * largest + 1.0
        while high < _LARGEST_EPSILON and pair.delta(high) > delta + slack:
            low, high = high, 2.0 * high
        while high - low > 1e-9 * high:
            middle = (low + high) / 2.0
            exceeds = pair.delta(middle) > delta + slack
            low, high = (middle, high) if exceeds else (low, middle)
        largest = low
    return largest
