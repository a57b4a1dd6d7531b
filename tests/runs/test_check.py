"""`check` says what the run then reports, finds every refusal, and leaves no trace."""

import math
from pathlib import Path
from typing import Any

import pytest

import sottovoce
from sottovoce.core.errors import ConfigError
from sottovoce.core.files import finite
from sottovoce.ledger.ledger import Ledger
from sottovoce.runs.loading import load
from sottovoce.runs.runner import launch

EXAMPLES = Path(__file__).parents[2] / "examples"
SEEDED = {"randomness": "seeded", "rounds": 2}
FEW = {**SEEDED, "data.clients": 12}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "calibrated": ("one_bit", {**FEW, "mechanism": {"kind": "gaussian"}}),
    "halts": ("one_bit", {**FEW, "rounds": 9, "mechanism.noise_multiplier": 2.0}),
    "secure sum": (
        "secure_sum",
        {**FEW, "channel.minimum_clients": 2, "mechanism.noise_multiplier": 9.0},
    ),
    "shuffled": ("shuffled", {**FEW, "channel.minimum_clients": 10, "mechanism.epsilon": 0.5}),
    "too few drawn to be shuffled": (
        "shuffled",
        {
            **{**FEW, "rounds": 6, "channel.minimum_clients": 7, "mechanism.epsilon": 0.2},
            "sampling": {"kind": "poisson", "rate": 0.5},
        },
    ),
    "two uplinks, packed": ("scaffold", {**FEW, "runtime.messages": "packed"}),
    "central": (
        "one_bit",
        {
            **{**FEW, "runtime.messages": "none", "channel.kind": "central"},
            "mechanism": {"kind": "gaussian", "noise_multiplier": 3.0},
        },
    ),
}


def _agree(example: str, overrides: dict[str, Any], folder: Path) -> None:
    """Check a spec, run it, and compare all that both say."""
    spec = load(EXAMPLES / f"{example}.toml", values=overrides)
    checked = sottovoce.check(spec, timed=False)
    result = launch(spec, folder)
    assert checked.would_run
    common = checked.details.keys() & result.keys()
    assert {"epsilon", "local_epsilon", "central_epsilon", "mechanism", "guarantee"} <= common
    assert {name: checked.details[name] for name in common} == {
        name: result[name] for name in common
    }
    for row in result["clients"]:
        cost = checked.cost_of(row["client"])
        expected = {name: row[name] for name in ("group", "budget", "delta", "rounds", "epsilon")}
        assert finite({name: getattr(cost, name) for name in expected}) == expected
    clients = len(result["clients"])
    assert len(checked.clients) == sum(cost.num_clients for cost in checked.costs) == clients
    for name in ("payload_bytes_up", "total_bytes_up"):
        assert checked.details[name] / clients == result[f"{name}_per_client"]
    asked = sum(cost.num_clients * cost.rounds for cost in checked.costs)
    for name in ("payload_bytes_down", "total_bytes_down"):
        assert checked.details[name] == asked * (result[f"{name}_per_message"] or 0)
    assert set(checked.notes) == set(result["warnings"])
    assert checked.to_dict()["would_run"]


@pytest.mark.parametrize("case", CASES)
def test_a_run_costs_what_check_said(case: str, tmp_path: Path) -> None:
    _agree(*CASES[case], tmp_path / "run")


def test_every_client_has_the_epsilon_of_its_own_group(tmp_path: Path) -> None:
    overrides = {
        **{**SEEDED, "data.clients": 20, "algorithm.budget_penalty": False},
        "mechanism": {"kind": "gaussian", "noise_multiplier": 1.0},
        "privacy.minimum_clients": 1,
        "privacy.groups": [
            {"clients": 5, "epsilon": 3.0, "mechanism": {"kind": "laplace"}},
            {"clients": ["client-0019"], "epsilon": 0.5},
        ],
    }
    _agree("client_budgets", overrides, tmp_path / "run")


def test_epsilon_without_the_channel_is_that_of_the_worst_client_if_all_were_seen() -> None:
    example, overrides = CASES["shuffled"]
    checked = sottovoce.check(EXAMPLES / f"{example}.toml", overrides=overrides, timed=False)
    (cost,) = checked.costs
    assert cost.local_epsilon == checked.details["local_epsilon"] > cost.epsilon
    example, overrides = CASES["central"]
    checked = sottovoce.check(EXAMPLES / f"{example}.toml", overrides=overrides, timed=False)
    assert all(cost.local_epsilon == math.inf for cost in checked.costs)
    assert all(cost["local_epsilon"] is None for cost in checked.to_dict()["costs"])


def test_nothing_is_written_or_charged_and_time_is_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Ledger, "__init__", refuse)
    monkeypatch.chdir(tmp_path)
    overrides = {**FEW, "mechanism.noise_multiplier": 3.0}
    checked = sottovoce.check(EXAMPLES / "one_bit.toml", overrides=overrides)
    assert not list(tmp_path.iterdir())
    assert checked.details["estimated_seconds"] > 0.0
    assert checked.details["estimated_memory_bytes"] > 1e7
    assert "timed here" in checked.details["estimate"]
    assert "what each client would spend" in str(checked)
    assert "<table" in checked._repr_html_()


def test_of_a_federation_it_says_what_only_sites_know() -> None:
    overrides = {
        **{**SEEDED, "runtime.backend": "flower", "mechanism.noise_multiplier": 3.0},
        "data": {"dataset": "digits", "sites": {"north": 300, "south": 200}},
    }
    checked = sottovoce.check(EXAMPLES / "one_bit.toml", overrides=overrides)
    assert checked.would_run
    assert set(checked.clients) == {"north", "south"}
    assert checked.details["estimated_seconds"] is None
    assert any("only the sites know" in note for note in checked.notes)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ({"privacy.epsilom": 1, "privacy.delta": 0}, ["'epsilom'", "'privacy.delta'"]),
        ({"mechanism.kind": "gaus"}, ["unknown mechanism 'gaus'"]),
        (
            {
                **{"channel.kind": "shuffler", "channel.minimum_clients": 50},
                **{"privacy.minimum_clients": 90, "runtime.messages": "none"},
                "sampling": {"kind": "fixed_size", "size": 11},
                "mechanism.lewels": 3,
            },
            [
                *("set randomness =", "'lewels'", "privacy.minimum_clients 90"),
                *("channel.minimum_clients = 50", "sampling.size 11"),
            ],
        ),
        ({"privacy.epsilon": 0}, ["'privacy.epsilon'"]),
        (  # what cannot be read hides nothing else
            {
                **{"model.hidden": 3, "algorithm.server_momentun": 1, "rounds": "many"},
                **{"privacy.minimum_clients": 50, "runtime.messages": "none"},
                **{"runtime.backend": "fats", "mechanism": {"kind": "gaus"}},
            },
            [
                *("'hidden'", "'server_momentun'", "'rounds'", "privacy.minimum_clients 50"),
                *("did you mean 'fast'", "did you mean 'gaussian'"),
            ],
        ),
        (
            {
                **{"model.kind": "linar", "channel.kind": "shufler", "sampling.kind": "no"},
                **{"features": [{"kind": "bar"}], "data.clients": 5000, "mechanism.levels": 1},
            },
            [
                *("model 'linar'", "channel 'shufler'", "sampling 'no'", "feature 'bar'"),
                "levels must be",
            ],
        ),
        (
            {
                **{"data.dataset": "csv:absent.csv", "privacy.epsilon": None},
                **{"model": {"kind": "mlp", "hidden_units": 0}, "algorithm.kind": "fedprox"},
            },
            ["there is no absent.csv", "hidden_units", "'fedprox'", "needs 'noise_multiplier'"],
        ),
        (
            {
                **{"data.clients": 5000, "privacy.groups": [{"clients": ["x"], "epsilon": 1.0}]},
                "mechanism": {"kind": "gaussian", "noise_multiplier": -1.0},
            },
            ["got 5000", "'privacy.groups[0].clients'", "noise_multiplier must lie"],
        ),
        ({"data.dataset": "mnist"}, ["sottovoce data fetch mnist"]),
        ({"data.dataset": "npz:absent.npz"}, ["absent.npz"]),
        (
            {"model": {"kind": "module", "factory": "os:getcwd"}, "rounds": 0},
            ["'rounds'"],
        ),
        ({"model": {"kind": "module", "factory": "os:getcwd"}}, ["allow_code=True"]),
    ],
)
def test_every_refusal_is_told_at_once(
    overrides: dict[str, Any],
    told: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOTTOVOCE_DATA", str(tmp_path / "data"))
    checked = sottovoce.check(EXAMPLES / "one_bit.toml", overrides=overrides)
    assert not checked.would_run
    assert not list(tmp_path.iterdir())  # nothing is downloaded
    for text in told:
        assert len([problem for problem in checked.problems if text in problem]) == 1
    assert all(f"refused: {problem}" in str(checked) for problem in checked.problems)
    assert checked._repr_html_()


def test_a_run_that_would_stop_early_does_not_pass_for_one_that_runs() -> None:
    def checked(**overrides: Any) -> sottovoce.runs.CheckResult:
        given = {**FEW, "rounds": 9, **overrides}
        return sottovoce.check(EXAMPLES / "one_bit.toml", overrides=given, timed=False)

    noise = "mechanism.noise_multiplier"
    none = checked(**{noise: 0.5})
    assert not none.would_run
    assert "stop after 0 of 9 rounds: before round 1 only 0 of 12" in none.problems[0]
    assert none.fields()["would run"] == "no"
    few = checked(**{noise: 2.0})
    assert few.would_run
    rounds = few.details["rounds"]
    assert 0 < rounds < 9
    assert few.fields()["would run"].startswith(f"{rounds} of 9 rounds, then it stops: before ro")
    groups = [{"clients": 10, "epsilon": 0.1}]
    some = checked(**{noise: 5.0, "privacy.groups": groups, "privacy.minimum_clients": 5})
    assert "only 2 of 12 clients had budget left" in some.problems[0]
    idle = {"kind": "poisson", "rate": 1e-9}
    assert "no client is asked" in checked(**{noise: 9.0, "sampling": idle}).fields()["would run"]


def test_a_spec_that_is_not_there_is_refused() -> None:
    assert "cannot read the spec" in sottovoce.check("absent.toml").problems[0]


@pytest.mark.parametrize("given", [None, [1]])
def test_what_is_no_spec_is_refused_by_kind(given: Any) -> None:
    with pytest.raises(ConfigError, match="spec must be a dictionary, a RunSpec or the path"):
        sottovoce.simulate(given)
