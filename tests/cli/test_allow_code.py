"""A spec that names code is refused before that code is imported, unless a person allows it."""

import sys
from pathlib import Path
from typing import Any

import pytest
from specs import small_spec, small_table

import sottovoce
from sottovoce.core.errors import ConfigError
from sottovoce.flower import app_server
from sottovoce.runs.loading import parse, toml_text

FACTORY = "network_of_a_spec:network"
MODEL = {"kind": "module", "factory": FACTORY}
CODE = """
from pathlib import Path
from torch import nn

Path("imported").touch()

def network(input_shape, num_outputs):
    return nn.Linear(*input_shape, num_outputs)
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "network_of_a_spec", raising=False)
    Path("network_of_a_spec.py").write_text(CODE)
    Path("spec.toml").write_text(toml_text(small_spec(model=MODEL, rounds=2).plain()))
    return Path("spec.toml")


def test_commands_run_code_only_where_they_are_told_to(cli: Any, spec: Path) -> None:
    commands = (
        ["run", spec, "--out", "run"],
        ["run", spec, "--out", "run", "--resume"],
        ["audit", "run", "run"],
        ["attack", "membership", "run"],
        ["attack", "attributes", "run"],
        ["attack", "reconstruction", "run"],
    )
    refused = cli(*commands[0])
    assert not Path("run").exists()
    assert cli(*commands[0], "--allow-code").code == 0
    assert Path("imported").exists()
    Path("imported").unlink()
    del sys.modules["network_of_a_spec"]
    for shown in (refused, *(cli(*words) for words in commands[1:])):
        assert (shown.code, shown.err.count("\n")) == (2, 1)
        assert f"model.factory = '{FACTORY}'" in shown.err
        assert "--allow-code" in shown.err
    assert not Path("imported").exists()
    for words in (["report", "run"], ["watch", "run", "--once"], ["ledger", "show", "run"]):
        assert cli(*words).code == 0  # which build no model
    assert not Path("imported").exists()
    assert cli(*commands[1], "--allow-code").code == 0


def test_python_takes_code_from_files_and_dictionaries_only_where_it_is_told_to(
    spec: Path,
) -> None:
    table = small_table(model=MODEL, rounds=1)
    for given in (spec, str(spec), table):
        with pytest.raises(ConfigError, match=r"network_of_a_spec:network.*allow_code=True"):
            sottovoce.simulate(given)
    assert not Path("imported").exists()
    assert sottovoce.simulate(table, allow_code=True).finished
    assert sottovoce.simulate(parse(table)).finished  # a RunSpec in Python was made by the caller


def test_the_server_of_a_federation_runs_code_only_if_its_run_says_so(spec: Path) -> None:
    config = {"spec": spec.read_text(), "out": "run"}
    for more in ({}, {"allow_code": False}, {"allow_code": "true"}):
        with pytest.raises(ConfigError, match=r"network_of_a_spec:network.*--allow-code"):
            app_server.serve(None, {**config, **more})  # type: ignore[arg-type]
    assert not Path("imported").exists()
