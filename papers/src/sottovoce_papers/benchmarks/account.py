"""The speed of the accountants, and the distance of their epsilon from a reference."""

import itertools
import math
from collections.abc import Callable
from typing import Any

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import MAX_DIMENSION
from sottovoce.core.errors import UnknownNameError
from sottovoce.privacy.accounting import PrivacySpent, privacy_spent
from sottovoce.privacy.calibration import calibrate
from sottovoce.privacy.events import GaussianNoise, OneBit, PrivacyEvent, PureDp, Repeated, Sampled
from sottovoce_papers.benchmarks.measurement import (
    TimedAction,
    rates,
    ratio,
    require,
    result,
    version,
)

UNIT = "epsilons_per_second"
DELTA = 1e-5
KINDS = ("gaussian", "one_bit", "randomized_response")
# Spellings of earlier versions, which are still accepted.
_EARLIER_KINDS = {"randomised_response": "randomized_response"}
MAX_ROUNDS = 10**7
# rho: {dimension: largest epsilon that a search over neighboring inputs found for one release}
WORST_FOUND = {
    0.01: {1: 0.280, 10: 0.490, 100: 0.496, 10_000: 0.497},
    0.1: {1: 0.890, 10: 1.717, 100: 1.755, 10_000: 1.760},
    1.0: {1: 2.822, 10: 6.242, 100: 6.540, 10_000: 6.572},
    10.0: {1: 8.938, 10: 23.84, 100: 27.86, 10_000: 28.37},
}
_THREE_DIGITS = 2e-3
_RESPONSE_EPSILON = 1.0
_numbers = itertools.count(1)  # Counts the calls of this process, because caches outlive a call.
_MOST_EXACT_ROUNDS = 100_000  # The binomial law is summed term by term.


def event_of(kind: str, *, rho: float, dimension: int, rate: float, rounds: int) -> PrivacyEvent:
    """Return the event of `rounds` releases with Poisson subsampling at `rate`."""
    one: PrivacyEvent
    match _EARLIER_KINDS.get(kind, kind):
        case "gaussian":
            one = GaussianNoise(mu=math.sqrt(2.0 * rho), adjacency=Adjacency.ZERO_OUT)
        case "one_bit":
            shift = math.sqrt(8.0 * rho)
            one = OneBit(shift=shift, dimension=dimension, adjacency=Adjacency.ZERO_OUT)
        case "randomized_response":
            one = PureDp(epsilon=_RESPONSE_EPSILON * rho / 0.5, adjacency=Adjacency.ZERO_OUT)
        case _:
            raise UnknownNameError.among("release of this benchmark", kind, KINDS)
    if rate < 1.0:
        one = Sampled(event=one, rate=rate, scheme="poisson", hidden_by="own-records")
    return Repeated(event=one, count=rounds)


def measure(
    *,
    mechanism: str = "gaussian",
    rho: float = 0.5,
    dimension: int = 1000,
    rate: float = 0.01,
    rounds: int = 1000,
    seconds: float = 3.0,
) -> dict[str, Any]:
    """Measure epsilons per second without caches, compared with dp-accounting if it is installed.

    rho is the zCDP of one release; a release of randomized response has epsilon = 2 rho.
    """
    parameter_rules.positive("rho", rho, at_most=100.0)
    parameter_rules.fraction("rate", rate)
    parameter_rules.integer("dimension", dimension, low=1, high=MAX_DIMENSION)
    parameter_rules.integer("rounds", rounds, low=1, high=MAX_ROUNDS)
    mechanism = _EARLIER_KINDS.get(mechanism, mechanism)

    def spent(at: float = rho) -> PrivacySpent:
        event = event_of(mechanism, rho=at, dimension=dimension, rate=rate, rounds=rounds)
        return privacy_spent(event, DELTA)

    found = spent()
    reference, checked = _reference(mechanism, rho, dimension, rate, rounds, found.epsilon)
    actions = {"ours": TimedAction(_uncached(spent, rho), 1.0)}
    if mechanism == "gaussian":
        actions["calibration"] = TimedAction(
            _uncached(lambda at: _calibrated(at, rate, rounds, found.epsilon), rho), 1.0
        )
        if version("dp-accounting"):
            actions["peer"] = TimedAction(lambda: google_epsilon(rho, rate, rounds), 1.0)
    speeds = rates(actions, seconds)
    return result(
        UNIT,
        speeds["ours"],
        checked=checked,
        numpy=None,
        torch=None,
        limit=None,
        limit_per_second=None,
        notes={
            "numpy": "has no accountant",
            "torch": "has no accountant",
            "limit": "no limit of the machine is known for computing an epsilon",
            "dp_accounting": _note_on_peer(mechanism, rounds),
        },
        ratio_to_dp_accounting=ratio(speeds["ours"], speeds.get("peer")),
        calibrations_per_second=speeds.get("calibration"),
        mechanism=mechanism,
        rho=rho,
        dimension=dimension,
        rate=rate,
        rounds=rounds,
        delta=DELTA,
        epsilon=found.epsilon,
        accountant=found.accountant,
        reference_epsilon=reference,
    )


def _note_on_peer(mechanism: str, rounds: int) -> str:
    if mechanism != "gaussian":
        return "not compared: this benchmark asks it for Gaussian noise only"
    if not version("dp-accounting"):
        return "not installed: pip install dp-accounting to compare"
    return f"version {version('dp-accounting')}, losses on a grid of step {_interval(rounds):g}"


def _uncached(action: Callable[[float], object], value: float) -> Callable[[], object]:
    """Return the action at values that differ in their last digits, so that no cache answers."""
    return lambda: action(value * (1.0 + 1e-9 * next(_numbers)))


def _calibrated(rho: float, rate: float, rounds: int, epsilon: float) -> float:
    """Return the calibrated noise multiplier over the right one, searched from scratch."""
    noise = 1.0 / math.sqrt(2.0 * rho)  # Differs a little in every call, so that no cache answers.

    def event_at(value: float) -> PrivacyEvent:
        at = 1.0 / (2.0 * (value * noise) ** 2)
        return event_of("gaussian", rho=at, dimension=1, rate=rate, rounds=rounds)

    found = calibrate(event_at, epsilon=epsilon, delta=DELTA, more_private="larger")
    require(abs(found - 1.0) < 1e-2, f"calibration to {epsilon} finds {found} times the noise")
    return found


def _reference(
    kind: str, rho: float, dimension: int, rate: float, rounds: int, epsilon: float
) -> tuple[float | None, str]:
    """Return the epsilon to compare with, and how; an epsilon below it is a wrong bound."""
    require(0.0 < epsilon < math.inf, f"the epsilon is {epsilon}")
    if kind == "gaussian" and version("dp-accounting"):
        theirs = google_epsilon(rho, rate, rounds)
        # The epsilon of dp-accounting is an upper bound, too large by the error of its grid.
        require(epsilon > theirs - 1e-3, f"epsilon {epsilon} is below dp-accounting's {theirs}")
        return theirs, "not below dp-accounting's epsilon, up to its grid's error"
    if kind == "randomized_response" and rounds <= _MOST_EXACT_ROUNDS:
        exact = exact_randomized_response(2.0 * rho, rate, rounds)
        require(epsilon >= exact, f"epsilon {epsilon} is below the exact {exact}")
        return exact, "not below the exact epsilon, from the binomial law"
    if kind == "one_bit" and (rate, rounds) == (1.0, 1):
        worst = WORST_FOUND.get(rho, {}).get(dimension)
        if worst is not None:
            above = epsilon > worst * (1.0 - _THREE_DIGITS)
            require(above, f"epsilon {epsilon} is below {worst}, which a search found")
            return worst, "not below the worst case that a search found"
    return None, "a finite epsilon; there is no reference for this release here"


def _interval(rounds: int) -> float:
    return 2e-5 if rounds <= 1000 else 1e-4


def google_epsilon(rho: float, rate: float, rounds: int) -> float:
    """Return the epsilon of subsampled Gaussians by Google's dp-accounting."""
    from dp_accounting.pld import privacy_loss_distribution

    law = privacy_loss_distribution.from_gaussian_mechanism(
        1.0 / math.sqrt(2.0 * rho),
        sampling_prob=rate,
        value_discretization_interval=_interval(rounds),
    )
    return float(law.self_compose(rounds).get_epsilon_for_delta(DELTA))


def exact_randomized_response(epsilon: float, rate: float, rounds: int) -> float:
    """Return the exact epsilon of subsampled binary randomized response.

    It follows from the binomial law of its two losses.
    """
    from scipy.stats import binom

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
