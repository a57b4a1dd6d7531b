"""Real draws: every registered example passes, and planted bugs do not."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from registered import IN_TURN

from sottovoce.auditing import draws
from sottovoce.auditing.draws import sample_decoded
from sottovoce.auditing.mechanism_audit import audit_by_sampling
from sottovoce.core import native
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, L1Ball, L2Ball
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms import randomized_response, registry, seeded_sign, seeded_step
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.mechanisms.kernels import family, table
from sottovoce.mechanisms.kernels import one_bit as fast_bit
from sottovoce.mechanisms.kernels.reference import one_bit
from sottovoce.mechanisms.kernels.reference import table as reference_table
from sottovoce.mechanisms.laplace import Laplace
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.mvu import Mvu
from sottovoce.mechanisms.randomized_response import GeneralizedRandomizedResponse

BALL = L2Ball(dimension=2, radius=1.0)
INTERVAL = Box(dimension=1, lower=-1.0, upper=1.0)
MECHANISMS: dict[str, Mechanism] = {
    "gaussian": Gaussian(input_domain=BALL, noise_multiplier=2.0),
    "one bit": GaussHermite(
        input_domain=L2Ball(dimension=8, radius=1.0), levels=2, noise_multiplier=2.0
    ),
    "sixteen levels": GaussHermite(input_domain=BALL, levels=16, noise_multiplier=2.0),
    "laplace": Laplace(input_domain=L1Ball(dimension=2, radius=1.0), noise_multiplier=2.0),
    "mvu": Mvu(input_domain=INTERVAL, epsilon=1.0, input_bits=3, output_bits=3),
    "randomised response": GeneralizedRandomizedResponse(
        input_domain=INTERVAL, epsilon=1.0, bits=1
    ),
}


@pytest.mark.parametrize(("registration", "example", "domain", "adjacency"), IN_TURN)
def test_every_registered_example_passes_a_short_audit(
    registration: registry.Registration,
    example: registry.Parameters,
    domain: Box,
    adjacency: Adjacency,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (seeded_sign, seeded_step):  # quick draws; tests/auditing/test_seeded.py has more
        monkeypatch.setattr(module, "LEAST_SIGNS", 400)
        monkeypatch.setattr(module, "_layout", module._layout.__wrapped__)
    mechanism = registration.build(dataclasses.replace(domain, dimension=2), example)
    draws = {"cldp": 500, "staircase": 800, "no_privacy": 500}  # drawn call by call
    draws |= {"seeded_sign": 300, "seeded_step": 300}
    verdict = audit_by_sampling(
        mechanism,
        adjacency,
        delta=1e-5,
        draws=draws.get(registration.kind, 20_000),
        confidence=0.999999,
    )
    assert not verdict.violated, verdict.finding
    assert verdict.adjacency is adjacency
    assert verdict.lower_bound <= verdict.certified


@pytest.mark.parametrize("name", [*MECHANISMS])
def test_draws_batch_mechanism_follow_the_law_of_one_call(name: str) -> None:
    mechanism = MECHANISMS[name]
    values = mechanism.input_domain.project(np.full(mechanism.input_domain.dimension, 9.0))
    many = draws._batch_mechanism(mechanism, values, 1000)
    assert many is not None
    together = sample_decoded(mechanism, values, 5000, (0, "a"))
    assert together.shape == (5000, mechanism.input_domain.dimension)
    law = mechanism.law(values)
    errors = (together.mean(axis=0) - law.mean()) / np.sqrt(law.variance() / 5000)
    assert np.abs(errors).max() < 6.0


def test_what_is_drawn_jointly_is_drawn_call_by_call() -> None:
    registration = registry.find("cldp")
    mechanism = registration.build(L1Ball(dimension=2, radius=1.0), {"epsilon": 1.0})
    assert draws._batch_mechanism(mechanism, np.zeros(2), 10) is None
    here = sample_decoded(mechanism, np.array([1.0, 0.0]), 300, (3, "a"))
    assert len(np.unique(here, axis=0)) > 1
    np.testing.assert_array_equal(
        sample_decoded(mechanism, np.array([1.0, 0.0]), 300, (3, "a")), here
    )


def test_progress_reaches_all_draws() -> None:
    seen: list[tuple[int, int]] = []
    audit_by_sampling(
        MECHANISMS["gaussian"],
        Adjacency.ZERO_OUT,
        delta=1e-5,
        draws=6000,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1] == (12000, 12000)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


# Planted bugs, each at its place in the code. They are found by what leaks, or by what is drawn.


def _verdict(name: str, adjacency: Adjacency = Adjacency.REPLACE_ONE, draws: int = 100_000) -> Any:
    return audit_by_sampling(MECHANISMS[name], adjacency, delta=1e-5, draws=draws, seed=11)


def _half_stddev(mechanism: Any) -> Any:
    return property(lambda self: 0.5 * self.noise_multiplier * self.input_domain.radius)


def _twice_epsilon(mechanism: Any) -> Any:
    honest = mechanism.table
    return property(lambda self: honest.fget(dataclasses.replace(self, epsilon=2 * self.epsilon)))


HALVED: dict[str, tuple[type, str, Callable[[Any], Any]]] = {
    "gaussian": (Gaussian, "noise_stddev", _half_stddev),
    "one bit": (GaussHermite, "noise_stddev", _half_stddev),
    "sixteen levels": (GaussHermite, "noise_stddev", _half_stddev),
    "laplace": (Laplace, "noise_scale", _half_stddev),
    "mvu": (Mvu, "table", _twice_epsilon),
    "randomised response": (GeneralizedRandomizedResponse, "table", _twice_epsilon),
}


@pytest.mark.parametrize("name", [*HALVED])
def test_half_of_the_noise_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = _verdict(name, draws=50_000)
    assert not honest.violated, honest.finding
    owner, attribute, half = HALVED[name]
    monkeypatch.setattr(owner, attribute, half(owner))
    found = _verdict(name, draws=50_000)
    assert found.violated
    # Whatever is declared, more leaks than is certified.
    assert found.law_refuted is None
    assert any(point.violated for point in found.points) or found.lower_bound > found.certified


@pytest.mark.parametrize("name", ["gaussian", "one bit", "sixteen levels", "laplace"])
def test_replace_one_charged_as_zero_out_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ball in (L1Ball, L2Ball):
        radius = lambda self, adjacency: self.radius / self.records  # noqa: E731
        monkeypatch.setattr(ball, "sensitivity", radius)
    assert _verdict(name, Adjacency.ZERO_OUT, draws=50_000).violated is False
    assert _verdict(name, Adjacency.REPLACE_ONE, draws=50_000).violated


@pytest.mark.parametrize("kernels", ["numpy", "auto"])
@pytest.mark.parametrize("name", ["mvu", "randomised response"])
def test_a_threshold_of_the_table_that_is_off_by_one_in_256_is_found(
    name: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, honest_ladders = reference_table._float_codes, table.ladders_of

    def off_by_one(positions: Any, knots: Any, thresholds: Any, low: Any, high: Any) -> Any:
        return honest(positions, knots, thresholds - 1.0 / 256.0, low, high)

    monkeypatch.setattr(reference_table, "_float_codes", off_by_one)
    monkeypatch.setattr(table, "_ladders", {})
    monkeypatch.setattr(
        table, "ladders_of", lambda knots, found: honest_ladders(knots, found - 1.0 / 256.0)
    )
    with native.using(kernels):
        found = _verdict(name, draws=400_000)
    assert found.violated
    assert "declared" in found.finding or "delta" in found.finding


@pytest.mark.slow
def test_a_threshold_of_one_bit_that_is_off_by_a_hundredth_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = one_bit._compare

    def off(tilts: Any, words: Any) -> Any:
        surely, perhaps = honest(tilts, words)
        forced = words >= np.uint16(0.99 * 2**15)  # where the threshold of a fair bit is 1% lower
        return surely | (forced & (words < 2**15)), perhaps | forced

    monkeypatch.setattr(one_bit, "_compare", off)
    with native.using("numpy"):
        found = _verdict("one bit", draws=200_000)
    assert found.violated
    assert found.law_refuted is not None


def test_a_sigmoid_whose_series_is_cut_off_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = GaussHermite(
        input_domain=L2Ball(dimension=1, radius=1.0), levels=2, noise_multiplier=1.0
    )

    def verdict() -> Any:
        return audit_by_sampling(mechanism, Adjacency.ZERO_OUT, delta=1e-5, draws=100_000)

    with native.using("numpy"):
        assert not verdict().violated
        monkeypatch.setattr(one_bit, "_SERIES_REACH", 100.0)  # float32's cubic, beyond its reach
        assert verdict().violated


@pytest.mark.parametrize("name", ["one bit", "sixteen levels"])
def test_a_kernel_whose_tilts_are_a_tenth_too_steep_is_found(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native.native() is None:
        pytest.skip("the C kernels are not built")
    monkeypatch.setattr(fast_bit, "_LOG2_E2", 1.1 * fast_bit._LOG2_E2)
    honest = family._chords

    def steep(points: bytes, weights: bytes, bound: float, reach: float, cells: int) -> Any:
        _, _, *chords = honest(points, weights, bound, 1.1 * reach, cells)
        return -reach, reach, *chords

    monkeypatch.setattr(family, "_chords", steep)
    for kept in (family._ladder, family._narrow):
        monkeypatch.setattr(family, kept.__name__, kept.__wrapped__)
    found = _verdict(name, draws=200_000)
    assert found.violated


def test_a_keystream_that_serves_every_input_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words are always the same, so the code is a function of the input."""
    fixed = Keystream(bytes(32)).words(1 << 16)
    monkeypatch.setattr(Keystream, "words", lambda self, count: fixed[:count])
    found = _verdict("gaussian")
    assert found.violated


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [2.0, 3.0])
def test_one_per_cent_of_epsilon_is_found_by_a_million_draws(
    epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanism = GeneralizedRandomizedResponse(input_domain=INTERVAL, epsilon=epsilon, bits=1)
    honest = randomized_response._generalized_table

    def verdict() -> Any:
        return audit_by_sampling(
            mechanism, Adjacency.REPLACE_ONE, delta=1e-5, draws=1_000_000, seed=2
        )

    assert 0.99 * epsilon < verdict().lower_bound <= epsilon
    monkeypatch.setattr(
        randomized_response, "_generalized_table", lambda e, levels: honest(1.01 * e, levels)
    )
    assert verdict().lower_bound > epsilon
