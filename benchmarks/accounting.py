"""Accountants: what they say, how far above a reference, and how long they take.

make bench        prints a table; a bound below its reference fails, a slow one never does

References: dp-accounting's loss distributions on two grids (its pessimism shrinks with the grid),
the exact binomial, and worst cases found by search.
"""

import math
import time

from dp_accounting.pld import privacy_loss_distribution as google
from scipy.stats import binom

from sottovoce.adjacency import Adjacency
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.calibration import calibrate
from sottovoce.privacy.events import GaussianNoise, OneBit, PrivacyEvent, PureDp, Repeated, Sampled

ZERO_OUT = Adjacency.ZERO_OUT
DELTA = 1e-5


def sampled(event: PrivacyEvent, rate: float = 0.01) -> Sampled:
    return Sampled(event=event, rate=rate, scheme="poisson", hidden_by="own-records")


def timed(event: PrivacyEvent, rounds: int) -> tuple[float, str, float]:
    start = time.perf_counter()
    spent = privacy_spent(Repeated(event=event, count=rounds), DELTA)
    return spent.epsilon, spent.accountant, time.perf_counter() - start


def google_epsilon(rounds: int, interval: float) -> tuple[float, float]:
    start = time.perf_counter()
    law = google.from_gaussian_mechanism(
        1.0, sampling_prob=0.01, value_discretization_interval=interval
    )
    epsilon = law.self_compose(rounds).get_epsilon_for_delta(DELTA)
    return float(epsilon), time.perf_counter() - start


def exact_randomised_response(epsilon: float, rate: float, rounds: int) -> float:
    """Sampled binary randomised response, from the binomial law of its two losses."""
    truth = 1.0 / (1.0 + math.exp(-epsilon))
    mixed = rate * truth + (1.0 - rate) * (1.0 - truth)
    up, down = math.log(mixed / (1.0 - truth)), math.log((1.0 - mixed) / truth)

    def delta(at: float, chance: float, high: float, low: float) -> float:
        counts = range(rounds + 1)
        losses = [count * high + (rounds - count) * low for count in counts]
        pmf = binom.pmf(counts, rounds, chance)
        return math.fsum(
            p * -math.expm1(at - loss) for p, loss in zip(pmf, losses, strict=True) if loss > at
        )

    def least(chance: float, high: float, low: float) -> float:
        left, right = 0.0, 100.0
        while right - left > 1e-12:
            middle = (left + right) / 2.0
            left, right = (
                (middle, right) if delta(middle, chance, high, low) > DELTA else (left, middle)
            )
        return right

    return max(least(mixed, up, down), least(truth, -down, -up))


def main() -> None:
    timed(sampled(GaussianNoise(mu=0.5, adjacency=ZERO_OUT)), 2)  # imports
    print(f"{'release, delta = 1e-5':52} {'epsilon':>11} {'by':>9} {'reference':>11} {'s':>6}")

    def row(name: str, found: tuple[float, str, float], reference: float) -> None:
        epsilon, accountant, seconds = found
        print(f"{name:52} {epsilon:11.6f} {accountant:>9} {reference:11.6f} {seconds:6.2f}")

    gaussian = sampled(GaussianNoise(mu=1.0, adjacency=ZERO_OUT))
    for rounds, interval in ((1000, 2e-5), (100_000, 1e-4)):
        theirs, seconds = google_epsilon(rounds, interval)
        ours = timed(gaussian, rounds)
        row(f"Gaussian, q = .01, T = {rounds} (theirs took {seconds:.2f} s)", ours, theirs)
        assert ours[0] > theirs - 1e-3, "below the reference by more than its error"
    exact = exact_randomised_response(1.0, 0.01, 1000)
    ours = timed(sampled(PureDp(epsilon=1.0, adjacency=ZERO_OUT)), 1000)
    row("randomised response, epsilon 1, q = .01, T = 1000", ours, exact)
    assert ours[0] >= exact, "below the exact value"
    for dimension in (1, 10, 1000):
        event = sampled(OneBit(shift=2.0, dimension=dimension, adjacency=ZERO_OUT))
        row(f"one bit, rho = .5, d = {dimension}, q = .01, T = 1000", timed(event, 1000), math.nan)
    worst = {
        0.01: {1: 0.280, 10: 0.490, 100: 0.496, 10_000: 0.497},
        0.1: {1: 0.890, 10: 1.717, 100: 1.755, 10_000: 1.760},
        1.0: {1: 2.822, 10: 6.242, 100: 6.540, 10_000: 6.572},
        10.0: {1: 8.938, 10: 23.84, 100: 27.86, 10_000: 28.37},
    }
    for rho, by_dimension in worst.items():
        for dimension, reference in by_dimension.items():
            bits = OneBit(shift=math.sqrt(8.0 * rho), dimension=dimension, adjacency=ZERO_OUT)
            ours = timed(bits, 1)
            ratio = ours[0] / reference
            row(f"one bit, rho = {rho:g}, d = {dimension} ({ratio:.4f} x)", ours, reference)
    start = time.perf_counter()
    sigma = calibrate(
        lambda value: Repeated(
            event=sampled(GaussianNoise(mu=1.0 / value, adjacency=ZERO_OUT)), count=1000
        ),
        epsilon=2.0,
        delta=DELTA,
        more_private="larger",
    )
    seconds = time.perf_counter() - start
    print(f"noise multiplier for epsilon 2, q = .01, T = 1000: {sigma:.6f} ({seconds:.2f} s)")


if __name__ == "__main__":
    main()
