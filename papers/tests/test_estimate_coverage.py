"""Coverage of intervals: the laws' own numbers, and a small fixed part of the study."""

from typing import Any

import numpy as np
import pytest

from sottovoce_papers import experiment as register
from sottovoce_papers.studies.estimate_coverage import coverage
from sottovoce_papers.studies.estimate_coverage import study as estimate_coverage
from sottovoce_papers.studies.estimate_coverage.coverage import LAWS, CoverageCase, measure_coverage

BY_NAME = {law.name: law for law in LAWS}


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_a_laws_own_numbers_are_those_of_many_draws(law: coverage.Mixture) -> None:
    values = law.draw(np.random.default_rng(1), 200_000)
    assert law.mean == pytest.approx(float(values.mean()), abs=0.004)
    assert law.variance == pytest.approx(float(values.var()), abs=0.003)
    for q in (0.1, 0.4, 0.9):
        assert law.quantile(q) == pytest.approx(float(np.quantile(values, q)), abs=0.01)
    shares = np.histogram(values, 5, (0.0, 1.0))[0] / len(values)
    own = [law.share(k / 5, (k + 1) / 5) for k in range(5)]
    assert own == pytest.approx(list(shares), abs=0.005)


SMALL: list[tuple[str, str, int, dict[str, Any]]] = [
    ("mean", "skewed", 200, {"epsilon": 1.0, "mechanism": "mvu", "bits": 1}),
    ("mean", "constant at the end", 200, {"epsilon": 1.0}),
    ("mean", "two points", 200, {"epsilon": 2.0, "mechanism": "laplace"}),
    ("variance", "skewed", 2000, {"epsilon": 1.0}),
    ("variance", "constant", 1000, {"epsilon": 2.0}),
    ("histogram", "half zeros", 500, {"epsilon": 1.0, "bins": 4}),
    ("quantiles", "uniform", 2000, {"epsilon": 2.0, "quantiles": (0.25, 0.5)}),
    ("quantiles", "bimodal", 1000, {"epsilon": 5.0, "quantiles": (0.25, 0.5)}),
    ("location", "uniform", 200, {"epsilon": 2.0, "bits": 2, "cells": 2}),
]


@pytest.mark.parametrize(("statistic", "law", "people", "options"), SMALL)
def test_intervals_cover(statistic: str, law: str, people: int, options: dict[str, Any]) -> None:
    """Of 200 intervals at 95%, 182 to 198: four standard deviations, for a fixed seed."""
    case = CoverageCase(statistic=statistic, law=BY_NAME[law], people=people, options=options)
    found = measure_coverage(case, 200)
    assert found
    for one in found:
        assert 0.91 <= one.coverage <= 0.99, one


@pytest.mark.parametrize("law", ["two points", "half zeros", "constant"])
def test_quantiles_at_atoms_cover_at_least_and_say_so(law: str) -> None:
    options = {"epsilon": 3.0, "quantiles": (0.25,)}
    (found,) = measure_coverage(
        CoverageCase(statistic="quantiles", law=BY_NAME[law], people=2000, options=options), 100
    )
    assert found.coverage >= 0.95
    assert found.noted > 50


def test_where_noise_is_too_large_there_is_no_interval() -> None:
    case = CoverageCase(
        statistic="quantiles", law=BY_NAME["uniform"], people=200, options={"epsilon": 0.5}
    )
    assert measure_coverage(case, 2) == []


def test_the_study_runs_and_judges_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = estimate_coverage.GROUPS
    monkeypatch.setattr(estimate_coverage, "GROUPS", ((*groups[0][:3], groups[0][3][:1]),))
    monkeypatch.setattr(estimate_coverage, "FAST_REPETITIONS", 10)
    found = register.find("estimate-coverage")
    findings = found.run(found.settings(fast=True))
    (row,) = findings.rows
    assert row["statistic"] == "mean"
    assert row["mechanism"] == "mvu"
    assert 0.5 <= float(str(row["coverage"])) <= 1.0
    assert "intervals without a caveat" in findings.verdict


def test_the_grid_holds_everything_that_is_offered() -> None:
    from sottovoce.analytics import histogram, quantiles, scalar_randomizer

    offered = {("mean", name) for name in scalar_randomizer.MECHANISMS}
    offered |= {("variance", name) for name in scalar_randomizer.MECHANISMS}
    offered |= {("histogram", name) for name in histogram.MECHANISMS}
    offered |= {("quantiles", name) for name in quantiles.MECHANISMS}
    offered |= {("location", "metric_mvu")}
    measured_ = {
        (case.statistic, str(case.options.get("mechanism", "metric_mvu")))
        for case in estimate_coverage.cases(fast=False)
    }
    assert measured_ == offered
