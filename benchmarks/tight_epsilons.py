"""Epsilons where the exact one, or the best that is proved, is known: one JSON row each.

    python benchmarks/tight_epsilons.py

`known` comes from other programs: Fourier inversion, enumeration, searches over neighbors, or a
second implementation of the same theorem. Nothing here is read from our own accountants.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball
from sottovoce.mechanisms.design.families import gauss_hermite
from sottovoce.mechanisms.release import ShuffledMessages, release_event
from sottovoce.mechanisms.seeded_step import SeededStep
from sottovoce.mechanisms.seeds import GENERATORS
from sottovoce.privacy.accounting import epsilon
from sottovoce.privacy.calibration import calibrate
from sottovoce.privacy.events import (
    Allocated,
    FinitePair,
    FiniteTable,
    GaussianNoise,
    LaplaceNoise,
    OneBit,
    PrivacyEvent,
    PureDp,
    Repeated,
    Sampled,
    Shuffled,
    SummedBits,
    ZeroConcentrated,
)
from sottovoce.privacy.pld import PldAccountant

ZERO_OUT, REPLACE_ONE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
_SINGLE_SUMS = {(3, 1.0, 1.0): 0.62008, (6, 1.0, 1.0): 0.62002, (2, 2.0, 2.0): 1.43376}
_SUMS = {  # (clients, logit bound, shift, coordinates): the worst that a search found
    (2, 1.0, 1.0, 2): 0.92586,
    (6, 1.0, 1.0, 2): 0.92471,
    (2, 1.0, 1.0, 3): 1.15946,
    (2, 2.0, 2.0, 3): 2.77252,
}
_BITS = {(0.1, 1): 0.54403, (0.1, 3): 0.87342, (0.1, 12): 1.60709, (1.0, 12): 5.8306}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is measured, what is known about it, and the largest value that is accepted."""

    name: str
    about: str
    measure: Callable[[], float]
    known: float
    goal: float
    reason: str = ""  # where the goal is not reached


def _sampled(event: PrivacyEvent, rate: float, rounds: int) -> PrivacyEvent:
    one = Sampled(event=event, rate=rate, scheme="poisson", hidden_by="own-records")
    return Repeated(event=one, count=rounds)


def _epsilon(event: PrivacyEvent, delta: float = 1e-5) -> Callable[[], float]:
    return lambda: epsilon(event, delta)


def _gaussian(rate: float, sigma: float, rounds: int, known: float) -> Case:
    noise = GaussianNoise(mu=2.0 / sigma, adjacency=REPLACE_ONE, zero_centered=True)
    return Case(
        name=f"gaussian-replaced-{rounds}-rounds-sigma-{sigma:g}",
        about=f"sampled Gaussian, replace-one, rate {rate:g}, sigma {sigma:g}, {rounds} rounds",
        measure=_epsilon(_sampled(noise, rate, rounds)),
        known=known,
        goal=1.001 * known,
    )


def _secret_order() -> PrivacyEvent:
    """Return the headline: local epsilon 5.17, 50,000 honest clients, four epochs."""
    mechanism = SeededStep(
        input_domain=L2Ball(dimension=100_000, radius=1.0),
        epsilon=5.17,
        length="kept",
        generator=GENERATORS[-1],
        timing="constant",
    )
    visibility = ShuffledMessages(minimum_clients=50_000)
    event = release_event(mechanism, adjacency=REPLACE_ONE, visibility=visibility)
    return Repeated(event=event, count=4)


def _bit(adjacency: Adjacency, mu: float, *, fair: bool = False) -> OneBit:
    """Return many bits with a zero-out tilt of mu, which is doubled for two contributions."""
    swapped = adjacency is REPLACE_ONE
    return OneBit(
        shift=(4.0 if swapped else 2.0) * mu,
        dimension=10**6,
        adjacency=adjacency,
        against_zero=fair,
        zero_centered=swapped,
    )


def _few_bits() -> float:
    """Return the largest ratio to the worst split found, over one release of 1 to 12 bits."""
    found = []
    for (rho, dimension), known in _BITS.items():
        shift = math.sqrt(8.0 * rho)
        event = OneBit(shift=shift, dimension=dimension, adjacency=ZERO_OUT, against_zero=True)
        found.append(epsilon(event, 1e-5) / known)
    return max(found)


def _sum(clients: int, bound: float, shift: float, dimension: int) -> float:
    event = SummedBits(
        shift=shift,
        dimension=dimension,
        logit_bound=bound,
        clients=clients,
        adjacency=REPLACE_ONE,
    )
    return epsilon(event, 1e-5)


def _tables() -> float:
    """Return the largest ratio to the exact value: zero-out in both directions, replace-one."""
    first, second, middle = (0.9, 0.1), (0.6, 0.4), (0.75, 0.25)
    cases = (
        (FiniteTable(rows=(first, second), zero=0, adjacency=ZERO_OUT), 3.33919),
        (FiniteTable(rows=(first, second, middle), zero=2, adjacency=REPLACE_ONE), 2.13058),
        (FiniteTable(rows=(first, second), zero=0, adjacency=REPLACE_ONE), 3.36170),
    )
    return max(epsilon(_sampled(table, 0.1, 50), 1e-5) / known for table, known in cases)


def _levels() -> float:
    rho = gauss_hermite(16).fisher_bound / 2.0
    return epsilon(_sampled(ZeroConcentrated(rho=rho, adjacency=ZERO_OUT), 0.01, 1000), 1e-5)


def _disjoint() -> float:
    pair = FinitePair(first=(0.6, 0.4, 0.0), second=(0.0, 0.4, 0.6), adjacency=ZERO_OUT)
    return PldAccountant().delta(pair, 1.0)


def _laplace() -> float:
    """Error of Laplace noise over that of Gaussian noise, a million coordinates, epsilon 2."""

    def laplace(noise: float) -> PrivacyEvent:
        event = LaplaceNoise(shift=1.0 / noise, dimension=10**6, adjacency=ZERO_OUT)
        return Repeated(event=event, count=100)

    def gaussian(noise: float) -> PrivacyEvent:
        return Repeated(event=GaussianNoise(mu=1.0 / noise, adjacency=ZERO_OUT), count=100)

    scale, sigma = (
        calibrate(make, epsilon=2.0, delta=1e-5, more_private="larger")
        for make in (laplace, gaussian)
    )
    return 2.0 * scale**2 / sigma**2


CASES = (
    Case(
        name="secret-order",
        about="secret order, step law, local epsilon 5.17, 50,000 clients follow the protocol, "
        "four epochs, delta 1e-6",
        measure=_epsilon(_secret_order(), 1e-6),
        known=0.62552,
        goal=0.626,
    ),
    _gaussian(0.01, 1.0, 100, 0.89512),
    _gaussian(0.1, 4.0, 100, 1.98986),
    _gaussian(0.2, 2.0, 12, 2.91141),
    Case(
        name="one-bit-replaced",
        about="one bit, sampled, replace-one, rate 0.01, sigma 2, 1000 rounds",
        measure=_epsilon(_sampled(_bit(REPLACE_ONE, 0.5), 0.01, 1000)),
        known=1.20520,
        goal=1.321,
    ),
    Case(
        name="one-bit-fair",
        about="one bit, sampled, zero-out, rate 0.01, rho 0.5, 1000 rounds, against fair bits",
        measure=_epsilon(_sampled(_bit(ZERO_OUT, 1.0, fair=True), 0.01, 1000)),
        known=1.82824,
        goal=1.910,
    ),
    Case(
        name="one-bit-among-others",
        about="the same, among other records",
        measure=_epsilon(_sampled(_bit(ZERO_OUT, 1.0), 0.01, 1000)),
        known=1.82824,
        goal=1.966,
    ),
    Case(
        name="one-bit-any-base",
        about="one bit, not sampled, 100 rounds of mu = 0.1 (1 in all), any base",
        measure=_epsilon(Repeated(event=_bit(ZERO_OUT, 0.1), count=100)),
        known=4.37718,
        goal=4.55,
    ),
    Case(
        name="few-bits",
        about="one release of 1 to 12 bits against zero: times the worst split found",
        measure=_few_bits,
        known=1.0,
        goal=1.03,
    ),
    Case(
        name="single-sum",
        about="secure sum of one coordinate, 2 to 6 clients: times the exact epsilon",
        measure=lambda: max(_sum(*setting, 1) / known for setting, known in _SINGLE_SUMS.items()),
        known=1.0,
        goal=1.001,
    ),
    Case(
        name="small-sums",
        about="secure sums of 2 or 3 coordinates, 2 to 6 clients: times the worst neighbors found",
        measure=lambda: max(_sum(*setting) / known for setting, known in _SUMS.items()),
        known=1.0,
        goal=1.05,
    ),
    Case(
        name="more-sums",
        about="secure sum of ten coordinates, six clients: times the worst neighbors found",
        measure=lambda: _sum(6, 1.0, 1.0, 10) / 1.142,
        known=1.0,
        goal=1.05,
        reason="Renyi divergences of the worst laws, whose conversion to epsilon loses this much; "
        "the exact recursion is too slow beyond some five coordinates.",
    ),
    Case(
        name="tables",
        about="asymmetric tables, sampled, 50 rounds: times the best fixed orders",
        measure=_tables,
        known=1.0,
        goal=1.02,
    ),
    Case(
        name="allocation",
        about="Gaussian random allocation, 100 steps, sigma 1, zero-out (remove; add has less)",
        measure=_epsilon(Allocated(event=GaussianNoise(mu=1.0, adjacency=ZERO_OUT), steps=100)),
        known=0.62094,
        goal=0.6213,
    ),
    Case(
        name="allocation-replaced",
        about="the same, replace-one",
        measure=_epsilon(
            Allocated(
                event=GaussianNoise(mu=2.0, adjacency=REPLACE_ONE, zero_centered=True), steps=100
            )
        ),
        known=0.82537,
        goal=0.826,
    ),
    Case(
        name="levels-sampled",
        about="Gauss-Hermite, 16 levels, sampled, zero-out, rate 0.01, rho 0.5, 1000 rounds",
        measure=_levels,
        known=1.82824,
        goal=1.17 * 1.82824,
    ),
    Case(
        name="shuffled-pure",
        about="1000 shuffled messages of pure zero-out epsilon 1, delta 1e-6",
        measure=_epsilon(
            Shuffled(
                event=PureDp(epsilon=2.0, adjacency=REPLACE_ONE),
                clients=1000,
                ratios=(math.exp(-1.0) * (1.0 - 1e-15), math.exp(1.0) * (1.0 + 1e-15)),
            ),
            1e-6,
        ),
        known=0.35701,
        goal=0.358,
    ),
    Case(
        name="disjoint-pair",
        about="delta of a pair of which 0.6 lies outside the other's support",
        measure=_disjoint,
        known=0.6,
        goal=0.6 + 1e-9,
    ),
    Case(
        name="vector-laplace",
        about="Laplace noise on a million coordinates: times the Gaussian's error at epsilon 2",
        measure=_laplace,
        known=2.0,
        goal=2.26,
    ),
)


def main() -> None:
    rows = []
    for case in CASES:
        start = time.perf_counter()
        found = case.measure()
        seconds = time.perf_counter() - start
        rows.append({"name": case.name, "found": found, "known": case.known, "seconds": seconds})
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
