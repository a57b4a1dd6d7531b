"""From a spec to the parts of a run: what is chosen automatically is written down."""

import json
from pathlib import Path
from typing import Any

import pytest
from specs import CLIENT_LEVEL, small_spec

from sottovoce.core.domains import Box, L2Ball
from sottovoce.core.errors import ConfigError, UnknownNameError
from sottovoce.mechanisms.laplace import Laplace
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.resolve import _is_rotated, resolve
from sottovoce.runs.runner import run

pytestmark = pytest.mark.usefixtures("ranked_once")
GAUSS_HERMITE = {"kind": "gauss_hermite", "levels": 4}


@pytest.mark.parametrize(
    ("mechanism", "chosen"),
    [
        (GAUSS_HERMITE, "on"),
        ({"kind": "stochastic_sign"}, "on"),
        ({"kind": "gaussian"}, "off"),
    ],
)
def test_updates_are_rotated_where_a_finite_alphabet_has_a_range(
    mechanism: dict[str, Any], chosen: str
) -> None:
    assert resolve(load_inputs(small_spec(mechanism=mechanism))).spec.rotation == chosen


@pytest.mark.parametrize("choice", ["on", "off"])
@pytest.mark.parametrize("mechanism", [GAUSS_HERMITE, {"kind": "gaussian"}])
def test_whichever_client_writes_the_spec_has_the_last_word(
    choice: str, mechanism: dict[str, Any]
) -> None:
    assert (
        resolve(load_inputs(small_spec(mechanism=mechanism, rotation=choice))).spec.rotation
        == choice
    )


def test_a_box_cannot_be_rotated() -> None:
    on_a_box = Laplace(input_domain=Box(dimension=3, lower=-1.0, upper=1.0), noise_multiplier=1.0)
    with pytest.raises(ConfigError, match=r"'rotation'.*L2 ball.*Box.*'off'"):
        _is_rotated(small_spec(rotation="on"), [on_a_box])
    assert not _is_rotated(small_spec(), [on_a_box])


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match="'rotation'"):
        small_spec(rotation="sometimes")


def test_the_resolved_spec_and_the_result_say_what_was_chosen(tmp_path: Path) -> None:
    result = run(small_spec(rounds=1), tmp_path / "run")
    assert result["rotation"] == RunFolder(tmp_path / "run").header()["spec"]["rotation"] == "on"
    plain = run(small_spec(rounds=1, rotation="off"), tmp_path / "plain")
    assert plain["rotation"] == "off"
    assert plain["spec_hash"] != result["spec_hash"]
    with pytest.raises(ConfigError, match="another spec"):
        run(small_spec(rounds=1, rotation="off"), tmp_path / "run", resume=True)
    run(small_spec(rounds=1, rotation="on"), tmp_path / "run", resume=True)  # what auto chose


def test_a_run_folder_from_before_rotations_is_not_continued_with_one(tmp_path: Path) -> None:
    run(small_spec(rounds=1), tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    header = json.loads(path.read_text())
    del header["spec"]["rotation"]
    path.write_text(json.dumps(header))
    with pytest.raises(ConfigError, match="which had no rotations"):
        run(small_spec(rounds=1), tmp_path / "run", resume=True)


def test_the_domain_of_every_part_is_the_clip() -> None:
    for part in resolve(load_inputs(small_spec())).parts:
        assert isinstance(part.mechanism.input_domain, L2Ball)
        assert part.mechanism.input_domain.radius == 1.0


# -- a mechanism that the spec leaves open ---------------------------------------------------


def test_an_open_mechanism_is_chosen_and_written_down(tmp_path: Path) -> None:
    spec = small_spec(mechanism="auto", rounds=1)
    result = run(spec, tmp_path / "run")
    chosen = result["mechanism"]
    assert result["mechanism_choice"].startswith(f"{chosen['kind']} has the smallest error")
    header = RunFolder(tmp_path / "run").header()
    assert header["spec"]["mechanism"] == chosen
    assert 3.99 < result["epsilon"] <= 4.0
    run(spec, tmp_path / "run", resume=True)  # chosen again, and the same


def test_a_named_mechanism_needs_no_reason(tmp_path: Path) -> None:
    assert run(small_spec(rounds=1), tmp_path / "run")["mechanism_choice"] is None


def test_an_open_mechanism_keeps_to_its_bits() -> None:
    resolved = resolve(load_inputs(small_spec(mechanism={"kind": "auto", "bits": 1}, rounds=1)))
    assert resolved.parts[0].mechanism.code_format().bits == 1
    assert "gaussian is left out: it sends 32 bits" in str(resolved.mechanism_choice)


def test_deployment_prefers_what_is_sampled_exactly() -> None:
    resolved = resolve(load_inputs(small_spec(mechanism="auto", randomness="system", rounds=1)))
    assert resolved.parts[0].mechanism.sampling == "exact"
    assert "sampled exactly, as deployment requires" in str(resolved.mechanism_choice)


def test_an_open_mechanism_is_one_that_the_channel_can_carry() -> None:
    privacy = {"level": "client", "clip_norm": 1.0, "epsilon": 4.0, "delta": 1e-5}
    resolved = resolve(
        load_inputs(
            small_spec(
                mechanism="auto",
                rounds=2,
                privacy=privacy,
                algorithm={
                    "kind": "fedavg",
                    "server_learning_rate": 1.0,
                    "local_learning_rate": 0.1,
                },
                channel={"kind": "secure_sum", "minimum_clients": 3},
            )
        )
    )
    summable = {"clamped_sign", "poisson_binomial", "discrete_gaussian"}
    assert resolved.spec.mechanism.kind in summable
    assert "per coordinate of the mean of 4 clients" in str(resolved.mechanism_choice)
    assert "one bit is not enough" in str(resolved.mechanism_choice)


def test_an_open_mechanism_needs_a_budget() -> None:
    privacy = {"level": "sample", "clip_norm": 1.0, "delta": 1e-5}
    with pytest.raises(ConfigError, match=r"'auto'.*'privacy\.epsilon'"):
        resolve(load_inputs(small_spec(mechanism="auto", privacy=privacy)))


def test_an_open_mechanism_has_no_parameters_but_bits() -> None:
    with pytest.raises(UnknownNameError, match=r"'auto' 'levels'.*bits"):
        resolve(load_inputs(small_spec(mechanism={"kind": "auto", "levels": 2})))


def test_only_auto_may_stand_for_a_table() -> None:
    with pytest.raises(ConfigError, match="'mechanism' must be a table"):
        small_spec(mechanism="gaussian")


@pytest.mark.slow
def test_each_group_may_leave_its_mechanism_open() -> None:
    privacy = {
        "level": "sample",
        "clip_norm": 1.0,
        "epsilon": 4.0,
        "delta": 1e-5,
        "groups": [{"clients": 2, "epsilon": 1.0, "mechanism": {"kind": "auto", "bits": 1}}],
    }
    resolved = resolve(load_inputs(small_spec(mechanism="auto", privacy=privacy)))
    bits = {part.client: part.mechanism.code_format().bits for part in resolved.parts}
    assert [count == 1 for count in bits.values()] == [True, True, False, False]
    assert "in privacy: " in str(resolved.mechanism_choice)
    assert "in privacy.groups[0]: " in str(resolved.mechanism_choice)


def test_a_protocol_between_machines_is_not_run_in_one_process() -> None:
    channel = {"kind": "secure_sum", "minimum_clients": 3, "protocol": "pairwise"}
    mechanism = {"kind": "clamped_sign", "logit_bound": 0.5}
    spec = small_spec(**CLIENT_LEVEL, channel=channel, mechanism=mechanism)
    with pytest.raises(
        ConfigError, match=r"cannot run a protocol.*channel\.protocol = 'simulated'"
    ):
        resolve(load_inputs(spec))
