"""Experiments of one's own: a grid in any folder, changed values, and plug-in mechanisms.

The plug-in is that of docs/how-to/write-a-plug-in.md, and nothing else.
"""

import csv
import importlib
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributions import install
from fake_training import fake_train
from pages import ROOT, blocks
from small_data import images, labels, save, save_split

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L1Ball, L2Ball
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.registry import MECHANISMS
from sottovoce.mechanisms.release import release_event
from sottovoce.privacy import accounting
from sottovoce.privacy.pure import pure_epsilon
from sottovoce.privacy.zcdp import total_rho
from sottovoce.runs.spec import RunSpec
from sottovoce_papers import study
from sottovoce_papers.added_mechanisms import parse_added
from sottovoce_papers.experiment import Row
from sottovoce_papers.learning import study as learning_study
from sottovoce_papers.mean_estimation import at_epsilon, at_rho, choose_domain
from sottovoce_papers.studies import mvu_scalar
from sottovoce_papers.trial import trial

PAGE = ROOT / "docs/how-to/write-a-plug-in.md"
PLUG_IN = next(b.text for b in blocks(PAGE) if b.title == "rounded_gaussian.py")
CLAIM = "assumes that the privacy claims of plug-in mechanism 'rounded_gaussian' (distribution"
ADD = ("--add", "mechanism=rounded_gaussian")
OWN = ("experiment", "run", "sub/my.toml", "--fast")


@pytest.fixture(autouse=True)
def specs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[RunSpec]]:
    """An empty folder with a grid in a folder below; what is trained, in no time; the plug-in."""
    found: list[RunSpec] = []

    def train(spec: RunSpec, *, on_round: Any = None) -> dict[str, Any]:
        found.append(spec)
        return fake_train(spec)

    monkeypatch.setattr(learning_study, "default_train", lambda: train)
    MECHANISMS.ours()  # these stay; the plug-in does not
    monkeypatch.setattr(MECHANISMS, "_entries", dict(MECHANISMS._entries))
    points = {"sottovoce.mechanisms": {"rounded_gaussian": "rounded_gaussian"}}
    install(tmp_path / "plug-ins", "example-plugins", {"rounded_gaussian": PLUG_IN}, points)
    monkeypatch.syspath_prepend(str(tmp_path / "plug-ins"))
    (tmp_path / "here" / "sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    yield found
    sys.modules.pop("rounded_gaussian", None)


@pytest.fixture
def grid(cli: Any) -> Path:
    assert cli("experiment", "init", "sub/my.toml").code == 0
    return Path("sub/my.toml")


def edit(grid: Path, old: str, new: str) -> None:
    text = grid.read_text()
    assert old in text
    grid.write_text(text.replace(old, new, 1))


def result_in(folder: str) -> Any:
    return json.loads(Path(folder, "data.json").read_text())


def test_a_grid_is_begun_run_continued_and_published(
    cli: Any, grid: Path, specs: list[RunSpec]
) -> None:
    before = grid.read_text()
    refused = cli("experiment", "init", grid)
    assert (refused.code, grid.read_text()) == (2, before)
    assert "sub/my.toml exists already" in refused.err
    assert cli("experiment", "init", "my.grid").code == 2
    assert cli(*OWN).code == 0
    assert len(specs) == 20  # ten cells to tune, five rows with two seeds
    assert cli(*OWN).code == 0
    assert len(specs) == 20  # trials are kept
    found = result_in("experiments-out/my")
    assert found["command"] == "sottovoce experiment run my.toml --seeds 2 --fast"
    assert cli("experiment", "publish", grid, "--to", "kept").code == 0
    assert "**Reduced:** rounds is 5" in Path("kept/my/README.md").read_text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("favorite =", "favourit =", "my.toml: unknown key 'favourit'; did you mean 'favorite'?"),
        ("remove =", "remov =", "my.toml: unknown key 'remov'; did you mean 'remove'?"),
        ("clip_norm", "clip_nrm", "my.toml: no privacy, 3.0, 0.5, 1: unknown key 'clip_nrm'; did"),
        ("[experiment]", "[other]", "sub/my.toml has no table [experiment]"),
        ("title =", "title", "sub/my.toml is not valid TOML"),
        (
            'kind = "linear"',
            'kind = "module"\nfactory = "m.py:f"',
            "allow it with --allow-code",
        ),
    ],
)
def test_a_mistake_in_a_grid_is_named_with_its_file(
    cli: Any, grid: Path, specs: list[RunSpec], old: str, new: str, message: str
) -> None:
    edit(grid, old, new)
    found = cli(*OWN)
    assert found.code == 2
    assert message in found.err
    assert not specs


def test_the_name_of_a_catalog_s_experiment_stays_a_name(cli: Any) -> None:
    Path("digits-sweep").write_text("not read")
    assert cli("experiment", "run", "digits-sweep", "--fast").code == 0
    assert "did you mean 'digits-sweep'" in cli("experiment", "run", "digits-swep").err


def test_data_are_found_in_the_folder_of_the_grid(
    cli: Any, grid: Path, specs: list[RunSpec]
) -> None:
    save(Path("sub/mine.npz"), x=np.zeros((4, 2)), y=np.arange(4))
    edit(grid, '"digits"', '"npz:mine.npz"')
    assert cli(*OWN).code == 0
    assert {spec.data.dataset for spec in specs} == {f"npz:{Path('sub/mine.npz').absolute()}"}


def test_changed_values_hold_in_all_trials_and_the_pages_say_so(
    cli: Any, grid: Path, specs: list[RunSpec]
) -> None:
    edit(grid, '"data.validation_fraction" = 0.1', '"data.validation_fraction" = 0.1, rounds = 27')
    changes = ("--set", "rounds=3", "--set", "privacy.delta=1e-6")
    assert cli(*OWN, *changes).code == 0
    assert {(spec.rounds, spec.privacy.delta) for spec in specs} == {(3, 1e-6)}
    assert sum(spec.data.validation_fraction is None for spec in specs) == 10
    found = result_in("experiments-out/my")
    assert "changed: rounds is 3, not 30, privacy.delta is 1e-06, not 1e-05" in found["reduced"]
    assert "rounds is 5" not in found["reduced"]  # --fast would set it
    assert "at delta = 1e-06" in found["method"]
    assert found["command"].endswith("--set rounds=3 --set privacy.delta=1e-6")
    assert cli("experiment", "publish", grid, "--to", "kept").code == 0
    assert "**Reduced:** epsilon 3.0" in (page := Path("kept/my/README.md").read_text())
    assert "changed: rounds is 3" in page


def test_changes_withdraw_what_a_grid_says_about_its_users(cli: Any, grid: Path) -> None:
    edit(grid, "seeds = 5", 'population = "77 writers"\nseeds = 5')
    assert cli(*OWN).code == 0
    assert "for the 77 writers" in result_in("experiments-out/my")["method"]
    assert cli(*OWN, "--set", "data.clients=7").code == 0
    assert "77" not in result_in("experiments-out/my")["method"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("privacy.epsilon=2", "the axis 'epsilon' determines it"),
        ("mechanism.levels=4", "the axis 'mechanism' determines it"),
        ("algorithm={kind='fedavg'}", "the axis 'learning_rate' determines it"),
        ("seed=4", "give their number with --seeds"),
        ("data.validation_fraction=0.2", "those on test data"),
        ("data={dataset='digits', clients=2, validation_fraction=0.2}", "those on test data"),
        ("privacy.delt=1e-6", "unknown key 'delt'; did you mean 'delta'?"),
        ("rounds", "--set needs key=value"),
    ],
)
def test_changes_that_would_not_hold_everywhere_are_refused(
    cli: Any, grid: Path, specs: list[RunSpec], change: str, message: str
) -> None:
    found = cli(*OWN, "--set", change)
    assert found.code == 2
    assert message in found.err
    assert not specs


def test_an_added_mechanism_takes_the_favorite_s_settings_and_is_tuned(
    cli: Any, grid: Path, specs: list[RunSpec]
) -> None:
    edit(
        grid,
        "levels = 2 } }",
        "levels = 2 }, rotation = 'off' }\nremove = ['algorithm.server_momentum']",
    )
    assert cli(*OWN, *ADD, "--add", 'mechanism={kind = "gauss_hermite", levels = 8}').code == 0
    added = [spec for spec in specs if spec.mechanism.kind == "rounded_gaussian"]
    assert len(added) == 2 * (2 + 2)  # two budgets: two rates to tune, two seeds
    assert {spec.rotation for spec in added} == {"off"}
    assert {spec.algorithm.parameters["server_momentum"] for spec in added} != {0.5}
    rows = result_in("experiments-out/my")["rows"]
    assert [row["mechanism"] for row in rows][-4::2] == [
        "rounded_gaussian",
        "gauss_hermite (levels = 8)",
    ]
    assert {row["learning_rate"] for row in rows} == {1.0}
    method = result_in("experiments-out/my")["method"]
    assert "Added to the grid: rounded_gaussian, gauss_hermite (levels = 8), with" in method


def test_a_plug_in_that_has_changed_is_trained_again(
    cli: Any, grid: Path, specs: list[RunSpec], tmp_path: Path
) -> None:
    assert cli(*OWN, *ADD).code == 0
    before = len(specs)
    assert cli(*OWN, *ADD).code == 0
    assert len(specs) == before
    place = tmp_path / "plug-ins" / "rounded_gaussian.py"
    place.write_text(place.read_text().replace("to four bits", "to 4 bits"))
    assert cli(*OWN, *ADD).code == 0
    assert {spec.mechanism.kind for spec in specs[before:]} == {"rounded_gaussian"}
    assert len(specs) == before + 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("my", "rounded_gaussian"), "--add needs key=value"),
        (("my", "epsilon=3"), "--add adds a mechanism"),
        (("my", "mechanism=rounded_gausian"), "did you mean 'rounded_gaussian'"),
        (("my", "mechanism=gauss_hermite"), "'gauss_hermite' needs levels"),
        (("my", "mechanism=no_privacy"), "names no parameter that calibration can set"),
        (("my", "mechanism={kind='gaussian', noise_multiplier=1.0}"), "the budget determines"),
        (("mvu-bits", "mechanism=gaussian"), "'mvu-bits' does not compare mechanisms at a common"),
        (("imvu-bias", "mechanism={kind='generalized_rr', bits=2}"), "inputs in Box, but"),
    ],
)
def test_what_cannot_be_added_is_refused_with_the_reason(
    cli: Any, grid: Path, words: tuple[str, str], message: str
) -> None:
    name, added = words
    found = cli("experiment", "run", grid if name == "my" else name, "--fast", "--add", added)
    assert found.code == 2
    assert message in found.err


def test_a_grid_without_a_budget_has_no_place_for_another_mechanism(cli: Any, grid: Path) -> None:
    edit(grid, 'favorite = "one bit"', 'favorite = "no privacy"')
    found = cli(*OWN, *ADD)
    assert found.code == 2
    assert "'no privacy', whose settings an added mechanism takes, has no budget" in found.err


def test_added_mechanisms_spend_what_they_are_given() -> None:
    (rounded, bits) = parse_added(["mechanism=rounded_gaussian", "mechanism=cldp"])
    ball, wide = L1Ball(dimension=4, radius=1.0), L2Ball(dimension=4, radius=1.0)
    assert choose_domain(rounded, [ball, wide]) == wide
    with pytest.raises(ParameterError, match="needs L1Ball"):
        choose_domain(rounded, [ball])
    for adjacency in Adjacency:
        pure = at_epsilon(bits, wide, adjacency, 2.0, 1e-5, pure=True)
        assert pure.name == "cldp"
        own = pure_epsilon(release_event(pure.mechanism, adjacency=adjacency))
        assert 1.999 < own == pure.spent <= 2.0
        found = at_epsilon(rounded, wide, adjacency, 2.0, 1e-5, pure=True)
        assert found.name == "rounded_gaussian, delta = 1e-05"
        event = release_event(found.mechanism, adjacency=adjacency)
        assert 1.999 < accounting.epsilon(event, 1e-5) == found.spent <= 2.0
    event = release_event(at_rho(rounded, wide, 0.3), adjacency=Adjacency.ZERO_OUT)
    assert 0.2999 < total_rho(event) <= 0.3
    with pytest.raises(ParameterError, match="cannot be calibrated"):
        at_rho(rounded, wide, 1e-30)


def test_the_page_s_plug_in_appears_in_mvu_s_figure_2(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mvu_scalar, "FAST_NUM_CLIENTS", 300)
    assert cli("experiment", "run", "mvu-scalar", "--fast", *ADD).code == 0
    found = result_in("experiments-out/mvu-scalar")
    assert found["rows"][-1]["mechanism"] == "rounded_gaussian, delta = 1e-05"
    assert CLAIM in found["method"]
    assert "every mechanism without a delta in its name is epsilon-DP" in found["method"]
    (figure,) = found["figures"]
    line = figure["chart"]["lines"][-1]
    (added,) = parse_added(["mechanism=rounded_gaussian"])
    one = L2Ball(dimension=1, radius=1.0)
    mechanism = at_epsilon(added, one, Adjacency.REPLACE_ONE, 3.0, 1e-5).mechanism
    assert line["y"][7] == pytest.approx(float(mechanism.law([line["x"][7]]).variance()[0]))
    assert found["rows"][-1]["sampled_over_exact"] == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("name", ["imvu-bias", "imvu-mse"])
def test_the_page_s_plug_in_appears_in_studies_at_equal_rho(cli: Any, name: str) -> None:
    assert cli("experiment", "run", name, "--fast", *ADD).code == 0
    found = result_in(f"experiments-out/{name}")
    assert any(row["mechanism"] == "rounded_gaussian" for row in found["rows"])
    assert CLAIM in found["method"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mvu-vector-l1", "mvu-vector-l2"])
def test_the_page_s_plug_in_appears_in_mvu_s_figure_3(cli: Any, name: str) -> None:
    assert cli("experiment", "run", name, "--fast", *ADD).code == 0
    found = result_in(f"experiments-out/{name}")
    row = found["rows"][-1]
    assert str(row["mechanism"]).startswith("rounded_gaussian")
    assert row["clients_sampled"] == 1000
    assert CLAIM in found["method"]


@pytest.mark.parametrize(
    ("name", "epsilon", "changes"),
    [
        ("imvu-mnist", 6.0, {"data.num_train": 20, "sampling.size": 5, "data.num_test": 10}),
        ("udp-accuracy", 4.0, {"data.num_train": 20, "data.num_test": 10, "data.clients": 2}),
    ],
)
def test_the_page_s_plug_in_appears_in_figures_of_learning(
    cli: Any, monkeypatch: pytest.MonkeyPatch, name: str, epsilon: float, changes: dict[str, int]
) -> None:
    """Trained on stand-in data of the real shape."""
    pytest.importorskip("torch")
    monkeypatch.setattr(learning_study, "default_train", lambda: trial)
    save_split(Path("mnist.npz"), 10, 28, 28)
    save(Path("medical_mnist.npz"), x=images(60, 64, 64), y=labels(60, 6))
    words = [w for path, v in {**changes, "rounds": 1}.items() for w in ("--set", f"{path}={v}")]
    words += ["--only", f"epsilon={epsilon}", "--seeds", "2", "--data-dir", "."]
    assert cli("experiment", "run", name, "--fast", *ADD, *words).code == 0
    found = result_in(f"experiments-out/{name}")
    rows = [row for row in found["rows"] if row["mechanism"] == "rounded_gaussian"]
    assert rows
    assert all(row["failed"] == 0 and row["bits_per_coordinate"] == 4 for row in rows)
    assert all(0.99 * row["epsilon"] < row["epsilon_spent"] <= row["epsilon"] for row in rows)
    assert f"The epsilon of rounded_gaussian {CLAIM}" in found["method"]
    tuned = [one for one in found["trials"] if one["mechanism"] == "rounded_gaussian"]
    assert {one["stage"] for one in tuned} == {"tuning", "final"}


ROWS: list[Row] = [
    {"a": 1, "b": 2, "c": None, "d": True},
    {"a": "not reached", "b": 0.5, "c": 3, "d": False},
]
COLUMNS = {"a": ["1", "not reached"], "b": [2.0, 0.5], "c": [None, 3], "d": [True, False]}


def test_the_rows_are_written_as_parquet_if_pyarrow_is_installed(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = types.ModuleType("pyarrow.parquet")
    arrow = types.ModuleType("pyarrow")
    arrow.table = lambda columns: columns  # type: ignore[attr-defined]
    parquet.write_table = lambda table, file: file.write(repr(table).encode())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyarrow", arrow)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    assert study._parquet(ROWS) == repr(COLUMNS).encode()
    assert cli("experiment", "run", "imvu-bias", "--fast").code == 0
    written = Path("experiments-out/imvu-bias/data.parquet")
    with Path("experiments-out/imvu-bias/data.csv").open(newline="") as file:
        assert written.read_text().startswith(f"{{'{next(csv.reader(file))[0]}': [")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert cli("experiment", "run", "imvu-bias", "--fast").code == 0
    assert not written.exists()  # an earlier run's is removed


def test_parquet_reads_back_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "data.parquet").write_bytes(study._parquet(ROWS) or b"")
    read = importlib.import_module("pyarrow.parquet").read_table(tmp_path / "data.parquet")
    assert read.to_pydict() == COLUMNS
