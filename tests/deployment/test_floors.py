"""Floors of a site's policy: what (epsilon, delta) alone would let pass."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from one_site import BALL, KEYS, TABLE, a_site, asked, charges, never
from some_events import sampled

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import ParameterError, PolicyError
from sottovoce.deployment import policy as floors
from sottovoce.deployment.policy import Terms, from_table
from sottovoce.ledger.records import PendingCharge, Release
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.privacy.accounting import within
from sottovoce.privacy.events import GaussianNoise, OneBit, PrivacyEvent, PureDp, Repeated
from sottovoce.protocol.channels.channel import Direct

ZERO_OUT = Adjacency.ZERO_OUT
POLICY = from_table(TABLE)
TERMS = Terms(
    mechanism="gauss_hermite",
    level=Unit.CLIENT,
    adjacency=ZERO_OUT,
    channel=Direct(),
    cohort=5,
    grade="system",
)


def due(event: PrivacyEvent) -> PendingCharge:
    release = Release(unit=Unit.CLIENT, run="run", client="ada", round=1, uplink=0)
    return PendingCharge(release=release, attempt=0, event=event)


def test_next_to_no_noise_on_a_tiny_sample_keeps_epsilon_and_delta_and_is_refused() -> None:
    attack = sampled(GaussianNoise(mu=1e5, adjacency=ZERO_OUT), 1e-7)
    assert within(Repeated(event=attack, count=9), POLICY.delta, 1e-9)  # so it passes without floor
    with pytest.raises(PolicyError, match=r"sampled with probability 1e-07.*is 0.0001"):
        POLICY.check_spending([], [due(attack)])
    lower = dataclasses.replace(POLICY, smallest_sampling_rate=1e-12)
    with pytest.raises(PolicyError, match=r"a record that is sampled epsilon 5.*'epsilon_if_sam"):
        lower.check_spending([], [due(attack)])


def test_a_site_refuses_it_before_anyone_trains(tmp_path: Path) -> None:
    silent = GaussHermite(input_domain=BALL, levels=2, noise_multiplier=1e-5)
    site = a_site(tmp_path, level=Unit.SAMPLE)
    request = asked(mechanism=silent, unit=Unit.SAMPLE, record_sampling_rate=1e-7)
    with pytest.raises(PolicyError, match=r"is sampled"):
        site.answer(request, KEYS, never, keep_from=1)
    assert charges(site) == []


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_what_people_train_with_passes(adjacency: Adjacency, delta: float) -> None:
    mu = (1.0 if adjacency is ZERO_OUT else 2.0) / 0.4
    policy = dataclasses.replace(POLICY, delta=delta)
    for event in (
        GaussianNoise(mu=mu, adjacency=adjacency),
        OneBit(shift=mu, dimension=1000, adjacency=adjacency),
    ):
        floors.check_sampled(
            sampled(event, 0.01),
            delta=delta,
            epsilon_if_sampled=policy.largest_if_sampled,
            smallest_sampling_rate=policy.least_sampling_rate,
        )


def test_without_a_sample_the_limit_of_a_round_is_all_there_is() -> None:
    policy = dataclasses.replace(POLICY, epsilon_per_round=8.0, epsilon_if_sampled=0.1)
    policy.check_spending([], [due(PureDp(epsilon=8.0, adjacency=ZERO_OUT))])


def test_a_site_that_allows_dear_rounds_allows_them_on_samples_too() -> None:
    dear = sampled(PureDp(epsilon=60.0, adjacency=ZERO_OUT), 0.5)
    policy = dataclasses.replace(POLICY, epsilon_per_round=70.0, epsilon_total=70.0)
    policy.check_spending([], [due(dear)])
    stricter = dataclasses.replace(policy, epsilon_if_sampled=59.9)
    with pytest.raises(PolicyError, match=r"is 59.9; add noise"):
        stricter.check_spending([], [due(dear)])


def test_a_smallest_noise_multiplier_holds_where_there_is_one() -> None:
    policy = dataclasses.replace(POLICY, smallest_noise_multiplier=0.5)
    for noise in (None, 0.5, 3.0):
        policy.check_terms(dataclasses.replace(TERMS, noise_multiplier=noise))
    with pytest.raises(PolicyError, match=r"multiplier is 0.4999, but 'smallest_.*' is 0.5"):
        policy.check_terms(dataclasses.replace(TERMS, noise_multiplier=0.4999))
    assert policy.mechanisms_without_noise_floor == []
    mixed = dataclasses.replace(policy, mechanisms=("gauss_hermite", "cldp", "mvu"))
    assert mixed.mechanisms_without_noise_floor == ["cldp", "mvu"]
    with pytest.raises(PolicyError, match=r"has no effect: none of .*cldp, mvu"):
        dataclasses.replace(policy, mechanisms=("cldp", "mvu"))


def test_the_noise_of_an_order_is_what_counts(tmp_path: Path) -> None:
    site = a_site(tmp_path, smallest_noise_multiplier=8.1)
    with pytest.raises(PolicyError, match=r"noise multiplier is 8, but"):
        site.answer(asked(), KEYS, never, keep_from=1)


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon_if_sampled": 0.0},
        {"smallest_sampling_rate": 1.5},
        {"smallest_noise_multiplier": -1.0},
        {"rounds_per_day": 0},
        {"rounds_per_day": 1.5},
        {"warn_at": 0.0},
        {"warn_at": True},
    ],
)
def test_floors_that_mean_nothing_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(change))):
        from_table({**TABLE, **change})
