"""Seeds of few signs, where whole laws can be listed: the contract, and the step's exact law."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import cases, denser, thinned
from scipy import stats

from sottovoce.auditing.contract import privacy_covers_the_divergence, samples_follow_the_law
from sottovoce.auditing.enumeration import extreme_inputs
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball, Vector
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms import registry, seeded_sign
from sottovoce.mechanisms.design import seeds
from sottovoce.mechanisms.mechanism import JointLaw, MomentLaw
from sottovoce.mechanisms.seeded_sign import SeededSign
from sottovoce.mechanisms.seeded_step import SeededStep
from sottovoce.privacy.accounting import find_accountant
from sottovoce.privacy.divergences import finite_hockey_stick, finite_renyi
from sottovoce.privacy.events import PureDp, SeededBits
from sottovoce.privacy.pure import pure_epsilon
from sottovoce.privacy.renyi import renyi_divergence

ADJACENCIES = list(Adjacency)
ORDERS = (1.01, 1.5, 2.0, 4.0, 16.0, 256.0)
EPSILONS = (0.0, 0.2, 0.7, 1.5)


def tilted(dimension: int, reach: float = 1.0, records: int = 1, blocks: Any = 1) -> SeededSign:
    """An update `reach` noise widths long, whatever the number of records."""
    found = registry.find("seeded_sign").build(
        L2Ball(dimension=dimension, radius=1.0, records=records),
        {
            "noise_multiplier": records / reach,
            "blocks": blocks,
            "generator": "auto",
            "timing": "auto",
        },
    )
    assert isinstance(found, SeededSign)
    return found


def stepped(dimension: int, epsilon: float, length: str = "kept") -> SeededStep:
    found = registry.find("seeded_step").build(
        L2Ball(dimension=dimension, radius=1.0),
        {"epsilon": epsilon, "length": length, "generator": "auto", "timing": "auto"},
    )
    assert isinstance(found, SeededStep)
    return found


# -- the contract, on whole laws -------------------------------------------------------------


@pytest.mark.usefixtures("one_copy")
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(
    ("dimension", "blocks", "records", "tail"),
    [
        (1, 1, 1, 0.2),
        (1, 1, 20, 0.2),
        (3, 1, 1, 0.2),
        (3, 1, 4, 0.2),
        (8, 1, 1, 0.2),
        (8, 1, 1, None),
        (8, 1, 20, 0.2),
        (10, 1, 1, 0.01),
        (10, 2, 1, 0.2),
        (10, 2, 1, None),
        (9, 2, 4, 0.2),
    ],
)
def test_the_claim_covers_every_divergence_of_the_whole_law(
    adjacency: Adjacency,
    records: int,
    dimension: int,
    blocks: int,
    tail: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if tail is not None:  # one so large that truncation and failures are no small correction

        def choice(reach: float, rho: float) -> seeds.TiltedSeeds:
            return seeds.TiltedSeeds(reach=reach, tail=tail)

        monkeypatch.setattr(seeded_sign, "_choice", choice)
    mechanism = tilted(dimension, records=records, blocks=blocks)
    assert isinstance(mechanism.law(np.zeros(dimension)), JointLaw)
    for seed in range(cases(1)):
        privacy_covers_the_divergence(mechanism, adjacency, seed=5 + seed)


@pytest.mark.usefixtures("one_copy")
def test_noise_that_is_too_small_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = seeded_sign.SeededSign.grid

    def longer(self: SeededSign, norm: float, largest: float) -> Any:
        found = honest(self, norm, largest)
        return dataclasses.replace(found, per_unit=1.2 * found.per_unit, step=1.2 * found.step)

    monkeypatch.setattr(seeded_sign.SeededSign, "grid", longer)
    mechanism = tilted(8)
    with pytest.raises(AssertionError):
        privacy_covers_the_divergence(mechanism, Adjacency.ZERO_OUT)


@pytest.mark.usefixtures("one_copy")
@pytest.mark.parametrize(
    ("dimension", "blocks", "records"),
    [(1, 1, 1), (3, 1, 4), pytest.param(8, 1, 1, marks=pytest.mark.slow), (10, 2, 1)],
)
def test_samples_follow_the_whole_law(dimension: int, blocks: int, records: int) -> None:
    mechanism = tilted(dimension, records=records, blocks=blocks)
    for values in itertools.islice(
        extreme_inputs(mechanism.input_domain, np.random.default_rng(1)), 1, 6, 2
    ):
        samples_follow_the_law(mechanism, values, num_samples=500)


@pytest.mark.usefixtures("one_copy")
def test_the_mean_of_the_whole_law_is_the_update_but_for_tanh() -> None:
    mechanism = tilted(10, reach=0.3)
    values = np.full(10, 0.99 / math.sqrt(10))
    means = mechanism.law(values).mean()
    sigma = mechanism.noise_stddev
    assert means == pytest.approx(sigma * np.tanh(values / sigma), rel=2e-3)


def charged_shift(mechanism: SeededSign, adjacency: Adjacency) -> float:
    event = mechanism.privacy(adjacency).event
    assert isinstance(event, SeededBits)
    return event.shift / 2.0


@pytest.mark.usefixtures("one_copy")
@pytest.mark.parametrize("records", [2, 4, 20, 64])
def test_neighbors_tilts_lie_no_farther_apart_than_charged(records: int) -> None:
    """Rounding, clipping of blocks and the largest weight move them apart by what is charged."""
    for dimension, blocks in ((3, 1), (10, 2), (40, 3), (1000, 5)):
        mechanism = tilted(dimension, records=records, blocks=blocks)
        generator = np.random.default_rng(dimension)
        charged = {adjacency: charged_shift(mechanism, adjacency) for adjacency in ADJACENCIES}
        for _ in range(30):
            base = generator.normal(size=dimension) ** 3
            base *= generator.uniform(0.8, 1.0) * (records - 1) / records / np.linalg.norm(base)
            record = generator.normal(size=dimension) * np.eye(dimension)[0]
            record = record / np.linalg.norm(record) if generator.integers(2) else base
            record = record / np.linalg.norm(record) / records * (1.0 - 1e-12)
            for adjacency, other in (
                (Adjacency.ZERO_OUT, 0.0),
                (Adjacency.REPLACE_ONE, -1.0),
            ):
                tilts = [
                    np.concatenate(
                        [one.weights * one.step for one in mechanism.tilts(base + share * record)]
                    )
                    for share in (1.0, other)
                ]
                assert float(np.linalg.norm(tilts[0] - tilts[1])) <= charged[adjacency]
                for one in tilts:
                    for start, end in mechanism.layout().bounds:
                        longest = mechanism.choice().reach
                        assert float(np.linalg.norm(one[start:end])) <= longest


# -- the step's law, over all signs and fillings ----------------------------------------------


def step_law(mechanism: SeededStep, values: Vector) -> Vector:
    """Of the signs that are sent, averaged over all that the client may fill up with."""
    count = mechanism.layout().num_signs
    choice = mechanism.choice()
    bits = (np.arange(1 << count)[:, None] >> np.arange(count)) & 1
    signs = 2.0 * bits - 1.0
    total = np.zeros(len(signs))
    for filling in bits.astype(np.uint8):
        weights = mechanism.weights(values, filling).astype(np.float64)
        accepted = choice.acceptance(signs @ weights / float(np.linalg.norm(weights)))
        mean = float(accepted.mean())
        refused = (1.0 - mean) ** (choice.tries - 1)
        total += (1.0 - refused) * accepted / mean + refused
    return total / len(signs) ** 2


@pytest.mark.usefixtures("one_copy")
@pytest.mark.parametrize("length", ["kept", "scaled"])
@pytest.mark.parametrize("epsilon", denser([0.5, 3.0]))
@pytest.mark.parametrize("dimension", [1, 3, 8])
def test_no_two_updates_exceed_the_step_s_claims(
    dimension: int, epsilon: float, length: str
) -> None:
    mechanism = stepped(dimension, epsilon, length)
    given = list(extreme_inputs(mechanism.input_domain, np.random.default_rng(2)))
    laws = [step_law(mechanism, values) for values in (*given, 0.3 * given[3])]
    assert laws[0] == pytest.approx(np.full(1 << dimension, 0.5**dimension), rel=1e-12)
    for adjacency, pairs in (
        (Adjacency.ZERO_OUT, [(laws[0], law) for law in laws[1:]]),
        (Adjacency.REPLACE_ONE, itertools.combinations(laws, 2)),
    ):
        claim = mechanism.privacy(adjacency)
        assert pure_epsilon(claim) <= epsilon * (1.0 + 1e-9)
        divergences = {order: renyi_divergence(claim, order) for order in ORDERS}
        deltas = [
            (at, find_accountant(name).delta(claim, at))
            for name, at in itertools.product(("renyi", "pld"), EPSILONS)
        ]
        for pair in pairs:
            for first, second in (pair, pair[::-1]):
                assert float(np.max(np.log(first / second))) <= pure_epsilon(claim)
                for order, claimed in divergences.items():
                    exact = finite_renyi(first, second, order)
                    assert exact <= claimed * (1.0 + 1e-9) + 1e-12
                for at, claimed in deltas:
                    exact = finite_hockey_stick(first, second, at)
                    assert exact <= claimed * (1.0 + 1e-9) + 1e-12


@pytest.mark.usefixtures("one_copy")
def test_sent_signs_follow_the_step_s_exact_law() -> None:
    mechanism = stepped(3, 3.0)
    values = np.array([0.5, -0.3, 0.1])
    law, samples = step_law(mechanism, values), 2000
    signs = [
        int(
            mechanism.signs(mechanism.encode(values, SeededRandomness(1).stream("s", n))[None])[
                0, 0
            ]
        )
        for n in range(samples)
    ]
    observed = np.bincount(signs, minlength=8)
    assert stats.chisquare(observed, law * samples).pvalue > 1e-6
    assert stats.chisquare(observed, step_law(mechanism, -values) * samples).pvalue < 1e-9


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_a_flat_update_meets_the_step_s_claims(epsilon: float) -> None:
    """Of many equal coordinates the score is binomial: the claims hold, with little to spare."""
    mechanism, count = stepped(16_384, epsilon), 16_384
    choice, heads = mechanism.choice(), np.arange(count + 1)
    fair = stats.binom.pmf(heads, count, 0.5)
    accepted = choice.acceptance(np.asarray((2.0 * heads - count) / math.sqrt(count)))
    mean = float(fair @ accepted)
    refused = (1.0 - mean) ** (choice.tries - 1)
    density = (1.0 - refused) * accepted / mean + refused
    likely = fair > 1e-300
    towards, away, neither = (
        (one * fair)[likely] for one in (density, density[::-1], 1.0 + 0.0 * fair)
    )
    for adjacency, pair in (
        (Adjacency.ZERO_OUT, (towards, neither)),
        (Adjacency.REPLACE_ONE, (towards, away)),
    ):
        claim = mechanism.privacy(adjacency)
        largest = float(np.max(np.abs(np.log(pair[0] / pair[1]))))
        assert 0.98 * pure_epsilon(claim) < largest <= pure_epsilon(claim)
        for first, second in (pair, pair[::-1]):
            for order in ORDERS:
                exact = finite_renyi(first, second, order)
                assert exact <= renyi_divergence(claim, order) * (1.0 + 1e-9) + 1e-12
            for at in EPSILONS:
                exact = finite_hockey_stick(first, second, at)
                assert exact <= find_accountant("pld").delta(claim, at) * (1.0 + 1e-9) + 1e-12


def test_signs_alone_take_the_place_of_what_exceeds_the_peak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mechanism = stepped(16_384, 2.0)
    spike = np.zeros(16_384)
    bits = np.random.default_rng(1).integers(0, 2, 16_384, dtype=np.uint8)
    for height in (0.9, 0.05, 0.03):
        spike[5] = height
        monkeypatch.setattr(SeededStep, "direction", lambda self, vector: spike)
        weights = mechanism.weights(spike, bits).astype(np.int64)
        largest = int(np.abs(weights).max())
        assert largest**2 <= mechanism.choice().peak ** 2 * int(weights @ weights)
        replaced = weights.tolist() == (2 * bits.astype(int) - 1).tolist()
        assert replaced == (height > 0.04)


@pytest.mark.parametrize("length", ["kept", "scaled"])
def test_no_weights_exceed_the_certified_peak(length: str) -> None:
    mechanism = stepped(100, 2.0, length)
    count, peak = mechanism.layout().num_signs, mechanism.choice().peak
    generator = np.random.default_rng(3)
    spike, pair = np.zeros(100), np.zeros(100)
    spike[0], pair[:2] = 1.0, math.sqrt(0.5) * (1.0 - 1e-9)
    for values in (
        np.zeros(100),
        spike,
        -1e-3 * pair,
        1e-300 * spike,
        np.full(100, 0.09),
        np.full(100, 5e-324),
    ):
        for bits in (
            np.zeros(count, dtype=np.uint8),
            np.ones(count, dtype=np.uint8),
            generator.integers(0, 2, count, dtype=np.uint8),
        ):
            weights = mechanism.weights(values, bits).astype(np.int64)
            assert int(np.abs(weights).max()) ** 2 <= peak**2 * int(weights @ weights)
    zero = mechanism.weights(np.zeros(100), generator.integers(0, 2, count, dtype=np.uint8))
    assert len(np.unique(np.abs(zero))) == 1


# -- moments at moderate dimension ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    thinned(
        ["one seed", "three seeds", "uneven seeds", "step", "direction"],
        ["flat", "spike", "random", "short"],
    ),
)
def test_decoded_vectors_have_the_declared_moments(name: str, kind: str) -> None:
    choices: dict[str, Callable[[], SeededSign | SeededStep]] = {
        "one seed": lambda: tilted(300, reach=0.7),
        "three seeds": lambda: tilted(300, reach=1.9, blocks=3),
        "uneven seeds": lambda: tilted(5000, reach=0.9, blocks=3),
        "step": lambda: stepped(300, 4.0),
        "direction": lambda: stepped(300, 4.0, "scaled"),
    }
    mechanism = choices[name]()
    dimension = mechanism.input_domain.dimension
    generator = np.random.default_rng(9)
    values = {
        "flat": np.full(dimension, 1.0),
        "spike": np.eye(dimension)[3],
        "random": generator.normal(size=dimension),
        "short": 0.3 * generator.normal(size=dimension),
    }[kind]
    values = values * ((0.3 if kind == "short" else 1.0 - 1e-9) / np.linalg.norm(values))
    law, draws = mechanism.law(values), 300
    assert isinstance(law, MomentLaw)
    decoded = np.stack(
        [
            mechanism.decode(mechanism.encode(values, SeededRandomness(7).stream(kind, n)))
            for n in range(draws)
        ]
    )
    direction = values / np.linalg.norm(values)
    along = decoded @ direction
    error = float(along.std()) / math.sqrt(draws)
    assert abs(float(along.mean()) - float(law.mean() @ direction)) < 5.0 * error
    # Of a whole vector the variance is known well: each of its coordinates has one.
    total = np.square(decoded - law.mean()).sum(axis=1)
    off = float(total.mean()) - float(law.variance().sum())
    assert abs(off) < 5.0 * float(total.std()) / math.sqrt(draws)
    if name == "direction":
        assert float(law.mean() @ direction) == pytest.approx(
            1.0, rel=0.15 if kind != "spike" else 1
        )
    elif kind != "spike":
        assert law.mean() == pytest.approx(values, abs=0.02 * float(np.abs(values).max()) + 1e-3)


def test_an_event_of_a_step_between_two_updates_is_its_epsilon() -> None:
    event = stepped(50, 2.5).privacy(Adjacency.REPLACE_ONE)
    assert event.event == PureDp(epsilon=2.5, adjacency=Adjacency.REPLACE_ONE)
