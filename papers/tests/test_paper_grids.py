"""The grid files of FEMNIST and MVU: every spec is valid, and stages are alike."""

import dataclasses
from pathlib import Path

import pytest
from fake_training import fake_train

from sottovoce.federated.cohorts import Epochs
from sottovoce.mechanisms import registry
from sottovoce.runs.spec import RunSpec
from sottovoce_papers.experiment import find
from sottovoce_papers.grid_files import GridFile, fast_grid, full_grid, read_grid_files
from sottovoce_papers.learning import study as learning_study
from sottovoce_papers.sweep import Choice, expand

NAMES = ("imvu-femnist", "mvu-mnist-linear", "mvu-mnist-convnet")
# Training units as loaded: FEMNIST's writers, nine tenths of 300; MNIST's samples.
WHOLE = {"imvu-femnist": 270, "mvu-mnist-linear": 60_000, "mvu-mnist-convnet": 60_000}


def named(name: str) -> GridFile:
    (found,) = (grid_file for grid_file in read_grid_files() if grid_file.name == name)
    return found


def participations(spec: RunSpec, whole: int) -> tuple[int, float]:
    """How often a client is asked, and how full the last epoch is."""
    count = spec.data.num_train or whole
    count -= round(count * (spec.data.validation_fraction or 0.0))
    epochs = spec.sampling.build()
    assert isinstance(epochs, Epochs)
    return (
        epochs.most_participations(count, spec.rounds),
        spec.rounds / epochs.rounds_of_an_epoch(count),
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [full_grid, fast_grid])
def test_tuning_asks_clients_as_often_as_training_does(name: str, make: object) -> None:
    assert callable(make)
    grid = make(named(name))
    stage = [Choice(value="held out", overrides=grid.held_out)]
    final = expand(grid.base, grid.axes)
    tuning = expand(grid.base, {**grid.axes, "stage": stage})
    assert len(final) == len(tuning)
    asked = {participations(trial.spec, WHOLE[name]) for trial in [*final, *tuning]}
    assert len(asked) == 1
    assert all(often == full for often, full in asked)  # whole epochs: nobody pays for less


@pytest.mark.parametrize("name", NAMES)
def test_every_mechanism_is_registered_and_left_to_calibration(name: str) -> None:
    grid = full_grid(named(name))
    for trial in expand(grid.base, {"mechanism": grid.axes["mechanism"]}):
        registration = registry.find(trial.spec.mechanism.kind)
        registration.check_names(trial.spec.mechanism.parameters)
        assert registration.calibrated_parameter is not None
        assert registration.calibrated_parameter.parameter not in trial.spec.mechanism.parameters
        assert trial.spec.runtime.messages == "none"


@pytest.mark.parametrize("name", NAMES)
def test_the_reduced_version_says_what_it_leaves_out(name: str, tmp_path: Path) -> None:
    settings = dataclasses.replace(find(name).settings(fast=True), folder=tmp_path)
    findings = learning_study.study(named(name), settings, fake_train)
    assert "rounds is" in findings.reduced
    assert "2 seeds, not 5" in findings.reduced
    assert {figure.name for figure in findings.figures} >= {"accuracy-by-epsilon"}
    assert not findings.failures


def test_femnist_has_the_seven_series_of_its_two_figures() -> None:
    values = [choice.value for choice in full_grid(named("imvu-femnist")).axes["mechanism"]]
    assert len(values) == 7
    assert {"one bit", "two bits", "three bits", "four bits", "sign"} < set(values)
