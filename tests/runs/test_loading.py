import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specs import small_spec, small_table

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import ConfigError
from sottovoce.runs.loading import load, override, parse, parse_assignment

TOML = """
name = "t"
seed = 1
rounds = 2
[data]
dataset = "digits"
clients = 3
[model]
kind = "linear"
[algorithm]
kind = "fedavg"
server_learning_rate = 1
[privacy]
level = "sample"
clip_norm = 1
delta = 1e-5
epsilon = 3
[mechanism]
kind = "gaussian"
"""


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "spec.toml"
    path.write_text(TOML)
    return path


def test_a_spec_is_read_and_adjacency_defaults_to_zero_out(toml: Path) -> None:
    spec = load(toml)
    assert spec.privacy.adjacency is Adjacency.ZERO_OUT
    assert spec.mechanism.parameters == {}


def test_overrides_take_toml_values_and_bare_words(toml: Path) -> None:
    spec = load(
        toml,
        ["rounds=7", "mechanism.kind=gauss_hermite", "mechanism.levels=4",
         "privacy.adjacency=replace-one", "sampling={kind='poisson', rate=0.5}"],
    )  # fmt: skip
    assert spec.rounds == 7
    assert spec.mechanism.parameters == {"levels": 4}
    assert spec.privacy.adjacency is Adjacency.REPLACE_ONE


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("privacy.epsilom=1", "did you mean 'epsilon'"),
        ("roundz=1", "did you mean 'rounds'"),
        ("data.partition={kind='dirichlet', alfa=1}", "did you mean 'alpha'"),
        ("model.hiden_units=3", "unknown key 'hiden_units'"),
        ("privacy.epsilon=0", "greater than 0"),
        ("privacy.epsilon=-1", "greater than 0"),
        ("privacy.epsilon=nan", "privacy.epsilon"),
        ("privacy.epsilon=1e9", "less than or equal to 1000"),
        ("privacy.delta=0", "greater than 0"),
        ("privacy.delta=1", "less than 1"),
        ("privacy.delta=nan", "privacy.delta"),
        ("privacy.clip_norm=inf", "privacy.clip_norm"),
        ("rounds=0", "rounds"),
        ("rounds=2.5", "rounds"),
        ("rounds=true", "rounds"),
        ("seed=-1", "seed"),
        ("name='../up'", "name"),
        ("name='..'", "name"),
        ("name=''", "name"),
        ("data.clients=0", "data.clients"),
        ("model.kind=cnn", "linear"),
        ("privacy.adjacency=swap", "zero-out"),
        ("sampling={kind='poisson', rate=0}", "rate"),
        ("name.x=1", "'name' is a value"),
        ("rounds", "key=value"),
        ("=3", "key=value"),
    ],
)
def test_a_bad_value_is_one_line_that_names_key_and_rule(
    toml: Path, override: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(toml, [override])
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named() -> None:
    table = small_table()
    del table["privacy"]["delta"]
    with pytest.raises(ConfigError, match=r"'privacy\.delta' is missing"):
        parse(table)


@pytest.mark.parametrize("content", [b"not toml", b"\xff\xfe"])
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "spec.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"spec\.toml"):
        load(tmp_path / "spec.toml")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.toml")


def test_specs_without_a_downlink_keep_the_hash_that_they_had_before_there_was_one() -> None:
    before = "16bfc3583492b65d"  # of this spec at commit e091b77
    assert small_spec().hash == before
    assert small_spec(runtime={"downlink": "float32"}).hash == before
    assert small_spec().plain()["runtime"] == {"messages": "stored", "device": "cpu"}


@pytest.mark.parametrize("downlink", ["float16", "bfloat16", "int8"])
def test_another_downlink_is_another_spec(downlink: str) -> None:
    spec = small_spec(runtime={"downlink": downlink})
    assert spec.plain()["runtime"]["downlink"] == downlink
    assert spec.hash != small_spec().hash
    assert parse(spec.plain()) == spec


def test_an_unknown_downlink_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"runtime.downlink.*'float32', 'float16', 'bfloat16'"):
        small_spec(runtime={"downlink": "float8"})


def test_the_hash_stands_for_the_whole_spec() -> None:
    assert small_spec().hash == small_spec().hash
    assert small_spec().hash != small_spec(seed=4).hash
    mechanism: dict[str, Any] = {"kind": "gauss_hermite", "levels": 4}
    assert small_spec().hash != small_spec(mechanism=mechanism).hash


def test_a_resolved_spec_survives_its_own_json() -> None:
    spec = small_spec(sampling={"kind": "poisson", "rate": 0.5})
    assert parse(spec.plain()).hash == spec.hash


@pytest.mark.parametrize(
    ("text", "value"), [("a=1", 1), ("a=1e-5", 1e-5), ("a=auto", "auto"), ("a=[1, 2]", [1, 2])]
)
def test_assignments_read_values_as_toml_does(text: str, value: object) -> None:
    assert parse_assignment(text, "--param") == ("a", value)


def test_a_path_leads_into_lists_by_number() -> None:
    table: dict[str, Any] = {"features": [{"kind": "a"}, {"kind": "b", "components": 1}]}
    override(table, "features.1.components", 7, source="here")
    assert table["features"][1] == {"kind": "b", "components": 7}
    override(table, "features.0", {"kind": "c"}, source="here")
    assert table["features"][0] == {"kind": "c"}
    for bad in ("features.2.x", "features.x.y", "features.9"):
        with pytest.raises(ConfigError, match=r"here: .*2 entries"):
            override(table, bad, 1, source="here")


def test_numbers_of_numpy_are_read_as_those_of_python() -> None:
    table = small_table(rounds=np.int64(6))
    table["algorithm"] = {**table["algorithm"], "server_learning_rate": np.float32(0.5)}
    table["data"] = {**table["data"], "clients": np.arange(5)[4]}
    spec = parse(table)
    assert (spec.rounds, spec.data.clients) == (6, 4)
    assert spec.algorithm.parameters["server_learning_rate"] == 0.5
    assert json.loads(json.dumps(spec.plain())) == spec.plain()
    with pytest.raises(ConfigError, match="'rounds' must be a number"):
        parse(small_table(rounds=np.arange(2)))
