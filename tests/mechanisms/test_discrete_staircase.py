import itertools
import math
from typing import Any

import numpy as np
import pytest

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Domain, L1Ball, L2Ball
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.discrete_staircase import DiscreteStaircase
from sottovoce.mechanisms.mechanism import FiniteLaw
from sottovoce.mechanisms.noise.laws import nu_for_variance
from sottovoce.mechanisms.registry import find
from sottovoce.mechanisms.staircase import Staircase
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.divergences import finite_hockey_stick
from sottovoce.privacy.events import FinitePair, PureDp, Repeated

NUMBER = L2Ball(dimension=1, radius=1.0)
UNIT = Box(dimension=1, lower=-0.25, upper=1.0)
GIVEN = {
    "step_epsilon": 1.0,
    "nu": "auto",
    "step_multiplier": 2.0,
    "bits": 10,
    "steps_per_radius": "auto",
}


def build(domain: Domain = NUMBER, **changes: Any) -> DiscreteStaircase:
    mechanism = find("discrete_staircase").build(domain, {**GIVEN, **changes})
    assert isinstance(mechanism, DiscreteStaircase)
    return mechanism


def table(mechanism: DiscreteStaircase, value: float) -> Any:
    law = mechanism.law([value])
    assert isinstance(law, FiniteLaw)
    return law.table[0]


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(
    "domain",
    [NUMBER, pytest.param(L1Ball(dimension=1, radius=1.0), marks=pytest.mark.slow), UNIT],
    ids=repr,
)
@pytest.mark.parametrize(
    "step_multiplier", [0.3, *(pytest.param(m, marks=pytest.mark.slow) for m in (1.0, 2.0)), 3.5]
)
@pytest.mark.parametrize(("step_epsilon", "nu"), [(0.3, "auto"), (2.0, 0.5), (4.0, 0.05)])
def test_no_bound_lies_below_the_exact_hockey_stick_of_the_cells(
    domain: Domain, adjacency: Adjacency, step_multiplier: float, step_epsilon: float, nu: Any
) -> None:
    low, high = (domain.lower, domain.upper) if isinstance(domain, Box) else (-1.0, 1.0)
    pairs = [(low, high), (low, 0.3 * low), (0.2, high)]
    if adjacency is Adjacency.ZERO_OUT:
        pairs = [(end, 0.0) for end in (low, 0.4 * high, high)]
    for bits, steps in ((3, 2.0), (6, "auto"), (7, 64.0)):
        mechanism = build(
            domain,
            step_epsilon=step_epsilon,
            nu=nu,
            step_multiplier=step_multiplier,
            bits=bits,
            steps_per_radius=steps,
        )
        event = mechanism.privacy(adjacency)
        tables = [[table(mechanism, value) for value in pair] for pair in pairs]
        for times, delta in ((1, 1e-6), (1, 0.05), (2, 1e-3)):
            bounds = privacy_spent(Repeated(event=event, count=times), delta).bounds
            for rows in tables:
                p, q = (row if times == 1 else np.outer(row, row).ravel() for row in rows)
                for (name, epsilon), (one, other) in itertools.product(bounds, ((p, q), (q, p))):
                    exact = finite_hockey_stick(one, other, epsilon)
                    assert exact <= delta * (1.0 + 1e-9) + 1e-15, f"{name} says {epsilon}"


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("step_multiplier", [0.3, 1.0, 2.0, 3.5])
@pytest.mark.parametrize("records", [1, 7])
def test_it_is_charged_as_the_real_valued_staircase(
    adjacency: Adjacency, step_multiplier: float, records: int
) -> None:
    for domain in (L2Ball(dimension=1, radius=3.0, records=records), UNIT):
        mechanism = build(domain, step_multiplier=step_multiplier)
        continuous = Staircase(
            input_domain=domain,
            step_epsilon=mechanism.step_epsilon,
            nu=mechanism.nu,
            step_multiplier=step_multiplier,
        )
        # Equal but for the last bits of a division.
        own, other = (one.privacy(adjacency) for one in (mechanism, continuous))
        assert type(own) is type(other)
        for accountant in ("renyi", "pld"):
            spent, expected = (privacy_spent(one, 1e-5, accountant).epsilon for one in (own, other))
            assert spent == pytest.approx(expected, rel=1e-12)
    assert mechanism.sampling == "exact"


def test_neighbors_a_whole_stair_apart_and_a_hair_lose_one_stair_and_not_two() -> None:
    """What floats round before the noise must not cost a second stair: the stairs are wider."""
    mechanism = build(step_multiplier=1.0)
    assert isinstance(mechanism.privacy(Adjacency.ZERO_OUT), FinitePair)
    assert mechanism.noise.step >= math.nextafter(1.0, 2.0) * (1.0 + 2.0**-27)
    assert build(step_multiplier=0.5).privacy(Adjacency.ZERO_OUT) == PureDp(
        epsilon=2.0, adjacency=Adjacency.ZERO_OUT
    )


def test_a_box_is_charged_for_every_coordinate() -> None:
    box = Box(dimension=5, lower=-1.0, upper=1.0)
    event = build(box, step_multiplier=1.0).privacy(Adjacency.REPLACE_ONE)
    assert isinstance(event, Repeated)
    assert event.count == 5
    assert isinstance(event.event, FinitePair)


def test_automatic_values_are_the_least_variance_and_the_finest_grid() -> None:
    mechanism = build(bits=12)
    assert mechanism.nu == nu_for_variance(1.0)
    room = (2**11 - 0.5) * mechanism.step - 1.0
    assert mechanism.noise.tail(np.array([room]))[0] == pytest.approx(0.5e-9, rel=1e-6)
    law = mechanism.law([0.7])
    assert law.mean() == pytest.approx([0.7], abs=2.0 * mechanism.step)
    assert law.variance() == pytest.approx([mechanism.noise.variance], rel=1e-3)


@pytest.mark.parametrize("step_epsilon", [1e-9, 1.0, 30.0, 500.0])
@pytest.mark.parametrize("step_multiplier", [1e-5, 1.0, 1e5])
@pytest.mark.parametrize("bits", [2, 20])
def test_the_automatic_grid_is_never_refused(
    step_epsilon: float, step_multiplier: float, bits: int
) -> None:
    build(UNIT, step_epsilon=step_epsilon, step_multiplier=step_multiplier, bits=bits)


def test_calibration_on_a_given_grid_looks_for_no_noise_that_it_refuses() -> None:
    given = {k: v for k, v in GIVEN.items() if k != "step_epsilon"} | {"steps_per_radius": 500.0}
    found = find("discrete_staircase").calibrated(
        NUMBER,
        given,
        rounds=3,
        epsilon=1.0,
        delta=1e-6,
        event_of=lambda mechanism: mechanism.privacy(Adjacency.ZERO_OUT),
    )
    assert 1.0 / 3.0 <= found["step_epsilon"] < 1.0


@pytest.mark.parametrize(
    ("domain", "other"),
    [
        (L1Ball(dimension=2, radius=1.0), "discrete_laplace"),
        (L2Ball(dimension=2, radius=1.0), "discrete_gaussian"),
    ],
)
def test_vectors_in_a_ball_are_refused_with_the_mechanism_to_use(
    domain: Domain, other: str
) -> None:
    for steps in ("auto", 4.0):
        with pytest.raises(ParameterError, match=f"use the mechanism '{other}'"):
            build(domain, steps_per_radius=steps)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step_epsilon", 0.0),
        ("step_epsilon", "much"),
        ("nu", 0.0),
        ("nu", 1.0),
        ("nu", "half"),
        ("step_multiplier", 0.0),
        ("step_multiplier", 1e6),
        ("bits", 21),
        ("steps_per_radius", 1e9),
    ],
)
def test_bad_parameters_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=name):
        build(**{name: value})
