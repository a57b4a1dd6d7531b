"""Audits of seeds: honest ones pass, planted bugs are found, by real draws and by enumeration."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sottovoce.auditing.enumeration import audit_by_enumeration
from sottovoce.auditing.mechanism_audit import audit_by_sampling, audit_mechanism
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball, Vector
from sottovoce.mechanisms import seeded_sign, seeded_step
from sottovoce.mechanisms.design.seeds import SteppedSeeds
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.seeded_sign import SeededSign
from sottovoce.mechanisms.seeded_step import SeededStep

DRAWS = {Adjacency.ZERO_OUT: 1200, Adjacency.REPLACE_ONE: 2000}
ADJACENCIES = list(Adjacency)


@pytest.fixture(autouse=True)
def few_signs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that draws are quick: the mechanisms are the same."""
    for module, least in ((seeded_sign, 1), (seeded_step, 400)):
        monkeypatch.setattr(module, "LEAST_SIGNS", least)
        module._layout.cache_clear()
    yield
    for module in (seeded_sign, seeded_step):
        module._layout.cache_clear()


def sign(dimension: int) -> SeededSign:
    return SeededSign(
        input_domain=L2Ball(dimension=dimension, radius=1.0),
        noise_multiplier=1.25,
        blocks=1,
        generator="chacha20-1",
        timing="variable",
    )


def step(epsilon: float = 2.0) -> SeededStep:
    return SeededStep(
        input_domain=L2Ball(dimension=20, radius=1.0),
        epsilon=epsilon,
        length="kept",
        generator="chacha20-1",
        timing="variable",
    )


def sampled(mechanism: Mechanism, adjacency: Adjacency) -> Any:
    return audit_by_sampling(mechanism, adjacency, delta=1e-5, draws=DRAWS[adjacency], seed=3)


def twice_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = SeededSign.grid

    def grid(self: SeededSign, norm: float, largest: float) -> Any:
        found = honest(self, norm, largest)
        return dataclasses.replace(found, per_unit=2.0 * found.per_unit, step=2.0 * found.step)

    monkeypatch.setattr(SeededSign, "grid", grid)


@pytest.mark.parametrize(
    ("adjacency", "dimension"),
    [
        (Adjacency.ZERO_OUT, 8),
        pytest.param(Adjacency.REPLACE_ONE, 100, marks=pytest.mark.slow),
    ],
)
def test_honest_tilts_pass_and_half_of_the_noise_is_found(
    adjacency: Adjacency, dimension: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = sampled(sign(dimension), adjacency)
    assert not honest.violated, honest.finding
    assert honest.lower_bound > 0.2  # it does see something
    twice_as_long(monkeypatch)
    found = sampled(sign(dimension), adjacency)
    assert found.violated
    assert found.law_refuted is None


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_enumeration_finds_half_of_the_noise(
    adjacency: Adjacency, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = audit_by_enumeration(sign(8), adjacency, delta=1e-5)
    assert honest is not None
    assert not honest.violated, honest.finding
    assert honest.lower_bound > 0.6 * honest.certified
    twice_as_long(monkeypatch)
    found = audit_by_enumeration(sign(8), adjacency, delta=1e-5)
    assert found is not None
    assert found.violated


def test_acceptance_without_its_floor_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Truncated above alone, as any probability is: then no pure loss holds."""
    mechanism = sign(10)
    blind = dataclasses.replace(mechanism.choice(), tail=0.2)
    monkeypatch.setattr(seeded_sign, "_choice", lambda reach, rho: blind)

    def at_zero_delta() -> Any:
        return audit_by_enumeration(mechanism, Adjacency.REPLACE_ONE, delta=1e-9)

    assert not at_zero_delta().violated
    honest = type(blind).acceptance

    def without(self: Any, odds: Vector) -> Vector:
        floor = honest(self, np.full_like(odds, -1e9))
        return np.where(odds < -self.log_limit, 1e-3 * floor, honest(self, odds))

    monkeypatch.setattr(type(blind), "acceptance", without)
    assert at_zero_delta().violated


@pytest.mark.slow
@pytest.mark.parametrize(
    "adjacency", [ADJACENCIES[0], pytest.param(ADJACENCIES[1], marks=pytest.mark.slow)]
)
def test_an_honest_step_passes_and_a_steeper_one_is_found(
    adjacency: Adjacency, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = sampled(step(4.0), adjacency)
    assert not honest.violated, honest.finding
    assert honest.lower_bound > 0.3 * honest.certified
    own = SteppedSeeds.acceptance

    def steeper(self: SteppedSeeds, scores: Vector) -> Vector:
        return own(dataclasses.replace(self, contrast=2.0 * self.contrast), scores)

    monkeypatch.setattr(SteppedSeeds, "acceptance", steeper)
    assert sampled(step(4.0), adjacency).violated


def test_both_audits_in_one_call() -> None:
    found = audit_mechanism(sign(8), Adjacency.ZERO_OUT, delta=1e-5, draws=500, seed=1)
    assert found.exact is not None
    assert not found.violated
    assert audit_mechanism(step(), Adjacency.ZERO_OUT, delta=1e-5, draws=500, seed=1).exact is None
