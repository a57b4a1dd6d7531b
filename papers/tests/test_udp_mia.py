import dataclasses
from pathlib import Path

import numpy as np
import pytest

from sottovoce.auditing.attacks.roc import IntervalEstimate
from sottovoce.learning.datasets import Dataset
from sottovoce_papers.experiment import Row, find
from sottovoce_papers.studies.udp_mia import grid as mia_grid
from sottovoce_papers.studies.udp_mia import trial as mia_trial
from sottovoce_papers.studies.udp_mia.grid import (
    FULL,
    OVERFITTED,
    PRINTED,
    AttackedRecipe,
    AttackScale,
    cells,
    spec_of,
)
from sottovoce_papers.studies.udp_mia.study import MEASURES, udp_mia, verdict
from sottovoce_papers.studies.udp_mia.trial import Measured
from sottovoce_papers.udp_mechanisms import GAUSSIAN, LAPLACE, NO_PRIVACY, ONE_BIT, STAIRCASE

TINY = AttackScale(
    candidates=200,
    known=20,
    shadows=8,
    rounds=3,
    overfitting_rounds=60,
    overfitting_rate=0.5,
    mechanisms=(GAUSSIAN,),
    epsilons=(4.0,),
    canary_queries=1,
    canary_steps=2,
)


def pool(count: int) -> Dataset:
    """Small images and labels that have nothing to do with them: to be learned by heart."""
    generator = np.random.default_rng(0)
    features = generator.uniform(-0.5, 0.5, (count, 3, 8, 8)).astype(np.float32)
    labels = generator.integers(0, 2, count)
    return Dataset(
        name="small",
        train_features=features,
        train_labels=labels,
        test_features=features[:4],
        test_labels=labels[:4],
        num_classes=2,
    )


@pytest.mark.slow
def test_what_is_learned_by_heart_is_found_and_models_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mia_trial, "_pool", pool)
    monkeypatch.setattr(mia_grid, "FAST", TINY)
    found = find("udp-mia")
    assert (found.trains, found.data) == (True, "cifar10")
    asked = found.settings(fast=True, seeds=2, device="cpu")
    settings = dataclasses.replace(asked, folder=tmp_path)
    findings = udp_mia(settings)
    assert len(findings.rows) == 3 * 4
    (online,) = [
        row
        for row in findings.rows
        if row["attack"] == "lira-online" and row["mechanism"] == OVERFITTED
    ]
    assert isinstance(online["auc_low"], float)
    assert online["auc_low"] > 0.6
    assert isinstance(online["members_accuracy"], float)
    assert online["members_accuracy"] > 0.95
    assert isinstance(online["members_accuracy_low"], float)
    assert online["members_accuracy_low"] < online["members_accuracy"]
    assert online["printed_tpr"] == 0.126
    assert online["tpr_at_0.1_percent"] is None  # a hundred non-members cannot show it
    assert len(list((tmp_path / "shadows").iterdir())) == 3 * 2

    def never(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr("sottovoce.auditing.run_membership.train_many", never)
    assert udp_mia(settings).rows == findings.rows


def test_the_grid_is_table_six_and_what_it_lacks() -> None:
    grid = cells(FULL)
    assert len(grid) == 2 + 4 * 4
    for attack in ("shokri", "lira", "canary"):
        for cell in grid:
            printed = (attack, cell.mechanism, cell.epsilon) in PRINTED
            assert printed == (cell.mechanism not in (ONE_BIT, NO_PRIVACY))
    assert PRINTED["canary", LAPLACE, 4.0] == (0.020, 0.512, 0.498)
    assert PRINTED["lira", STAIRCASE, 2.0] == (0.008, 0.504, 0.491)


def test_specs_are_those_of_the_paper_where_it_speaks() -> None:
    spec = spec_of(AttackedRecipe(mechanism=STAIRCASE, epsilon=6.0), FULL, "cpu")
    assert (spec.rounds, spec.data.clients, spec.privacy.epsilon) == (150, 10, 6.0)
    assert (spec.privacy.record_sampling_rate, spec.privacy.delta) == (0.05, 1e-5)
    assert (
        spec_of(AttackedRecipe(mechanism=OVERFITTED, epsilon=None), FULL, "cpu").privacy.epsilon
        is None
    )


def test_targets_that_agree_by_luck_prove_nothing() -> None:
    together = IntervalEstimate(value=0.02, low=0.004, high=0.05, chance=0.01)
    found = Measured.of([0.02, 0.02, 0.02], together)
    assert (found.value, found.low, found.high) == (0.02, 0.004, 0.05)
    apart = Measured.of([0.0, 0.5, 1.0], together)
    assert (apart.low, apart.high) == (0.0, 1.0)


def row_of(attack: str, epsilon: float | None, tpr: tuple[float, float, float]) -> Row:
    row: dict[str, str | float | None] = {
        "attack": attack,
        "mechanism": "Laplace" if epsilon else NO_PRIVACY,
        "epsilon": epsilon,
        **{f"members_accuracy{end}": 0.9 for end in ("", "_low", "_high")},
        **{f"others_accuracy{end}": 0.4 for end in ("", "_low", "_high")},
    }
    for name in MEASURES:
        value, low, high = tpr if name == "tpr_at_1_percent" else (0.5, 0.4, 0.6)
        if name == "tpr_at_0.1_percent":
            row |= dict.fromkeys((name, f"{name}_low", f"{name}_high"))
        else:
            row |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return row


def test_the_verdict_says_where_chance_is_beaten_and_where_not() -> None:
    open_row = row_of("lira-online", None, (0.2, 0.1, 0.3))
    private = row_of("canary", 8.0, (0.03, 0.02, 0.04))
    quiet = row_of("shokri", 8.0, (0.01, 0.005, 0.02))
    said = verdict([open_row, private, quiet])
    assert "lira-online beats chance with 0.200 [0.100, 0.300], 20.0 times chance" in said
    assert "5 of 6 intervals contain chance" in said
    assert "canary on Laplace at epsilon 8: TPR at 1% FPR 0.030 [0.020, 0.040]" in said
    assert "Below" not in said
    assert "Above" not in verdict([open_row, quiet])
