"""From a spec to the parts of a run: what is chosen automatically is written down."""

import json
from pathlib import Path
from typing import Any

import pytest
from specs import small_spec

from sottovoce.domains import Box, L2Ball
from sottovoce.errors import ConfigError
from sottovoce.experiments.assembly import _is_rotated, assemble
from sottovoce.experiments.run_folder import RunFolder
from sottovoce.experiments.runner import run
from sottovoce.mechanisms.laplace import Laplace

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
    assert assemble(small_spec(mechanism=mechanism)).spec.rotation == chosen


@pytest.mark.parametrize("choice", ["on", "off"])
@pytest.mark.parametrize("mechanism", [GAUSS_HERMITE, {"kind": "gaussian"}])
def test_whoever_writes_the_spec_has_the_last_word(choice: str, mechanism: dict[str, Any]) -> None:
    assert assemble(small_spec(mechanism=mechanism, rotation=choice)).spec.rotation == choice


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
    with pytest.raises(ConfigError, match="version without rotations"):
        run(small_spec(rounds=1), tmp_path / "run", resume=True)


def test_the_domain_of_every_part_is_the_clip() -> None:
    for part in assemble(small_spec()).parts:
        assert isinstance(part.mechanism.input_domain, L2Ball)
        assert part.mechanism.input_domain.radius == 1.0
