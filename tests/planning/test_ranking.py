"""The ranking: everyone at one sound budget, the smallest error first, reasons for the rest."""

import dataclasses
import functools
import math
import re
from typing import Any

import numpy as np
import pytest

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, L2Ball, clipped_domain, enclosing_ball
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.gaussian import Gaussian
from sottovoce.mechanisms.registry import CalibratedParameter, Registration
from sottovoce.mechanisms.release import NoisySums, ReleaseTerms, SecretSample
from sottovoce.planning.candidates import PlanSetting
from sottovoce.planning.plan import Ranking, rank
from sottovoce.privacy import accounting
from sottovoce.privacy.events import Repeated
from sottovoce.protocol.message import HEADER_BYTES


def setting(geometry: str = "l2", dimension: int = 100, **changes: Any) -> PlanSetting:
    asked = PlanSetting(
        domain=clipped_domain(geometry, dimension, 1.0),
        epsilon=2.0,
        delta=1e-5,
        terms=ReleaseTerms(adjacency=Adjacency.ZERO_OUT),
        rounds=20,
    )
    return dataclasses.replace(asked, **changes)


pytestmark = pytest.mark.usefixtures("ranked_once")
ranked = functools.cache(rank)  # for settings that several tests ask about
L1 = setting(domain=clipped_domain("l1", 6, 2.0), rounds=1)
LINF = setting(domain=clipped_domain("linf", 6, 2.0), epsilon=6.0, rounds=1)
SAMPLED = ReleaseTerms(
    adjacency=Adjacency.ZERO_OUT,
    sample=SecretSample(rate=0.02, scheme="poisson", hidden_by="own-records"),
)


def ranked_among(asked: PlanSetting, *kinds: str) -> Ranking:
    """As if no others were registered."""
    with pytest.MonkeyPatch.context() as patch:
        few = tuple(registry.find(kind) for kind in kinds)
        patch.setattr(registry, "registrations", lambda: few)
        return rank(asked)


@pytest.mark.parametrize(
    "asked",
    [
        setting(),
        pytest.param(setting(terms=SAMPLED), marks=pytest.mark.slow),
        setting(terms=ReleaseTerms(adjacency=Adjacency.REPLACE_ONE), epsilon=0.3),
        pytest.param(L1, marks=pytest.mark.slow),
        pytest.param(LINF, marks=pytest.mark.slow),
        pytest.param(setting("l1", 10, epsilon=4.0), marks=pytest.mark.slow),
        pytest.param(setting("linf", 3, epsilon=6.0, rounds=2), marks=pytest.mark.slow),
    ],
    ids=["l2", "sampled", "replace-one", "l1", "linf", "l1 in rounds", "linf in rounds"],
)
def test_everyone_keeps_the_budget_and_nearly_spends_it(asked: PlanSetting) -> None:
    ranking = ranked(asked)
    for one in ranking.candidates:
        domain = one.mechanism.input_domain
        assert domain in (asked.domain, enclosing_ball(asked.domain))
        built = registry.find(one.kind).build(domain, one.parameters)
        event = asked.terms(built)
        spent = accounting.epsilon(Repeated(event=event, count=asked.rounds), asked.delta)
        assert 0.98 * asked.epsilon <= spent <= asked.epsilon, one.kind
        assert one.spent.epsilon == spent
    errors = [one.mse for one in ranking.candidates]
    assert errors == sorted(errors)
    kinds = {one.kind for one in ranking.candidates} | {one.kind for one in ranking.left_out}
    assert kinds == {registration.kind for registration in registry.registrations()}


def test_planning_finds_what_calibration_finds() -> None:
    for one in ranked(setting()).candidates:
        registration = registry.find(one.kind)
        assert registration.calibrated_parameter is not None
        exact = registration.calibrated(
            setting().domain,
            one.setting,
            rounds=20,
            epsilon=2.0,
            delta=1e-5,
            event_of=setting().terms,
        )
        knob = registration.calibrated_parameter.parameter
        assert one.parameters[knob] == pytest.approx(exact[knob], rel=2e-3), one.kind


def test_one_entry_for_each_mechanism_is_its_best_or_as_good_in_fewer_bits() -> None:
    everything = ranked(setting())
    ranking = everything.best_of_each()
    kinds = [one.kind for one in ranking.candidates]
    assert len(kinds) == len(set(kinds))
    for one in ranking.candidates:
        of_kind = [other for other in everything.candidates if other.kind == one.kind]
        best = min(other.mse for other in of_kind)
        assert one.mse <= 1.005 * best
        assert all(
            one.bits_per_coordinate <= other.bits_per_coordinate
            for other in of_kind
            if other.mse == best
        )
    one_bit = next(one for one in ranking.candidates if one.kind == "gauss_hermite")
    assert one_bit.parameters["levels"] == 2
    assert one_bit.bytes_per_update == HEADER_BYTES + 13


def test_a_bit_budget_leaves_out_what_sends_more() -> None:
    ranking = ranked(setting(bits=2))
    assert all(one.bits_per_coordinate <= 2 for one in ranking.candidates)
    reasons = {one.kind: one.reason for one in ranking.best_of_each().left_out}
    assert reasons["gaussian"] == "it sends 32 bits per coordinate, above the limit of 2"
    assert "gauss_hermite" not in reasons


def test_bits_that_nothing_keeps_to_name_the_fewest() -> None:
    with pytest.raises(ParameterError, match=r"at most 0\.5 bits.*allow at least 1 bit"):
        ranked(setting(bits=0.5))


def test_a_budget_that_nothing_keeps_says_why() -> None:
    with pytest.raises(ParameterError, match=r"no mechanism keeps epsilon 1e-09.*not even"):
        ranked(setting(epsilon=1e-9, rounds=10**12))


def test_the_sentence_names_the_choice_and_what_people_expected() -> None:
    l2 = ranked(setting()).best_of_each()
    linf = ranked_among(LINF, "gaussian", "seeded_step", "staircase").best_of_each()
    assert l2.explanation.startswith(f"{l2.choice.kind} has the smallest error: ")
    for ranking in (l2, linf):
        assert re.search(r"staircase has [0-9.]+ times that error", ranking.explanation)
    assert l2.choice is l2.candidates[0]


def test_deployment_chooses_among_what_is_sampled_exactly() -> None:
    ranking = ranked(setting(exact=True)).best_of_each()
    assert ranking.candidates[0].mechanism.sampling == "float"
    assert ranking.choice.mechanism.sampling == "exact"
    first = ranking.candidates[0].kind
    assert f"sampled exactly, as deployment requires ({first} has less" in ranking.explanation
    assert "not sampled exactly" in ranking.explain(ranking.candidates[0])


def test_what_takes_long_is_ranked_only_when_asked_for() -> None:
    reasons = {one.kind: one.reason for one in ranked(setting()).left_out}
    assert "--designs" in reasons["metric_mvu"]
    assert registry.find("metric_mvu").slow_on == (L2Ball,)
    assert "metric_mvu" in {one.kind for one in ranked_among(L1, "metric_mvu").candidates}


def test_central_noise_is_for_those_who_add_noise() -> None:
    sample = SecretSample(rate=0.02, scheme="poisson", hidden_by="central-noise")
    terms = ReleaseTerms(adjacency=Adjacency.ZERO_OUT, visibility=NoisySums(), sample=sample)
    ranking = ranked(setting(terms=terms)).best_of_each()
    assert {one.mechanism.code_format().bits for one in ranking.candidates} == {32}
    reasons = {one.kind: one.reason for one in ranking.left_out}
    assert "'gauss_hermite' does not only add Gaussian or Laplace noise" in reasons["gauss_hermite"]


def test_a_plug_in_is_ranked_by_what_it_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but a registration: its settings come from its examples."""

    class Toy(Gaussian):
        __slots__ = ()

    registration = Registration(
        kind="toy",
        factory=Toy,
        summary="a toy",
        examples=({"noise_multiplier": 1.0},),
        example_domains=(L2Ball(dimension=2, radius=1.0),),
        automatic_in_sums={},
        settings_in_sums=(),
        calibrated_parameter=CalibratedParameter(
            parameter="noise_multiplier", more_private="larger"
        ),
        automatic={},
        settings=({},),
        coordinatewise=False,
        slow_on=(),
    )
    known = (registry.find("gaussian"), registration)
    monkeypatch.setattr(registry, "registrations", lambda: known)
    ranking: Ranking = rank(setting())
    mse = {one.kind: one.mse for one in ranking.candidates}
    # Whole updates and single coordinates predict the same.
    assert mse["toy"] == pytest.approx(mse["gaussian"], rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"delta": 1.0}, "delta must lie"),
        ({"rounds": 0}, "rounds must be"),
        ({"bits": 0}, "bits"),
        ({"domain": Box(dimension=2, lower=0.0, upper=1.0)}, "box centered at 0.*shift the data"),
    ],
)
def test_what_cannot_be_asked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        setting(**changes)


@pytest.mark.parametrize(
    ("geometry", "asked", "radius"), [("l1", L1, 2.0), ("linf", LINF, 2.0 * math.sqrt(6.0))]
)
def test_noise_for_euclidean_balls_is_ranked_on_the_ball_around_other_domains(
    geometry: str, asked: PlanSetting, radius: float
) -> None:
    (gaussian,) = ranked_among(asked, "gaussian").candidates
    domain = gaussian.mechanism.input_domain
    assert isinstance(domain, L2Ball)
    assert domain.radius == pytest.approx(radius)
    corner = np.full(6, 2.0) if geometry == "linf" else np.array([2.0, 0, 0, 0, 0, 0])
    assert domain.norm(corner) <= domain.radius
    sigma = gaussian.parameters["noise_multiplier"] * domain.radius
    assert gaussian.mse == pytest.approx(sigma**2)


def test_what_hides_against_zero_alone_is_not_sampled_from_own_records() -> None:
    """A client that leaves a record out sends the others' mean, not zero."""
    asked = setting(terms=SAMPLED)
    reasons = {one.kind: one.reason for one in ranked(asked).left_out}
    assert "replace-one" in reasons["cldp"]
    other = setting(terms=dataclasses.replace(SAMPLED, adjacency=Adjacency.REPLACE_ONE))
    assert "cldp" in {one.kind for one in ranked_among(other, "cldp").candidates}


def test_seeds_are_ranked_next_to_the_bits_whose_law_they_follow() -> None:
    kinds = ("gauss_hermite", "seeded_sign", "seeded_step")
    ranking = ranked_among(setting(dimension=5000), *kinds).best_of_each()
    by_kind = {one.kind: one for one in ranking.candidates}
    bits, seeds, step = (by_kind[kind] for kind in kinds)
    assert seeds.mse == pytest.approx(bits.mse, rel=0.005)
    assert step.mse > seeds.mse  # many rounds: a pure epsilon is the worse bargain
    for one in (seeds, step):
        assert one.bytes_per_update == HEADER_BYTES + 16
        assert one.bits_per_coordinate == 128 / 5000


def test_a_pure_epsilon_is_the_better_bargain_in_one_round() -> None:
    found = ranked(setting(dimension=100, epsilon=4.0, rounds=1)).best_of_each()
    assert found.candidates[0].kind == "seeded_step"
