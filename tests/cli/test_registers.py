"""Models, features, backends and commands of other distributions, through the commands."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributions import install
from specs import small_spec, small_table

pytest.importorskip("torch")

from sottovoce.cli.commands import COMMANDS
from sottovoce.core import registry
from sottovoce.core.errors import ConfigError, PolicyError, UnknownNameError
from sottovoce.deployment import site_training
from sottovoce.federated.algorithms.algorithm import AGGREGATIONS, ALGORITHMS
from sottovoce.learning import datasets
from sottovoce.learning.datasets.register import DATASETS
from sottovoce.learning.features import FEATURES
from sottovoce.learning.models import MODELS
from sottovoce.runs import loading
from sottovoce.runs.backends import BACKENDS
from sottovoce.runs.loading import load, parse

REGISTERS: tuple[Any, ...] = (
    MODELS,
    FEATURES,
    BACKENDS,
    COMMANDS,
    DATASETS,
    ALGORITHMS,
    AGGREGATIONS,
)
MODEL = """
from dataclasses import dataclass
from torch import nn
from sottovoce.core import parameter_rules
from sottovoce.learning.models.register import register_model

@register_model("pocket", summary="a toy")
@dataclass(frozen=True, slots=True, kw_only=True)
class Pocket:
    width: int = 3

    def __post_init__(self):
        parameter_rules.integer("width", self.width, low=1, high=9)

    def build(self, input_shape, num_outputs):
        (inputs,) = input_shape
        layers = nn.Linear(inputs, self.width), nn.Tanh(), nn.Linear(self.width, num_outputs)
        return nn.Sequential(*layers)
"""
FEATURE = """
from dataclasses import dataclass
from sottovoce.learning.features import Features, register_feature

@register_feature("halve", summary="a toy")
@dataclass(frozen=True, slots=True, kw_only=True)
class Halve:
    times: int = 1
    table: str | None = None

    def files(self):
        return (self.table,) if self.table else ()

    def prepare(self, setting):
        def halved(part, features):
            return Features.of(features.values[:, :: 2**self.times])

        return halved
"""
BACKEND = """
from sottovoce.runs.backends import register_backend
from sottovoce.runs.runner import run

@register_backend("here")
def run_here(spec, folder, **given):
    return {**run(spec, folder, **given), "ran": "here"}
"""
COMMAND = """
import typer
from sottovoce.cli.commands import register_command

app = typer.Typer(help="Whistle a tune.")

@app.callback()
def whistles():
    pass

@app.command("tune")
def tune(times: int = 1):
    typer.echo("fiu " * times)

register_command("whistle", app, module=__name__)
"""
PAPERS = """
from dataclasses import dataclass
import numpy as np
import typer
from sottovoce.cli.commands import register_command
from sottovoce.learning.datasets.dataset import with_random_test_part
from sottovoce.federated.algorithms.algorithm import AGGREGATIONS
from sottovoce.federated.algorithms.algorithm import ALGORITHMS
from sottovoce.learning.datasets.register import register as register_data
from sottovoce.learning.models.register import register_model

@register_model("folded", summary="a toy")
@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    folds: int = 2

    def build(self, input_shape, num_outputs):
        from sottovoce.learning.models import Linear

        return Linear().build(input_shape, num_outputs)

@register_data("stars:", placeholder="N", summary="a toy")
def stars(request):
    points = request.generator.standard_normal((int(request.argument), 3), dtype=np.float32)
    labels = (points[:, 0] > 0).astype(np.int64)
    return with_random_test_part(
        request.name, points, labels, request.generator, num_classes=2, note=""
    )

def fold():
    "Fold a paper."
    typer.echo("folded")

register_command("fold", fold, module=__name__)
"""
GROUPS = {
    "sottovoce.models": {"pocket": "pocket", "mlp": "pocket"},
    "sottovoce.features": {"halve": "halve"},
    "sottovoce.backends": {"here": "here_backend"},
    "sottovoce.commands": {"whistle": "whistle", "broken": "broken", "run": "whistle"},
}
OF_PAPERS = {
    "sottovoce.models": {"folded": "sottovoce_papers"},
    "sottovoce.datasets": {"stars:": "sottovoce_papers"},
    "sottovoce.commands": {"fold": "sottovoce_papers"},
}


@pytest.fixture(autouse=True)
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with one of each, and one that stands for sottovoce-papers."""
    folder = tmp_path / "site-packages"
    modules = {"pocket": MODEL, "halve": FEATURE, "here_backend": BACKEND, "whistle": COMMAND}
    modules["broken"] = "raise ValueError('no breath')\n"
    install(folder, "pockets", modules, GROUPS)
    install(folder, "sottovoce-papers", {"sottovoce_papers": PAPERS}, OF_PAPERS)
    for register in REGISTERS:
        register.ours()  # these stay; what is entered from here on does not
        monkeypatch.setattr(register, "_entries", dict(register._entries))
        monkeypatch.setattr(register, "_problems", {})
    monkeypatch.syspath_prepend(str(folder))
    yield
    for name in (*modules, "sottovoce_papers"):
        sys.modules.pop(name, None)


def spec_file(folder: Path, **changes: Any) -> Path:
    place = folder / "toy.toml"
    place.write_text(loading.toml_text(small_table(rounds=1, **changes)))
    return place


def test_a_spec_runs_with_model_feature_and_backend_from_outside(cli: Any, tmp_path: Path) -> None:
    place = spec_file(
        tmp_path,
        model={"kind": "pocket"},
        features=[{"kind": "flatten"}, {"kind": "halve", "times": 2}],
        runtime={"backend": "here"},
    )
    read = load(place)
    assert read.model.model_dump() == {"kind": "pocket"}
    assert "pocket" not in sys.modules  # reading a spec runs no plug-in's code
    result = cli("run", place, "--out", tmp_path / "run", "--json").json
    assert result["ran"] == "here"
    header = json.loads((tmp_path / "run" / "run.json").read_text())
    assert header["spec"]["model"] == {"kind": "pocket", "width": 3}
    assert header["spec"]["features"][1] == {"kind": "halve", "times": 2}
    # That a step learns from no record, and that a backend charges, is their word.
    for kind, name in (("feature", "halve"), ("backend", "here")):
        assert (
            f"the privacy claims of plug-in {kind} '{name}' (distribution pockets"
            in result["assumes"]
        )
    assert "pocket'" not in result["assumes"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"kind": "pockt"}}, "unknown model 'pockt'; did you mean 'pocket'?"),
        ({"model": {"kind": "pocket", "wide": 2}}, "unknown key 'wide'; did you mean 'width'?"),
        ({"model": {"kind": "pocket", "width": 10}}, "width must be an integer from 1 to 9"),
        ({"model": {"kind": "mlp", "hidden_units": 2}}, "two models claim the name 'mlp'"),
        ({"features": [{"kind": "flaten"}]}, "unknown feature 'flaten'; did you mean 'flatten'?"),
        ({"runtime": {"backend": "there"}}, "unknown backend 'there'; did you mean 'here'?"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    cli: Any, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    found = cli("run", spec_file(tmp_path, **changes), "--out", tmp_path / "run")
    assert (found.code, message in found.err) == (2, True), found.err
    assert len(found.err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_site_builds_no_model_and_takes_no_step_from_outside() -> None:
    for changes in ({"model": {"kind": "pocket"}}, {"features": [{"kind": "halve"}]}):
        with pytest.raises(PolicyError, match="imports no plug-in for an order"):
            site_training._check_harmless(small_spec(**changes), None)  # type: ignore[arg-type]
    assert "pocket" not in sys.modules


def test_a_site_reads_no_file_that_a_step_names() -> None:
    step = {"kind": "precondition", "images": "a.npz", "count": 9, "components": 2}
    with pytest.raises(PolicyError, match=r"'a.npz' are a file of the server"):
        site_training._check_harmless(small_spec(features=[step]), None)  # type: ignore[arg-type]


def test_a_command_from_outside_is_imported_when_it_is_called(cli: Any) -> None:
    shown = cli("--help")
    assert "whistle     Plug-in of distribution pockets 0.1." in shown.out
    assert "fold        Fold a paper." in shown.out
    assert "whistle" not in sys.modules
    assert "fiu fiu" in cli("whistle", "tune", "--times", 2).out
    assert cli("fold").out.strip() == "folded"
    broken = cli("broken")
    assert (broken.code, "ValueError: no breath" in broken.err) == (2, True)
    assert "did you mean 'whistle'" in cli("whistl").err
    assert (
        "Train as a spec says" in cli("run", "--help").out
    )  # the built-in one, although a plug-in claims its name


def test_all_registers_are_listed(cli: Any) -> None:
    rows = cli("plugins", "--json").json
    found = {(row["kind"], row["name"], row["from"]): row["problem"] for row in rows}
    theirs = "distribution pockets 0.1"
    for kind, name in (("model", "pocket"), ("feature", "halve"), ("backend", "here")):
        assert found[kind, name, theirs] is None
    assert found["command", "whistle", theirs] is None
    assert "no breath" in found["command", "broken", theirs]
    assert "two commands claim the name 'run'" in found["command", "run", theirs]
    assert found["model", "folded", "sottovoce-papers"] is None
    assert found["model", "linear", "sottovoce"] is None
    assert "7 plug-ins, 3 of which cannot be used" in cli("plugins").out


def test_what_papers_register_counts_as_ours(cli: Any) -> None:
    spec = parse(small_table(model={"kind": "folded"}, data={"dataset": "stars:30", "clients": 2}))
    assert spec.model.model_dump() == {"kind": "folded", "folds": 2}
    assert MODELS.describe_plugin("folded") is None
    assert MODELS.source("folded") == "sottovoce-papers"
    assert "folded" in MODELS.ours()
    with pytest.raises(ConfigError, match="unknown key 'fold'; did you mean 'folds'"):
        parse(small_table(model={"kind": "folded", "fold": 2}))
    assert "stars:" in {entry.name for entry in datasets.entries()}
    shown = cli("data", "show", "stars:40", "--json").json
    assert shown["train_rows"] + shown["test_rows"] == 40


def test_what_papers_would_bring_is_said_where_they_are_not_installed(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = {f"sottovoce.{kinds}": ("origami:", "crane") for kinds in ("models", "datasets")}
    monkeypatch.setattr(registry, "_IN_PAPERS", {**missing, "sottovoce.commands": ("crane",)})
    remedy = "comes with the package sottovoce-papers, which is not installed; install it: pip"
    with pytest.raises(UnknownNameError, match=f"the model 'crane' {remedy}"):
        MODELS.find("crane")
    for words in (("crane", "--json"), ("data", "show", "origami:3")):
        found = cli(*words)
        assert (found.code, remedy in found.err) == (2, True), found.err


def test_what_papers_are_said_to_bring_is_there() -> None:
    """Of this checkout: whatever moves there is registered under the same name."""
    known = {register.group: set(register.names()) for register in REGISTERS}
    for group, names in registry._IN_PAPERS.items():
        assert set(names) <= known[group]
