"""All 2^16 seeds of toy generators: the law of the message itself, sampled and against claims."""

import functools
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball, Vector
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.kernels import seeded
from sottovoce.mechanisms.seeded_sign import SeededSign
from sottovoce.mechanisms.seeded_step import SeededStep
from sottovoce.mechanisms.seeds import TIMINGS, Scorer, Weights, choose_seed
from sottovoce.privacy.pure import pure_epsilon
from sottovoce.privacy.renyi import renyi_divergence

SEEDS = 2**16
ORDERS = (1.1, 2.0, 4.0, 8.0)
SAMPLES = 2000


class Toy:
    """A generator whose seeds have 16 bits, the first of those that are drawn."""

    def __init__(self, signs: NDArray[np.int8]) -> None:
        assert len(signs) == SEEDS
        self.signs = signs.astype(np.int64)

    @classmethod
    @functools.lru_cache(maxsize=2)
    def of_chacha(cls, count: int) -> "Toy":
        seeds = np.zeros((SEEDS, 16), dtype=np.uint8)
        seeds[:, :2] = np.arange(SEEDS, dtype="<u2").view(np.uint8).reshape(SEEDS, 2)
        bits = np.unpackbits(seeded.sign_rows(seeds, count), axis=1, bitorder="little")
        return cls((2 * bits[:, :count].astype(np.int8) - 1).astype(np.int8))

    def score(self, seeds: NDArray[np.uint8], weights: Weights) -> NDArray[np.int64]:
        return self.signs[numbers_of(seeds)] @ weights.astype(np.int64)

    @property
    def scorer(self) -> Scorer:
        return Scorer(score=self.score)

    def law(self, acceptance: Vector, tries: int) -> Vector:
        """Of the seed that is sent, from the definition: the first accepted, or the last."""
        assert len(acceptance) == SEEDS
        mean = float(acceptance.mean())
        refused = (1.0 - mean) ** (tries - 1)
        return ((1.0 - refused) * acceptance / mean + refused) / SEEDS


def numbers_of(seeds: NDArray[np.uint8]) -> NDArray[np.int64]:
    return seeds[:, 0].astype(np.int64) + 256 * seeds[:, 1].astype(np.int64)


def tilted(count: int, noise_multiplier: float = 1.25, timing: str = "variable") -> SeededSign:
    found = registry.find("seeded_sign").build(
        L2Ball(dimension=count, radius=1.0),
        {
            "noise_multiplier": noise_multiplier,
            "blocks": "auto",
            "generator": "auto",
            "timing": timing,
        },
    )
    assert isinstance(found, SeededSign)
    assert found.blocks == 1
    return found


def stepped(count: int, epsilon: float = 2.0) -> SeededStep:
    found = registry.find("seeded_step").build(
        L2Ball(dimension=count, radius=1.0),
        {"epsilon": epsilon, "length": "scaled", "generator": "auto", "timing": "auto"},
    )
    assert isinstance(found, SeededStep)
    return found


def tilted_acceptance(mechanism: SeededSign, toy: Toy, values: Vector) -> Vector:
    [tilts] = mechanism.tilts(mechanism.input_domain.check(values))
    exact = tilts.weights * tilts.step
    odds = toy.signs @ exact - float(np.sum(np.log(np.cosh(exact))))
    limit = mechanism.choice().log_limit
    return np.asarray(np.exp(np.clip(odds, -limit, limit) - limit))


def stepped_acceptance(mechanism: SeededStep, toy: Toy, weights: Weights) -> Vector:
    wide = weights.astype(np.float64)
    return mechanism.choice().acceptance(toy.signs @ wide / float(np.linalg.norm(wide)))


def inputs(count: int) -> list[Vector]:
    spike, generator = np.zeros(count), np.random.default_rng(count)
    spike[0] = 1.0 - 2.0**-30
    drawn = generator.normal(size=count)
    return [
        np.zeros(count),
        spike,
        np.full(count, (1.0 - 2.0**-30) / math.sqrt(count)),
        drawn * ((1.0 - 2.0**-30) / np.linalg.norm(drawn)),
    ]


def p_value(drawn: NDArray[np.int64], law: Vector, like: Vector) -> float:
    """Chi-square over groups of seeds that are about equally likely `like` that, in two halves."""
    groups = np.empty(SEEDS, dtype=np.intp)
    groups[np.argsort(like, kind="stable")] = np.arange(SEEDS) * 30 // SEEDS
    groups = 2 * groups + (np.arange(SEEDS) >> 15)
    expected = np.bincount(groups, weights=law, minlength=60) * len(drawn)
    observed = np.bincount(groups[drawn], minlength=60)
    keep = expected >= 5.0
    pooled = [[*some[keep], some[~keep].sum()] for some in (observed, expected)]
    if pooled[1][-1] < 5.0:
        pooled = [[*some[:-2], some[-2] + some[-1]] for some in pooled]
    return float(stats.chisquare(*pooled).pvalue)


# -- what is sampled -------------------------------------------------------------------------


@pytest.mark.usefixtures("one_copy")
@pytest.mark.parametrize(
    ("count", "which"),
    [
        (12, 1),
        (12, 2),
        (12, 3),
        pytest.param(200, 1, marks=pytest.mark.slow),
        pytest.param(200, 2, marks=pytest.mark.slow),
        (200, 3),
    ],
)
def test_sampled_seeds_follow_the_law_of_rejection(count: int, which: int) -> None:
    mechanism, toy, values = tilted(count), Toy.of_chacha(count), inputs(count)[which]
    law = toy.law(tilted_acceptance(mechanism, toy, values), mechanism.choice().tries)
    tilts = mechanism.tilts(values)
    codes = [
        mechanism.search(tilts, SeededRandomness(4).stream("toy", n), toy.scorer)
        for n in range(SAMPLES)
    ]
    drawn = numbers_of(mechanism.layout().seeds(np.stack(codes))[:, 0])
    assert p_value(drawn, law, law) > 1e-6
    # The same test finds what is not so: another input's law, and fair seeds.
    for other in (tilted_acceptance(mechanism, toy, -values), np.full(SEEDS, 0.5)):
        assert p_value(drawn, toy.law(other, mechanism.choice().tries), law) < 1e-9


@pytest.mark.usefixtures("one_copy")
def test_sampled_steps_follow_the_law_of_rejection() -> None:
    count = 200
    mechanism, toy, values = stepped(count), Toy.of_chacha(count), inputs(count)[3]
    law, codes = np.zeros(SEEDS), []
    # Full length, so that hardly anything is filled: but what is differs from draw to draw.
    for n in range(SAMPLES):
        codes.append(mechanism.search(values, SeededRandomness(6).stream("toy", n), toy.scorer))
    fillings = np.random.default_rng(1).integers(0, 2, (60, count), dtype=np.uint8)
    for bits in fillings:
        weights = mechanism.weights(values, bits)
        law += toy.law(stepped_acceptance(mechanism, toy, weights), mechanism.choice().tries) / 60
    drawn = numbers_of(mechanism.layout().seeds(np.stack(codes))[:, 0])
    assert p_value(drawn, law, law) > 1e-6
    assert p_value(drawn, np.full(SEEDS, 1.0 / SEEDS), law) < 1e-9


@pytest.mark.usefixtures("one_copy")
def test_the_last_seed_is_sent_as_often_as_all_others_fail() -> None:
    """A failure is no rare branch here: nothing is ever accepted."""
    mechanism = tilted(12)
    tries = mechanism.choice().tries
    refusing = Scorer(score=lambda seeds, weights: np.full(len(seeds), -(2**40)))
    tilts = mechanism.tilts(inputs(12)[3])
    for n in range(20):
        stream = SeededRandomness(2).stream("refused", n)
        words = SeededRandomness(2).stream("refused", n).words(3 * tries).reshape(tries, 3)
        floor = np.exp(-2.0 * mechanism.choice().log_limit)
        accepted = np.flatnonzero(words[:-1, 2] < np.uint64(floor * 2.0**64))
        expected = words[accepted[0] if len(accepted) else -1, :2]
        sent = mechanism.layout().seeds(mechanism.search(tilts, stream, refusing)[None])[0, 0]
        assert sent.tobytes() == expected.astype("<u8").tobytes()


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("first", [0, 3, 15, 16, 17, 40, 49])
def test_the_first_accepted_seed_is_sent(first: int, timing: str) -> None:
    """Also beyond the first call of the scorer, and though later ones are accepted, too."""
    words = np.random.default_rng(first).integers(0, 2**63, (50, 3), dtype=np.uint64)
    scorer = Scorer(score=lambda seeds, weights: seeds[:, 0].astype(np.int64), together=16)
    words[:, 0] &= np.uint64(2**64 - 256)
    words[first:, 0] |= np.uint64(1)  # the first byte is what they are told apart by
    sent = choose_seed(
        np.zeros(8, dtype=np.int16),
        lambda scores: np.where(scores == 1, 1.0, 0.0),
        words,
        timing=timing,
        scorer=scorer,
    )
    assert sent == words[first, :2].astype("<u8").tobytes()


# -- what is claimed -------------------------------------------------------------------------


def ideal_normaliser(acceptance: Vector, toy: Toy) -> float:
    """E over all sign vectors: each weighs the same, however many seeds stand for it."""
    _, first = np.unique(toy.signs @ (1 << np.arange(toy.signs.shape[1])), return_index=True)
    assert len(first) == 2 ** toy.signs.shape[1]
    return float(acceptance[first].mean())


@pytest.mark.usefixtures("one_copy")
def test_a_good_generator_keeps_what_is_claimed() -> None:
    count = 10
    mechanism, toy = tilted(count), Toy.of_chacha(count)
    choice = mechanism.choice()
    accepted = [tilted_acceptance(mechanism, toy, values) for values in inputs(count)]
    ideal = [ideal_normaliser(one, toy) for one in accepted]
    for one, mean in zip(accepted, ideal, strict=True):
        off = abs(float(one.mean()) - mean)
        assert off <= 6.0 * float(one.std()) / math.sqrt(SEEDS) + 1e-15
    laws = [toy.law(one, choice.tries) for one in accepted]
    for i, first in enumerate(laws):
        for j, second in enumerate(laws):
            if i == j:
                continue
            adjacency = Adjacency.ZERO_OUT if 0 in (i, j) else Adjacency.REPLACE_ONE
            claim = mechanism.privacy(adjacency)
            spread = [abs(math.log(float(accepted[k].mean()) / ideal[k])) for k in (i, j)]
            losses = np.log(first) - np.log(second)
            assert float(losses.max()) <= pure_epsilon(claim) + sum(spread)
            for order in ORDERS:
                terms = np.exp(order * np.log(SEEDS * first) - (order - 1) * np.log(SEEDS * second))
                # 2^16 seeds are so many draws of sign vectors: the moment errs by as much.
                error = 6.0 * float(terms.std()) / math.sqrt(SEEDS)
                bound = math.exp((order - 1.0) * renyi_divergence(claim, order))
                assert float(terms.mean()) <= bound + error


@pytest.mark.usefixtures("one_copy")
def test_with_a_bad_generator_twice_the_pure_loss_holds_and_no_less() -> None:
    """All seeds but one expand to the same signs."""
    count = 12
    mechanism = tilted(count)
    values = inputs(count)[2]
    signs = np.full((SEEDS, count), -1, dtype=np.int8)
    signs[77] = 1
    toy = Toy(signs)
    tries = mechanism.choice().tries
    towards = toy.law(tilted_acceptance(mechanism, toy, values), tries)
    away = toy.law(tilted_acceptance(mechanism, toy, -values), tries)
    loss = float(np.max(np.abs(np.log(towards) - np.log(away))))
    claim = pure_epsilon(mechanism.privacy(Adjacency.REPLACE_ONE))
    assert 1.2 * claim < loss <= 2.0 * claim


@pytest.mark.usefixtures("one_copy")
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_with_a_bad_generator_a_step_has_twice_its_epsilon(epsilon: float) -> None:
    count = 100
    mechanism = stepped(count, epsilon)
    values = inputs(count)[2]
    signs = np.full((SEEDS, count), -1, dtype=np.int8)
    signs[77] = 1
    toy, bits = Toy(signs), np.tile(np.array([0, 1], dtype=np.uint8), count // 2)
    laws = [
        toy.law(
            stepped_acceptance(mechanism, toy, mechanism.weights(way * values, bits)),
            mechanism.choice().tries,
        )
        for way in (1.0, -1.0)
    ]
    loss = float(np.max(np.abs(np.log(laws[0]) - np.log(laws[1]))))
    assert 1.5 * epsilon < loss <= 2.0 * epsilon


@pytest.mark.usefixtures("one_copy")
def test_a_good_generator_keeps_the_step_s_epsilon() -> None:
    count = 200
    mechanism, toy = stepped(count, 2.0), Toy.of_chacha(count)
    low, high = mechanism.choice().normalizers
    bits = np.random.default_rng(5).integers(0, 2, count, dtype=np.uint8)
    laws = []
    for values in (*inputs(count), -inputs(count)[2]):
        accepted = stepped_acceptance(mechanism, toy, mechanism.weights(values, bits))
        error = 6.0 * float(accepted.std()) / math.sqrt(SEEDS)
        assert low - error <= float(accepted.mean()) <= high + error
        laws.append(toy.law(accepted, mechanism.choice().tries))
        off = float(accepted.mean())
        assert SEEDS * float(laws[-1].max()) <= mechanism.choice().ratios()[0] * low / min(low, off)
    losses = [float(np.max(np.log(a) - np.log(b))) for a in laws for b in laws]
    error = 2.0 * 6.0 * 0.5 / math.sqrt(SEEDS) / low
    assert 1.7 < max(losses) <= 2.0 + error
