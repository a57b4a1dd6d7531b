"""Truncated odds: no exact law over all sign vectors exceeds what is claimed for it."""

import itertools
import math

import numpy as np
import pytest
from cases import denser, thinned

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError, UnsupportedEventError
from sottovoce.mechanisms.design.seeds import MAX_TRIES, TiltedSeeds, tilted_seeds
from sottovoce.privacy.accounting import builtin_accountants
from sottovoce.privacy.divergences import finite_hockey_stick, log_sum_exp, one_bit_renyi
from sottovoce.privacy.events import Repeated, SeededBits
from sottovoce.privacy.renyi import renyi_divergence

ORDERS = (1.01, 1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 32.0, 64.0, 200.0, 1000.0)
EPSILONS = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 7.0)
# Tails far above those in use: there truncation and failures are no small correction.
CHOICES = [
    TiltedSeeds(reach=reach, tail=tail)
    for reach, tail in itertools.product((0.2, 0.7, 1.2, 2.0), (0.3, 0.05, 1e-3))
]


def signs(count: int) -> Vector:
    return np.array(list(itertools.product((-1.0, 1.0), repeat=count)))


def log_odds(tilts: Vector) -> Vector:
    return signs(len(tilts)) @ tilts - float(np.sum(np.log(np.cosh(tilts))))


def message(choice: TiltedSeeds, tilts: Vector) -> Vector:
    """The exact law of the signs that are sent, by the definition of rejection."""
    accepted = choice.acceptance(log_odds(tilts))
    mean = float(accepted.mean())
    refused = (1.0 - mean) ** (choice.tries - 1)  # all but the last one, which is sent unasked
    return ((1.0 - refused) * accepted / mean + refused) / len(accepted)


def inputs(reach: float, count: int) -> list[Vector]:
    """Spikes, flat and random tilts on the sphere, shorter ones, and nothing at all."""
    generator = np.random.default_rng(count)
    found = [np.zeros(count), np.full(count, reach / math.sqrt(count))]
    for spikes in (1, 2, 3):
        spiky = np.zeros(count)
        spiky[:spikes] = reach / math.sqrt(spikes)
        found += [spiky, -spiky]
    for length in (1.0, 1.0, 0.8, 0.3):
        drawn = generator.normal(size=count)
        found.append(drawn * (length * reach / np.linalg.norm(drawn)))
    return found


def renyi(first: Vector, second: Vector, order: float) -> float:
    logs = order * np.log(first) - (order - 1.0) * np.log(second)
    return log_sum_exp(logs) / (order - 1.0)


def event(choice: TiltedSeeds, distance: float, count: int, *, against_zero: bool) -> SeededBits:
    return SeededBits(
        shift=2.0 * distance * (1.0 + 1e-12),
        dimension=count,
        excess=choice.excess,
        largest_loss=choice.largest_loss(against_zero=against_zero),
        adjacency=Adjacency.ZERO_OUT if against_zero else Adjacency.REPLACE_ONE,
        against_zero=against_zero,
    )


def pairs(choice: TiltedSeeds, count: int) -> list[tuple[Vector, Vector]]:
    """Any two inputs, and ones that lie as close together as means of many records."""
    found = inputs(choice.reach, count)
    near = [
        (values, values * (1.0 - 2.0 / records)) for values in found for records in (4, 20, 1000)
    ]
    turned = [
        (values, 0.95 * values + 0.05 * other) for values in found[1:4] for other in found[4:7]
    ]
    return [*itertools.combinations(found, 2), *near, *turned]


# -- tails, normalisers, failures ------------------------------------------------------------


@pytest.mark.parametrize(("choice", "count"), thinned(CHOICES, [1, 2, 5, 10]))
def test_tails_and_normalizers_are_within_their_bounds(choice: TiltedSeeds, count: int) -> None:
    limit, tail = choice.log_limit, choice.tail
    laws = [np.exp(log_odds(tilts)) / 2.0**count for tilts in inputs(choice.reach, count)]
    for tilts in inputs(choice.reach, count):
        odds = log_odds(tilts)
        assert np.exp(odds).mean() == pytest.approx(1.0)
        assert np.mean(odds < -limit) <= tail
        assert all(float(law[odds > limit].sum()) <= tail for law in laws)
        mean = float(choice.acceptance(odds).mean())
        normaliser = mean * math.exp(limit)
        assert 1.0 - tail <= normaliser * (1.0 + 1e-12)
        assert normaliser <= (1.0 + tail * math.exp(-limit)) * (1.0 + 1e-12)
        assert (1.0 - mean) ** (choice.tries - 1) <= choice.failure * (1.0 + 1e-9)


def test_truncation_happens_in_these_tests() -> None:
    cut = [
        np.abs(log_odds(tilts)).max() > choice.log_limit
        for choice in CHOICES
        for tilts in inputs(choice.reach, 10)
    ]
    assert 20 < sum(cut) < len(cut)


# -- every order, both ways ------------------------------------------------------------------


@pytest.mark.parametrize(("choice", "count"), thinned(CHOICES, denser([1, 3, 9])))
def test_no_pair_exceeds_the_renyi_claim(choice: TiltedSeeds, count: int) -> None:
    for pair in pairs(choice, count):
        apart = float(np.linalg.norm(pair[0] - pair[1]))
        if apart == 0.0:
            continue
        against_zero = not (pair[0].any() and pair[1].any())
        claim = event(choice, apart, count, against_zero=against_zero)
        both = message(choice, pair[0]), message(choice, pair[1])
        for laws in (both, both[::-1]):
            loss = float(np.max(np.log(laws[0]) - np.log(laws[1])))
            assert loss <= claim.largest_loss
        for order in ORDERS:
            exact = max(renyi(*both, order), renyi(*both[::-1], order))
            assert exact <= renyi_divergence(claim, order) * (1.0 + 1e-9) + 1e-12
            uncapped = one_bit_renyi(claim.shift, count, order)
            uncapped += claim.excess * order / (order - 1.0)
            assert exact <= uncapped * (1.0 + 1e-9) + 1e-12


def with_tries(choice: TiltedSeeds, tilts: Vector) -> Vector:
    """The exact law of the number of tries together with the signs that are sent."""
    accepted = choice.acceptance(log_odds(tilts))
    refused = (1.0 - float(accepted.mean())) ** np.arange(choice.tries)
    accepted = np.vstack([np.tile(accepted, (choice.tries - 1, 1)), np.ones(len(accepted))])
    return np.asarray(refused[:, np.newaxis] * accepted / accepted.shape[1]).ravel()


@pytest.mark.parametrize("reach", [0.2, 0.7, 1.2])
def test_no_pair_exceeds_the_claim_when_the_number_of_tries_is_seen(reach: float) -> None:
    choice, seen = TiltedSeeds(reach=reach, tail=1e-3), 0
    found = inputs(reach, 3)
    for pair in itertools.combinations(found, 2):
        apart = float(np.linalg.norm(pair[0] - pair[1]))
        both = with_tries(choice, pair[0]), with_tries(choice, pair[1])
        extra = choice.excess + choice.timing_loss
        against_zero = not (pair[0].any() and pair[1].any())
        loss = float(np.max(np.abs(np.log(both[0]) - np.log(both[1]))))
        assert loss <= choice.largest_loss(against_zero=against_zero) + choice.timing_loss
        alone = message(choice, pair[0]), message(choice, pair[1])
        for order in ORDERS:
            exact = max(renyi(*both, order), renyi(*both[::-1], order))
            bits = one_bit_renyi(2.0 * apart * (1.0 + 1e-12), 3, order)
            assert exact <= bits + extra * order / (order - 1.0) + 1e-12
            seen += exact > renyi(*alone, order) + 1e-9
    assert seen > 100  # the tries do tell something


def test_tilts_that_are_too_long_are_found() -> None:
    """These checks can fail: they do for a mechanism with too little noise."""
    choice = TiltedSeeds(reach=0.7, tail=1e-3)
    tilts = np.full(9, choice.reach / 3.0)
    claim = event(choice, choice.reach, 9, against_zero=True)
    fair = np.full(2**9, 2.0**-9)
    sent = message(choice, 1.1 * tilts)
    assert any(renyi(sent, fair, order) > renyi_divergence(claim, order) for order in ORDERS)
    sent = message(choice, 2.0 * tilts)
    assert any(
        finite_hockey_stick(sent, fair, epsilon) > min(claimed_deltas(claim, 1, epsilon).values())
        for epsilon in EPSILONS
    )


# -- deltas, alone and composed --------------------------------------------------------------


def claimed_deltas(claim: SeededBits, count: int, epsilon: float) -> dict[str, float]:
    composed = claim if count == 1 else Repeated(event=claim, count=count)
    found = {}
    for accountant in builtin_accountants():
        try:
            found[accountant.name] = accountant.delta(composed, epsilon)
        except UnsupportedEventError:
            continue
    return found


@pytest.mark.parametrize("against_zero", [True, False])
@pytest.mark.parametrize(
    "choice",
    [TiltedSeeds(reach=0.7, tail=0.3), TiltedSeeds(reach=1.2, tail=0.05)],
    ids=["0.7", "1.2"],
)
@pytest.mark.parametrize(("count", "releases"), [(9, 1), (5, 2), (3, 3)])
def test_no_pair_exceeds_any_accountant_s_delta(
    choice: TiltedSeeds, against_zero: bool, count: int, releases: int
) -> None:
    apart = choice.reach * (1.0 if against_zero else 2.0)
    claim = event(choice, apart, count, against_zero=against_zero)
    claims = {epsilon: claimed_deltas(claim, releases, epsilon) for epsilon in EPSILONS}
    assert {"renyi", "pld"} <= set(claims[0.0])
    assert ("cubic" in claims[0.0]) == against_zero
    for tilts in inputs(choice.reach, count)[1:]:
        other = np.zeros(count) if against_zero else -tilts
        laws = message(choice, tilts), message(choice, other)
        first, second = laws
        for _ in range(releases - 1):
            first, second = np.outer(first, laws[0]).ravel(), np.outer(second, laws[1]).ravel()
        for epsilon, deltas in claims.items():
            exact = max(
                finite_hockey_stick(first, second, epsilon),
                finite_hockey_stick(second, first, epsilon),
            )
            for name, delta in deltas.items():
                assert exact <= delta * (1.0 + 1e-9) + 1e-12, (name, epsilon)


@pytest.mark.parametrize(
    ("choice", "shift"), thinned(CHOICES, denser([-2.0, -0.5, 0.0, 0.5, 1.0, 2.0]))
)
def test_cubes_of_losses_grow_by_the_excess_at_most(choice: TiltedSeeds, shift: float) -> None:
    """E h(loss) <= e^x E h(loss of the bits + x) for h = (l - shift)_+^3: the step of `cubic`."""
    fair = np.full(2**9, 2.0**-9)
    for tilts in inputs(choice.reach, 9):
        bits, sent = fair * np.exp(log_odds(tilts)), message(choice, tilts)
        for exact, compared in (((sent, fair), (bits, fair)), ((fair, sent), (fair, bits))):
            loss = np.log(exact[0]) - np.log(exact[1])
            other = np.log(compared[0]) - np.log(compared[1]) + choice.excess
            left = float(exact[0] @ np.maximum(loss - shift, 0.0) ** 3)
            right = float(compared[0] @ np.maximum(other - shift, 0.0) ** 3)
            assert left <= math.exp(choice.excess) * right * (1.0 + 1e-9) + 1e-15


# -- choices ---------------------------------------------------------------------------------


@pytest.mark.parametrize("reach", [1e-6, 1e-3, 0.1, 0.5, 1.0, 1.2, 1.5])
def test_what_is_chosen_costs_little(reach: float) -> None:
    rho = reach**2 / 2.0
    choice = tilted_seeds(reach, rho)
    assert choice.excess - 1e-10 <= rho / 200.0
    assert 1 < choice.tries < 200 * math.exp(choice.log_limit) * 10
    assert 1.0 - 3.0 * choice.tail <= choice.shrinkage <= 1.0


@pytest.mark.parametrize("tail", [0.2, 0.05, 1e-3])
@pytest.mark.parametrize("reach", [0.3, 1.0, 1.5])
def test_the_shrinkage_is_that_of_many_signs(reach: float, tail: float) -> None:
    choice, count = TiltedSeeds(reach=reach, tail=tail), 40_000
    from scipy import stats

    heads = np.arange(count + 1)
    tilt = reach / math.sqrt(count)
    scores = tilt * (2.0 * heads - count)
    accepted = choice.acceptance(np.asarray(scores - count * math.log(math.cosh(tilt))))
    fair = stats.binom.pmf(heads, count, 0.5)
    mean = float(fair @ accepted)
    failing = (1.0 - mean) ** (choice.tries - 1)
    found = (1.0 - failing) * float(fair @ (accepted * scores)) / mean / reach**2
    assert found == pytest.approx(choice.shrinkage, abs=2e-4)


def test_too_long_an_update_is_refused() -> None:
    with pytest.raises(ParameterError, match=f"{MAX_TRIES} are the limit"):
        tilted_seeds(4.0, 8.0)


@pytest.mark.parametrize(("reach", "tail"), [(0.0, 0.1), (math.nan, 0.1), (1.0, 0.0), (1.0, 2.0)])
def test_a_choice_that_is_none_is_refused(reach: float, tail: float) -> None:
    with pytest.raises(ParameterError):
        TiltedSeeds(reach=reach, tail=tail)
