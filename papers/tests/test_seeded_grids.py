"""Seeded updates in a secret order, or all shuffled: whole epochs, 64 bytes, both epsilons."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_training import fake_train

from sottovoce.core.domains import L2Ball
from sottovoce.federated.cohorts import Epochs, Everyone
from sottovoce.mechanisms import registry
from sottovoce.protocol.channels.secret_order import SecretOrder
from sottovoce.protocol.channels.shuffler import Shuffler
from sottovoce.runs.spec import RunSpec
from sottovoce_papers.experiment import find
from sottovoce_papers.grid_files import (
    GridFile,
    TrainingGrid,
    fast_grid,
    full_grid,
    read_grid_files,
)
from sottovoce_papers.learning import study as learning_study
from sottovoce_papers.sweep import Choice, expand

NAME, BESIDE = "seeded-mnist", "shuffled-mnist"
SAMPLES = 60_000
MOST_BYTES = 64


def the_grid_file(name: str = NAME) -> GridFile:
    (found,) = (grid_file for grid_file in read_grid_files() if grid_file.name == name)
    return found


def on_channel(kind: str, grid: TrainingGrid) -> list[RunSpec]:
    """The specs of both stages on a channel."""
    stage = [Choice(value="held out", overrides=grid.held_out)]
    trials = [*expand(grid.base, grid.axes), *expand(grid.base, {**grid.axes, "stage": stage})]
    return [t.spec for t in trials if t.spec.channel.kind == kind]


def in_secret(grid: TrainingGrid) -> list[RunSpec]:
    return on_channel("secret_order", grid)


@pytest.mark.parametrize(
    ("make", "name"), [(full_grid, NAME), (fast_grid, NAME), (full_grid, BESIDE)]
)
def test_epochs_are_whole_and_few_enough_in_either_stage(
    make: Callable[[GridFile], TrainingGrid], name: str
) -> None:
    """Held-out data is a tenth up to chance, of which four deviations must not matter."""
    specs = in_secret(make(the_grid_file(name)))
    assert specs
    for spec in specs:
        channel, epochs = spec.channel.build(), spec.sampling.build()
        assert isinstance(channel, SecretOrder)
        assert isinstance(epochs, Epochs)
        whole, held_out = spec.data.num_train or SAMPLES, spec.data.validation_fraction or 0.0
        spread = 4.0 * (whole * held_out * (1.0 - held_out)) ** 0.5
        for count in (-spread, spread):
            clients = round(whole * (1.0 - held_out) + count)
            assert clients >= channel.minimum_clients
            assert spec.rounds % epochs.rounds_of_an_epoch(clients) == 0
            times = epochs.most_participations(clients, spec.rounds)
            assert times * _payload_bytes(spec) <= MOST_BYTES


def test_all_clients_are_shuffled_in_each_round_with_the_same_seeds_as_in_the_secret_order() -> (
    None
):
    grid = full_grid(the_grid_file(BESIDE))
    shuffled = on_channel("shuffler", grid)
    assert len(shuffled) == len(in_secret(grid)) > 0
    for spec, beside in zip(shuffled, in_secret(grid), strict=True):
        channel, other = spec.channel.build(), beside.channel.build()
        assert isinstance(channel, Shuffler)
        assert isinstance(other, SecretOrder)
        assert isinstance(spec.sampling.build(), Everyone)
        assert channel.minimum_clients == 50_000 == other.minimum_clients
        assert spec.rounds * _payload_bytes(spec) <= MOST_BYTES
        assert spec.mechanism == beside.mechanism
        assert (spec.privacy.adjacency, spec.privacy.delta) == ("replace-one", 1e-6)
        scale = beside.privacy.message_norm / spec.privacy.message_norm
        rate = beside.algorithm.parameters["local_learning_rate"]
        assert rate == pytest.approx(scale * spec.algorithm.parameters["local_learning_rate"])


def _payload_bytes(spec: RunSpec) -> int:
    registration = registry.find(spec.mechanism.kind)
    domain = L2Ball(dimension=1000, radius=spec.privacy.message_norm)
    given = registration.resolve(domain, {**spec.mechanism.parameters, "epsilon": 1.0})
    return registration.build(domain, given).code_format().payload_bits(domain.dimension) // 8


def test_the_mechanism_is_left_to_calibration_and_seeds_are_really_drawn() -> None:
    for spec in in_secret(full_grid(the_grid_file())):
        assert spec.mechanism.kind == "seeded_step"
        assert "epsilon" not in spec.mechanism.parameters
        assert spec.runtime.messages == "packed"
        assert (spec.privacy.adjacency, spec.privacy.delta) == ("replace-one", 1e-6)


def train_in_secret(spec: RunSpec, **options: Any) -> dict[str, Any]:
    """As a channel that hides messages reports it."""
    found = fake_train(spec, **options)
    local = 7.0 if spec.channel.kind == "secret_order" else None
    return {**found, "local_epsilon": local, "payload_bytes_up_per_client": 64.0}


def test_the_page_shows_local_epsilon_and_bytes_of_a_client(tmp_path: Path) -> None:
    settings = dataclasses.replace(find(NAME).settings(fast=True), folder=tmp_path)
    findings = learning_study.study(the_grid_file(), settings, train_in_secret)
    assert not findings.failures
    assert "channel.minimum_clients is" in findings.reduced
    (row,) = (row for row in findings.rows if row["mechanism"] == "seeds in a secret order")
    assert (row["local_epsilon"], row["payload_bytes_up_per_client"]) == (7.0, 64.0)
