"""Clients with budgets and mechanisms of their own, in one run."""

import copy
from pathlib import Path
from typing import Any

import pytest
from specs import LOCAL_STEPS, small_spec, small_table

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import ConfigError, ParameterError
from sottovoce.federated.algorithms.fedavg import FedAvg, LocalSgd
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.laplace import Laplace
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.events import Repeated
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.loading import load, parse
from sottovoce.runs.resolve import resolve
from sottovoce.runs.runner import run
from sottovoce.runs.spec import RunSpec

EXAMPLE = Path(__file__).parents[2] / "examples" / "client_budgets.toml"
CLIENT_LEVEL = {"level": "client", "clip_norm": 0.5, "epsilon": 4.0, "delta": 1e-5}


def a_spec(*groups: dict[str, Any], **changes: Any) -> RunSpec:
    """Six clients: epsilon 4 at delta 1e-5, but for the groups."""
    table = copy.deepcopy(small_table(**changes))
    table.setdefault("data", {})["clients"] = 6
    table["privacy"]["groups"] = list(groups)
    return parse(table)


SMALL = {"clients": 2, "epsilon": 1.0, "delta": 1e-6}
NAMED = {"clients": ["client-0000", "client-0005"], "mechanism": {"kind": "laplace"}}


def test_each_group_is_calibrated_for_its_own_budget(tmp_path: Path) -> None:
    result = run(a_spec(SMALL, NAMED), tmp_path / "run")
    groups = {row["group"]: row for row in result["groups"]}
    assert [groups[number]["clients"] for number in (0, 1, 2)] == [2, 2, 2]
    # The next two that no group names: not client-0000.
    rows = {row["client"]: row for row in result["clients"]}
    assert [rows[f"client-000{n}"]["group"] for n in range(6)] == [2, 1, 1, 0, 0, 2]
    for row in rows.values():
        budget, delta = (1.0, 1e-6) if row["group"] == 1 else (4.0, 1e-5)
        assert (row["budget"], row["delta"]) == (budget, delta)
        assert 0.99 * budget < row["epsilon"] <= budget
        assert row["rounds"] == 6
        assert row["ran_out"] is False
    assert groups[2]["mechanism"]["kind"] == "laplace"
    assert groups[0]["mechanism"]["noise_multiplier"] < groups[1]["mechanism"]["noise_multiplier"]
    with RunFolder(tmp_path / "run").ledger() as ledger:
        assert ledger.verify() == []
        for name, row in rows.items():
            spent = ledger.spent(name, row["delta"])
            assert spent is not None
            assert spent.epsilon == row["epsilon"]
            budget_kept = ledger.budget(name)
            assert budget_kept is not None
            assert (budget_kept.epsilon, budget_kept.delta) == (row["budget"], row["delta"])


def test_the_resolved_spec_says_everything_and_is_its_own_resolution(tmp_path: Path) -> None:
    spec = a_spec(SMALL, NAMED)
    written = resolve(load_inputs(spec)).spec
    first, second = written.privacy.groups
    assert first.mechanism is not None
    assert first.mechanism.parameters["noise_multiplier"] > 0
    assert (first.epsilon, first.delta) == (1.0, 1e-6)
    assert (second.epsilon, second.delta) == (4.0, 1e-5)
    assert resolve(load_inputs(parse(written.plain()))).spec == written
    run(spec, tmp_path / "run")
    header = RunFolder(tmp_path / "run").header()
    assert header["spec"] == written.plain()
    assert run(written, tmp_path / "run", resume=True)["rounds"] == 6


def test_a_result_names_what_any_clients_epsilon_rests_on(tmp_path: Path) -> None:
    """Also where the client that spent most rests on less."""
    seeds = {"kind": "seeded_sign", "blocks": "auto", "generator": "auto", "timing": "auto"}
    group = {"clients": 2, "epsilon": 1.0, "mechanism": seeds}
    sampled = {"level": "sample", "clip_norm": 1.0, "epsilon": 4.0, "delta": 1e-5}
    privacy = sampled | {"record_sampling_rate": 0.5}
    data = {"dataset": "digits", "num_train": 120}  # of many records no seed holds the mean
    spec = a_spec(group, data=data, privacy=privacy, runtime={"messages": "packed"}, rounds=1)
    result = run(spec, tmp_path / "run")
    assert result["groups"][0]["epsilon"] > 3.0 > result["groups"][1]["epsilon"]
    for words in ("ChaCha20", "samples its own records in secret"):
        assert result["assumes"].count(words) == 1
    assert result["local_epsilon"] > result["epsilon"]


def test_a_groups_noise_holds_its_budget_by_the_accountants_own_word() -> None:
    resolved = resolve(load_inputs(a_spec(SMALL, NAMED)))
    for part in resolved.parts:
        event = part.mechanism.privacy(Adjacency.ZERO_OUT)
        budget = resolved.budgets[part.client]
        spent = privacy_spent(Repeated(event=event, count=6), budget.delta).epsilon
        assert 0.99 * budget.epsilon < spent <= budget.epsilon
    kinds = [type(part.mechanism) for part in resolved.parts]
    assert kinds == [Laplace, *[GaussHermite] * 4, Laplace]
    assert resolved.spec.rotation == "on"  # one that gains by it is enough


def test_groups_may_hold_everyone() -> None:
    resolved = resolve(
        load_inputs(a_spec({"clients": 4, "epsilon": 2.0}, {"clients": 2, "epsilon": 3.0}))
    )
    assert [len(group.clients) for group in resolved.groups] == [4, 2]
    assert {budget.epsilon for budget in resolved.budgets.values()} == {2.0, 3.0}


def test_a_given_parameter_is_kept_and_the_budget_decides_when_it_ends(tmp_path: Path) -> None:
    loud = {"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 2.0}
    result = run(a_spec({"clients": 2, "mechanism": loud}), tmp_path / "run")
    rounds = [row["rounds"] for row in result["clients"]]
    assert rounds == [3, 3, 6, 6, 6, 6]
    assert [row["ran_out"] for row in result["clients"]] == [True] * 2 + [False] * 4
    assert result["clients_out_of_budget"] == 2


def test_a_run_without_groups_lists_its_clients_too(tmp_path: Path) -> None:
    result = run(small_spec(rounds=2), tmp_path / "run")
    assert len(result["clients"]) == 4
    (group,) = result["groups"]
    assert (group["group"], group["clients"], group["budget"]) == (0, 4, 4.0)
    assert group["epsilon"] == result["epsilon"]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([{"clients": 7, "epsilon": 1.0}], "need 7 clients, but the run has 6"),
        ([SMALL, {"clients": 5}], "need 7 clients, but the run has 6"),
        ([NAMED, {"clients": 5}], "need 7 clients, but the run has 6"),
        ([{"clients": ["client-0006"]}], r"groups\[0\].*unknown client 'client-0006'.*did you"),
        ([NAMED, {"clients": ["client-0005"]}], r"'client-0005' is named twice.*groups\[0\].*\[1"),
        ([{"clients": ["client-0001"] * 2}], "'client-0001' is named twice"),
        ([SMALL | {"mechanism": {"kind": "no_privacy"}}], r"no_privacy.*groups\[0\].*no privacy"),
        ([{"clients": 1, "mechanism": {"kind": "no_privacy"}}], r"groups\[0\].*no privacy"),
        (
            [SMALL | {"adjacency": "replace-one"}],
            r"groups\[0\].*of the run, 'zero-out', got 'replace-one'",
        ),
        ([{"clients": 0}], r"'privacy.groups\[0\].clients'.*number of clients"),
        ([{"clients": []}], r"'privacy.groups\[0\].clients'.*list of their names"),
        ([{"clients": True}], r"'privacy.groups\[0\].clients'"),
        ([{"clients": [3]}], r"'privacy.groups\[0\].clients'"),
        ([{"epsilon": 1.0}], r"'privacy.groups\[0\].clients' is missing"),
        ([SMALL, SMALL | {"epsilon": 0.0}], r"'privacy.groups\[1\].epsilon'.*greater than 0"),
        ([SMALL | {"epsilom": 1.0}], r"unknown key 'epsilom'.*'epsilon'.*privacy.groups\[0\]"),
        ([SMALL | {"mechanism": {}}], r"'privacy.groups\[0\].mechanism.kind' is missing"),
    ],
)
def test_groups_that_make_no_sense_are_refused_before_anything_is_written(
    tmp_path: Path, groups: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        run(a_spec(*groups), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_group_in_a_run_without_privacy_is_refused() -> None:
    table = small_table(mechanism={"kind": "no_privacy"})
    table["privacy"] = {"level": "sample", "clip_norm": 1.0, "delta": 1e-5}
    table["privacy"]["groups"] = [{"clients": 1, "epsilon": 1.0, "mechanism": {"kind": "gaussian"}}]
    with pytest.raises(ConfigError, match="'no_privacy' of 'privacy' gives no privacy"):
        resolve(load_inputs(parse(table)))


def test_groups_have_no_place_next_to_a_published_epsilon() -> None:
    algorithm = {"kind": "nbafl", "local_learning_rate": 0.5}
    spec = a_spec(SMALL, privacy=CLIENT_LEVEL, algorithm=algorithm, mechanism={"kind": "gaussian"})
    with pytest.raises(
        ConfigError, match=r"NbAFL's epsilon is not a budget; use the algorithm 'fedavg'"
    ):
        resolve(load_inputs(spec))


def test_a_budget_that_no_parameter_meets_names_its_group(tmp_path: Path) -> None:
    tiny = {"clients": 1, "epsilon": 1e-12, "delta": 1e-300}
    with pytest.raises(ConfigError, match=r"groups\[0\].*not even.*reaches epsilon 1e-12.*larger"):
        run(a_spec(tiny), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_more_clients_than_there_are_can_never_go_on() -> None:
    spec = a_spec()
    privacy = spec.privacy.model_copy(update={"minimum_clients": 7})
    with pytest.raises(ConfigError, match=r"minimum_clients 7 exceeds the 6 clients"):
        resolve(load_inputs(spec.model_copy(update={"privacy": privacy})))


def test_a_secure_sum_has_one_mechanism() -> None:
    table: dict[str, Any] = {
        "name": "sum",
        "data": {"dataset": "digits", "clients": 6},
        "privacy": {"level": "client", "clip_norm": 0.5, "epsilon": 8.0, "delta": 1e-5},
        "algorithm": LOCAL_STEPS,
        "mechanism": {"kind": "clamped_sign", "logit_bound": 1.0, "noise_multiplier": 20.0},
        "channel": {"kind": "secure_sum", "minimum_clients": 4},
    }
    other = {**table["mechanism"], "noise_multiplier": 40.0}
    with pytest.raises(ParameterError, match="same mechanism"):
        resolve(load_inputs(a_spec({"clients": 1, "epsilon": 4.0, "mechanism": other}, **table)))


# -- penalties -----------------------------------------------------------------------------


def test_a_penalty_follows_from_the_budgets() -> None:
    penalised = {**LOCAL_STEPS, "budget_penalty": True}
    for algorithm, expected in ((LOCAL_STEPS, {}), (penalised, [0.75, 0.75, 0.0, 0.0, 0.0, 0.0])):
        resolved = resolve(load_inputs(a_spec(SMALL, privacy=CLIENT_LEVEL, algorithm=algorithm)))
        assert isinstance(resolved.algorithm, FedAvg)
        work = resolved.algorithm.local_work
        assert isinstance(work, LocalSgd)
        if expected:
            assert [work.penalties[part.client] for part in resolved.parts] == expected
        else:
            assert work.penalties == {}


def test_a_penalty_without_local_steps_or_budgets_is_refused() -> None:
    algorithm = {"kind": "fedavg", "server_learning_rate": 1.0, "budget_penalty": True}
    with pytest.raises(ConfigError, match=r"budget_penalty.*privacy.level = 'client'"):
        resolve(load_inputs(a_spec(SMALL, algorithm=algorithm)))
    privacy = {"level": "client", "clip_norm": 0.5, "delta": 1e-5}
    mechanism = {"kind": "gaussian", "noise_multiplier": 9.0}
    penalised = {**LOCAL_STEPS, "budget_penalty": True}
    with pytest.raises(ConfigError, match=r"'privacy.epsilon' is not set"):
        resolve(
            load_inputs(a_spec(SMALL, privacy=privacy, mechanism=mechanism, algorithm=penalised))
        )


# -- the example ---------------------------------------------------------------------------


def test_the_example_runs_and_keeps_every_budget(tmp_path: Path) -> None:
    result = run(load(EXAMPLE, ["rounds=2"]), tmp_path / "run")
    assert [row["clients"] for row in result["groups"]] == [43, 15, 2]
    assert all(0.0 < row["epsilon"] <= row["budget"] for row in result["clients"])
    assert result["halted"] is None
