"""The studies of reconstruction and attributes: whole, small, on files made here.

Whole they are slow; papers/tests/test_udp_mia.py has one that trains in every test run.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_data import images, labels, save

from sottovoce.auditing.reconstruction_scores import (
    MEAN_IMAGE,
    difference,
    gains,
    interval,
    score_baselines,
    score_reconstructions,
    summary,
)
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import ParameterError
from sottovoce.privacy import accounting
from sottovoce_papers import study, target_models
from sottovoce_papers.experiment import Settings, find
from sottovoce_papers.kept_cells import KeptCells
from sottovoce_papers.studies import udp_aia
from sottovoce_papers.studies.udp_dra import findings as reconstruction_findings
from sottovoce_papers.studies.udp_dra import study as udp_dra
from sottovoce_papers.udp_mechanisms import (
    DELTA,
    EPSILONS,
    GAUSSIAN,
    NO_PRIVACY,
    PRIVATE,
    STAIRCASE,
    MechanismAtBudget,
    mechanisms_at_budgets,
)

TINY_DRA = udp_dra.ReconstructionPlan(
    epsilons=(8.0,),
    updates={1: 3, 2: 2},
    iterations=3,
    weights=(1e-3, 1.0),
    rows=40,
    rounds=1,
    rates=(0.1, 0.3),
    epochs=1,
    victims=5,
)
TINY_AIA = udp_aia.InferencePlan(
    epsilons=(8.0,), seeds=2, num_train=None, num_test=None, rounds=1, rates=(0.1, 0.3), epochs=1
)


def _settings(name: str, folder: Path) -> Settings:
    settings = find(name).settings(fast=True, data_dir=folder, device="cpu")
    return Settings(**{**{f: getattr(settings, f) for f in settings.__slots__}, "folder": folder})


def test_every_printed_value_is_there() -> None:
    cells = {(one.mechanism, one.epsilon) for one in mechanisms_at_budgets(EPSILONS)}
    printed = {cell for cell in cells if cell[0] != "one bit"}
    assert set(udp_dra.TABLE_7) == set(udp_dra.TABLE_9) == set(udp_aia.TABLE_8) == printed
    assert udp_dra.TABLE_7[STAIRCASE, 2.0] == (2.3399, 8.37, 0.0096)
    assert udp_aia.TABLE_8[GAUSSIAN, 8.0] == (0.8615, 0.8544)


@pytest.mark.parametrize("mechanism", PRIVATE)
@pytest.mark.parametrize("records", [1, 10])
def test_one_release_spends_the_budget_and_no_more(mechanism: str, records: int) -> None:
    domain = L2Ball(dimension=1000, radius=1.0, records=records)
    found = target_models.for_one_release(
        MechanismAtBudget(mechanism=mechanism, epsilon=2.0), domain
    )
    spent = accounting.epsilon(found.privacy(Adjacency.ZERO_OUT), DELTA)
    assert 1.99 < spent <= 2.0


@pytest.mark.slow
def test_reconstruction_from_end_to_end_and_again_from_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(
        tmp_path / "cifar10.npz",
        x_train=images(60, 32, 32, 3),
        y_train=labels(60, 10),
        x_test=images(61, 32, 32, 3),
        y_test=labels(61, 10),
    )
    monkeypatch.setattr(udp_dra.ReconstructionPlan, "of", lambda settings: TINY_DRA)
    settings = _settings("udp-dra", tmp_path)
    first = udp_dra.udp_dra(settings)
    mechanisms = 1 + len(PRIVATE)
    # Two baselines for each batch; an untrained model, and one inversion of a trained one.
    assert len(first.rows) == 2 * (2 + mechanisms) + (2 + 1 + mechanisms + 1)
    assert len({tuple(row) for row in first.rows}) == 1
    for row in first.rows:
        assert float(row["mse_low"]) <= float(row["mse"]) <= float(row["mse_high"])  # type: ignore[arg-type]
    assert "the staircase's MSE minus the Gaussian's" in first.verdict
    assert [figure.name for figure in first.figures] == [
        "pictures-inversion-1",
        "pictures-inversion-2",
        "pictures-learned-1",
    ]
    assert "<image " in first.figures[0].chart.svg()

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a finished cell was computed again")

    monkeypatch.setattr("sottovoce_papers.studies.udp_dra.cells.invert", never)
    monkeypatch.setattr("sottovoce_papers.target_models._train", never)
    again = udp_dra.udp_dra(settings)
    assert again.rows == first.rows
    assert again.verdict == first.verdict


@pytest.mark.slow
def test_attributes_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(
        tmp_path / "utkface.npz",
        x=images(60, 48, 48),
        race=labels(60, 5),
        gender=np.arange(60) // 3 % 2,
        age=np.full(60, 30),
    )
    monkeypatch.setattr(udp_aia.InferencePlan, "of", lambda settings: TINY_AIA)
    tuned: list[tuple[float, ...]] = []
    original = target_models.target_model

    def spied(base: Any, one: MechanismAtBudget, rates: Any, *, seed: int) -> Any:
        tuned.append(tuple(rates))
        return original(base, one, rates, seed=seed)

    monkeypatch.setattr(target_models, "target_model", spied)
    result = study.run(find("udp-aia"), _settings("udp-aia", tmp_path), tmp_path / "out")
    rows = {(row["mechanism"], row["epsilon"]): row for row in result["rows"]}
    assert len(rows) == 1 + len(PRIVATE) + 3
    assert rows[NO_PRIVACY, None]["paper_accuracy"] == 0.86
    assert rows["majority", None]["target_accuracy"] is None
    assert [len(rates) for rates in tuned] == [2] * 5 + [1] * 5  # tuned with the first seed only
    for guess in ("majority", "untrained model", "raw rows"):
        assert f"Accuracy against '{guess}'" in result["verdict"]
    assert (tmp_path / "out" / "index.html").is_file()


def _cells(mse: dict[tuple[str, float | None], list[float]]) -> list[dict[str, Any]]:
    return [
        {
            "part": udp_dra.INVERSION,
            "batch": 1,
            "updates": 4,
            "mechanism": mechanism,
            "epsilon": epsilon,
            "scores": {
                "mse": values,
                "mae": values,
                "psnr": values,
                "ssim": [1.0 - value for value in values],
            },
            "pictures": [],
        }
        for (mechanism, epsilon), values in mse.items()
    ]


def test_the_verdict_says_who_beats_the_mean_image_and_whether_the_staircase_differs() -> None:
    base = {
        (MEAN_IMAGE, None): [0.5, 0.6, 0.5, 0.6],
        (NO_PRIVACY, None): [0.1, 0.11, 0.1, 0.12],
        (GAUSSIAN, 2.0): [0.7, 0.8, 0.7, 0.9],
    }
    higher = reconstruction_findings.verdict(
        _cells({**base, (STAIRCASE, 2.0): [0.8, 0.91, 0.8, 1.0]})
    )
    assert "beaten in MSE and SSIM with no privacy" in higher
    assert "not beaten with Gaussian (DP-SGD) at epsilon 2, staircase at epsilon 2" in higher
    assert "higher in 1, lower in 0, no clear difference in 0 of 1" in higher
    same = reconstruction_findings.verdict(_cells({**base, (STAIRCASE, 2.0): [0.8, 0.7, 0.8, 0.8]}))
    assert "higher in 0, lower in 0, no clear difference in 1 of 1" in same


def test_scores_are_of_updates_and_in_the_best_order() -> None:
    generator = np.random.default_rng(0)
    truth = generator.uniform(-0.5, 0.5, (3, 4, 1, 12, 12)).astype(np.float32)
    shuffled = truth[:, ::-1]
    perfect = score_reconstructions(truth, shuffled)
    assert perfect.ssim is not None
    np.testing.assert_allclose(perfect.mse, 0.0)
    np.testing.assert_allclose(perfect.ssim, 1.0)
    found = summary(perfect)
    assert found["mse"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    plain = score_baselines(truth, np.zeros((5, 1, 12, 12)))
    assert all(value["low"] > 0.0 for value in gains(perfect, plain[MEAN_IMAGE]).values())
    flat = score_reconstructions(truth.reshape(3, 4, 144), shuffled.reshape(3, 4, 144))
    assert summary(flat)["ssim"] is None
    with pytest.raises(ParameterError, match="needs at least two updates, got 1"):
        interval(np.array([1.0]))


def test_the_difference_of_two_samples_has_the_interval_of_welch() -> None:
    from scipy import stats

    generator = np.random.default_rng(1)
    one, two = generator.normal(size=30), generator.normal(1.0, 3.0, size=50)
    expected = stats.ttest_ind(one, two, equal_var=False).confidence_interval(0.95)
    found = difference(one, two)
    assert (found["low"], found["high"]) == pytest.approx((expected.low, expected.high))


def test_kept_cells_are_found_by_key_and_version(tmp_path: Path) -> None:
    cells = KeptCells(tmp_path, version=1)
    key = {"mechanism": "x", "epsilon": None, "weights": (1, 2)}
    assert cells.find(key) is None
    assert cells.keep(key, {"a": (1.5, 2)}) == {"a": [1.5, 2]}
    assert cells.find(key) == {"a": [1.5, 2]}
    assert cells.find({**key, "epsilon": 2.0}) is None
    assert KeptCells(tmp_path, version=2).find(key) is None
    (file,) = (tmp_path / "cells").iterdir()
    file.write_text("{")
    assert cells.find(key) is None  # damaged: found anew


def test_the_register_is_read_without_torch() -> None:
    program = (
        "import sys; from sottovoce_papers.experiment import find; "
        "found = [find(name).data for name in ('udp-dra', 'udp-aia')]; "
        "print(found, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['cifar10', 'utkface-race'] False"


def test_fast_versions_say_what_they_leave_out() -> None:
    cases = (
        (udp_dra, udp_dra.ReconstructionPlan, "udp-dra"),
        (udp_aia, udp_aia.InferencePlan, "udp-aia"),
    )
    for module, plans, name in cases:
        plan = plans.of(find(name).settings(fast=True))
        full = plans.of(find(name).settings())
        assert module._reduced(plan).endswith(".")
        assert full.epsilons == EPSILONS
        assert len(full.rates) > 1
