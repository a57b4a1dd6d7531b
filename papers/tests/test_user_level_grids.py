"""The grids of user-level studies: equal budgets, a sum that can be reached, and named users."""

import pytest

from sottovoce_papers.grid_files import GridFile, fast_grid, full_grid, read_grid_files
from sottovoce_papers.sweep import Choice, expand

USERS = {"secure-sum-mnist": 539, "secure-sum-femnist": 486, "secure-sum-cifar10": 1000}


@pytest.fixture(scope="module")
def grid_files() -> dict[str, GridFile]:
    return {one.name: one for one in read_grid_files() if one.name in USERS}


@pytest.mark.parametrize("name", USERS)
def test_mechanisms_differ_in_trust_and_not_in_what_epsilon_means(
    grid_files: dict[str, GridFile], name: str
) -> None:
    grid = full_grid(grid_files[name])
    assert str(USERS[name]) in grid_files[name].experiment.population
    stage = [Choice(value=None, overrides={}), Choice(value="held out", overrides=grid.held_out)]
    trials = expand(grid.base, {**grid.axes, "stage": stage})
    privacy = [trial.spec.privacy for trial in trials]
    assert {(one.level, one.adjacency, one.delta) for one in privacy} == {
        ("client", "zero-out", 1e-5)
    }
    owners = trials[0].spec.data.clients is None
    for trial in trials:
        assert trial.spec.sampling.kind == "everyone"
        held = trial.spec.data.validation_fraction if owners else None
        least = trial.spec.channel.parameters.get("minimum_clients", 0)
        assert least <= round(USERS[name] * (1.0 - (held or 0.0)))
        assert (least >= 100) == (trial.key["mechanism"] == "one bit behind a secure sum")


@pytest.mark.parametrize("name", USERS)
def test_the_reduced_version_has_enough_clients(grid_files: dict[str, GridFile], name: str) -> None:
    grid = fast_grid(grid_files[name])
    for trial in expand(grid.base, grid.axes):
        users = trial.spec.data.num_owners or trial.spec.data.clients or 0
        assert users >= trial.spec.channel.parameters.get("minimum_clients", 0)
