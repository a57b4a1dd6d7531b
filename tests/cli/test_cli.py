"""The command line, driven as a user drives it: arguments in, text and exit code out."""

import json
import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from specs import small_table

import sottovoce
from sottovoce.core.native import NativeMissingWarning
from sottovoce.federated.training import Training

SPEND = "privacy spend --mechanism gaussian --param noise_multiplier=10 --rounds 100 --delta 1e-5"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    lines = []
    for key, value in small_table().items():
        if isinstance(value, dict):
            lines.append(f"[{key}]")
            lines += [f"{k} = {json.dumps(v)}" for k, v in value.items()]
        else:
            lines.append(f"{key} = {json.dumps(value)}")
    path = tmp_path / "spec.toml"
    path.write_text("\n".join(lines))
    return path


def test_spend_gives_the_exact_gaussian_value(cli: Any) -> None:
    """Sigma = 10, T = 100, delta = 1e-5: 4.37718 exactly (Balle and Wang 2018)."""
    result = cli(*SPEND.split(), "--json").json
    assert result["epsilon"] == pytest.approx(4.37718, abs=1e-5)
    assert result["adjacency"] == "zero-out"
    assert result["accountant"] == "gaussian"


def test_spend_under_replace_one_equals_half_the_noise_under_zero_out(cli: Any) -> None:
    replace = cli(*SPEND.split(), "--adjacency", "replace-one", "--json").json
    halved = cli(*SPEND.replace("=10", "=5").split(), "--json").json
    assert replace["epsilon"] == pytest.approx(halved["epsilon"])
    assert replace["adjacency"] == "replace-one"


def test_spend_prints_fields_for_people_and_warns_of_float_noise(cli: Any) -> None:
    result = cli(*SPEND.split())
    assert "epsilon" in result.out
    assert "simulation only" in result.out


def test_no_privacy_has_an_infinite_epsilon(cli: Any) -> None:
    words = "privacy spend --mechanism no_privacy --delta 1e-5"
    assert cli(*f"{words} --json".split()).json["epsilon"] is None
    assert "infinite" in cli(*words.split()).out


def test_calibrate_finds_parameters_that_spend_then_confirms(cli: Any) -> None:
    common = "--mechanism gauss_hermite --param levels=2 --delta 1e-6 --rounds 20 --json"
    shape = "--dimension 1000 --clip-norm 0.5"
    found = cli(*f"privacy calibrate {common} {shape} --epsilon 3".split()).json
    noise = found["parameters"]["noise_multiplier"]
    given = f"--param noise_multiplier={noise!r}"
    spent = cli(*f"privacy spend {common} {shape} {given}".split()).json
    assert 2.999 < spent["epsilon"] <= 3.0
    assert found["noise_stddev"] == pytest.approx(0.5 * noise)


def test_mechanisms_are_listed_with_kind_parameters_and_example(cli: Any) -> None:
    rows = {row["kind"]: row for row in cli("mechanism", "list", "--json").json}
    assert set(rows) >= {"no_privacy", "gaussian", "gauss_hermite"}
    assert set(rows["gauss_hermite"]["parameters"]) == {"levels", "noise_multiplier"}
    assert rows["gauss_hermite"]["example"]["levels"] == 2
    assert "gauss_hermite" in cli("mechanism", "list").out
    assert "Gauss-Hermite nodes" in cli("mechanism", "show", "gauss_hermite").out
    assert cli("mechanism", "show", "gaussian", "--json").json["kind"] == "gaussian"


def test_the_sampling_grade_is_shown_wherever_a_mechanism_is(cli: Any) -> None:
    rows = {row["kind"]: row for row in cli("mechanism", "list", "--json").json}
    grades = {kind: rows[kind]["sampling_grade"] for kind in ("gaussian", "discrete_gaussian")}
    assert grades == {"gaussian": "float", "discrete_gaussian": "exact"}
    assert "sampling" in cli("mechanism", "list").out
    discrete = (
        SPEND.replace("gaussian", "discrete_gaussian") + " --param bits=8 "
        "--param steps_per_radius=auto"
    )
    for command in ("spend", "curve"):
        assert "simulation only" in cli(*SPEND.replace("spend", command).split()).out
        words = discrete.replace("spend", command).split()
        assert cli(*words, "--json").json["sampling_grade"] == "exact"
        assert "exact" in cli(*words).out
    for kind in grades:
        assert grades[kind] in cli("mechanism", "show", kind).out


BAD_CALLS = [
    ("privacy spend --mechanism gausian --delta 1e-5", "did you mean 'gaussian'"),
    (SPEND.replace("1e-5", "0"), "strictly between 0 and 1"),
    (SPEND.replace("1e-5", "1e9"), "strictly between 0 and 1"),
    (SPEND.replace("1e-5", "nan"), "strictly between 0 and 1"),
    (SPEND.replace("=10", "=0"), "noise_multiplier must lie between"),
    (SPEND.replace("=10", "=nan"), "noise_multiplier must lie between"),
    (SPEND.replace("=10", "=-3"), "noise_multiplier must lie between"),
    (SPEND.replace("=10", "=many"), "must be a number, got 'many'"),
    (SPEND.replace("--rounds 100", "--rounds 0"), "rounds must be an integer from 1"),
    (SPEND.replace("noise_multiplier=10", "noise=1"), "unknown parameter of 'gaussian' 'noise'"),
    (SPEND.replace("--param noise_multiplier=10", ""), "needs noise_multiplier"),
    (SPEND.replace("noise_multiplier=10", "noise_multiplier"), "--param needs key=value"),
    (SPEND + " --adjacency add-remove", "valid names: replace-one, zero-out"),
    (SPEND + " --dimension 0", "dimension must be an integer from 1"),
    (SPEND + " --clip-norm 0", "clip_norm"),
    ("privacy spend --mechanism gauss_hermite --param levels=0 --param noise_multiplier=1 "
     "--delta 1e-5", "levels must be an integer from 2 to 256, got 0"),
    ("privacy spend --mechanism gauss_hermite --param levels=18446744073709551616 --param "
     "noise_multiplier=1 --delta 1e-5", "levels must be an integer from 2 to 256"),
    ("privacy calibrate --mechanism gaussian --epsilon 0 --delta 1e-5", "epsilon must be"),
    ("privacy calibrate --mechanism gaussian --epsilon -1 --delta 1e-5", "epsilon must be"),
    ("privacy calibrate --mechanism gaussian --epsilon nan --delta 1e-5", "epsilon must be"),
    ("privacy calibrate --mechanism gaussian --epsilon 1e9 --delta 1e-5", "at most 1000"),
    ("privacy calibrate --mechanism no_privacy --epsilon 1 --delta 1e-5", "no parameter to"),
    ("privacy calibrate --mechanism gaussian --param noise_multiplier=1 --epsilon 1 --delta 1e-5 "
     "--rounds 3", "is the parameter that calibration finds"),
    ("privacy calibrate --mechanism gaussian --param noise_multiplier=1 --epsilon 1 --delta 1e-5",
     "one round alone spends epsilon = 4.3772"),
    ("mechanism show nothing", "unknown mechanism 'nothing'"),
    (SPEND.replace("--rounds 100", "--rounds 1e3"), "'1e3' is not a valid"),
    (SPEND.replace("--delta 1e-5", ""), "Missing option '--delta'"),
    ("plan", "Missing options '--epsilon', '--delta', '--dimension'; see --help"),
    ("estimate mean x.csv --epsilon=1", "Missing options '--lower', '--upper'; see --help"),
    (SPEND + " --epsilom 3", "No such option '--epsilom'"),
    (SPEND + " --param noise_multiplier=3", "gives 'noise_multiplier' twice"),
    (SPEND + " --clip-norm 1e-320", "must be at least 1e-100"),
    ("privacy spent", "No such command 'spent'"),
    ("run", "Missing argument"),
    ("run nowhere.toml", "there is no spec nowhere.toml"),
    ("ledger show nowhere", "no ledger at nowhere"),
    ("export nowhere model.safetensors", "not a run folder"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message"), BAD_CALLS)
def test_a_users_mistake_is_one_line_and_exit_two(cli: Any, line: str, message: str) -> None:
    result = cli(*line.split())
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""


def test_debug_shows_the_traceback_wherever_it_stands(cli: Any) -> None:
    for line in ("--debug mechanism show nothing", "mechanism show nothing --debug"):
        shown = cli(*line.split())
        assert "Traceback" in shown.err
        assert shown.code != 0


def test_run_ledger_and_export_work_together(cli: Any, spec: Path, tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    result = cli("run", spec, "--out", run_folder, "--set", "rounds=3", "--json").json
    assert result["rounds"] == 3

    rows = cli("ledger", "show", run_folder, "--json").json
    assert len(rows) == 4
    assert all(row["charges"] == 3 and 3.99 < row["epsilon"] <= row["budget"] for row in rows)
    one = cli("ledger", "show", run_folder, "--client", "client-0001", "--json").json
    assert [row["client"] for row in one] == ["client-0001"]
    assert all(0.0 <= row["left"] <= row["budget"] - row["epsilon"] for row in rows)
    shown = cli("ledger", "show", run_folder).out
    assert "client-0001" in shown
    assert "left" in shown
    elsewhere = cli("ledger", "show", run_folder, "--delta", "1e-3", "--json").json
    assert all(row["left"] is None for row in elsewhere)  # the budget is at another delta
    assert f"name one of {run_folder}" in cli("ledger", "show", tmp_path).err
    assert "did you mean" in cli("ledger", "show", run_folder, "--client", "client-1").err

    lines = cli("ledger", "export", run_folder, "--client", "client-0002").out.splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]
    assert len(cli("ledger", "export", run_folder, "--json").json) == 12
    cli("ledger", "export", run_folder, "--out", tmp_path / "ledger.jsonl")
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 12

    assert cli("ledger", "verify", run_folder, "--json").json["ok"] is True
    written = cli("export", run_folder, tmp_path / "m.safetensors", "--json").json
    assert written["parameters"] == 650

    from safetensors import safe_open

    with safe_open(tmp_path / "m.safetensors", framework="numpy") as tensors:
        assert set(tensors.keys()) == {"weight", "bias"}
        assert tensors.metadata()["adjacency"] == "zero-out"


def test_verify_notices_a_doctored_ledger_and_exits_one(
    cli: Any, spec: Path, tmp_path: Path
) -> None:
    cli("run", spec, "--out", tmp_path / "run", "--set", "rounds=2")
    with sqlite3.connect(tmp_path / "run" / "ledger.sqlite") as db:
        db.execute("DROP TRIGGER no_message_is_forgotten")
        db.execute("DELETE FROM messages")
        db.execute("DELETE FROM charges WHERE id = 3")
    db.close()
    result = cli("ledger", "verify", tmp_path / "run", "--json")
    assert result.code == 1
    assert json.loads(result.out)["ok"] is False


def test_run_refuses_a_used_folder_and_resumes_it(cli: Any, spec: Path, tmp_path: Path) -> None:
    first = cli("run", spec, "--out", tmp_path / "run", "--json").json
    again = cli("run", spec, "--out", tmp_path / "run")
    assert again.code == 2
    assert "holds a finished run; choose another folder" in again.err
    resumed = cli("run", spec, "--out", tmp_path / "run", "--resume", "--json").json
    assert resumed == first


def test_run_ends_with_six_lines_and_the_next_commands(
    cli: Any, spec: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shown = cli("run", spec, "--out", folder)
    summary, _, commands = shown.out.partition("\n\n")
    names = [line.split()[0] for line in summary.splitlines() if line[:1].strip()]
    assert names == ["run", "model", "protected", "spent", "assumes", "sent"]
    text = " ".join(summary.split())
    for words in (
        "against anyone who sees the messages and the models, the server included",
        "(sample level, adjacency zero-out)",
        "(simulation only) of a budget of 4 at delta 1e-05 after 6 of 6 rounds, by the",
        "simulation only: its noise comes from a seed",
    ):
        assert words in text
    assert max(map(len, summary.splitlines())) <= 100
    for command in ("report", "ledger show", "export"):
        assert f"  sottovoce {command} {folder}" in commands


def test_no_privacy_says_that_nothing_is_protected(cli: Any, spec: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.toml"
    lines = spec.read_text().splitlines(keepends=True)
    bare.write_text("".join(line for line in lines if not line.startswith("epsilon")))
    given: tuple[str, ...] = ("--set", "mechanism={kind='no_privacy'}", "--set", "rounds=1")
    shown = cli("run", bare, "--out", tmp_path / "run", *given)
    assert "protected  Nothing is protected by this run" in shown.out
    assert "of a budget" not in shown.out
    client = "privacy.level='client'", "algorithm.local_learning_rate=0.1", "evaluation.private={}"
    given += tuple(word for key in client for word in ("--set", key))
    shown = cli("run", bare, "--out", tmp_path / "measured", *given)
    assert "on clients' records before round 1 (not private)" in " ".join(shown.out.split())


def test_version_and_help_are_there(cli: Any) -> None:
    from sottovoce import __version__

    assert __version__ in cli("--version").out
    for line in ("--help", "run --help", "privacy --help", "ledger show --help", "demo --help"):
        assert cli(*line.split()).code == 0


def test_a_missing_extra_is_named(cli: Any, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # import torch now fails as if absent
    forgotten = ("local_learning", "algorithms", "simulation", "experiments")
    for name in [m for m in sys.modules if m.startswith("sottovoce.")]:
        if name.split(".")[1] in forgotten:
            monkeypatch.delitem(sys.modules, name)
    for name in forgotten:  # a fresh import must not stay in the package
        monkeypatch.setattr(sottovoce, name, getattr(sottovoce, name, None), raising=False)
    result = cli("run", spec)
    assert result.code == 2
    assert "pip install 'sottovoce[learn]'" in result.err


def test_export_overwrites_nothing_but_a_model(cli: Any, spec: Path, tmp_path: Path) -> None:
    cli("run", spec, "--out", tmp_path / "run", "--set", "rounds=2")
    before = (tmp_path / "run" / "ledger.sqlite").read_bytes()
    result = cli("export", tmp_path / "run", tmp_path / "run" / "ledger.sqlite")
    assert result.code == 2
    assert "must end in .safetensors" in result.err
    assert (tmp_path / "run" / "ledger.sqlite").read_bytes() == before


def test_output_that_cannot_be_written_is_one_line() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with Path("/dev/full").open("w") as full:
        shown = subprocess.run(
            [sys.executable, "-m", "sottovoce", "mechanism", "list", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert shown.returncode != 0
    assert "Traceback" not in shown.stderr
    assert "No space left" in shown.stderr


def test_an_interrupted_run_says_how_to_go_on(
    cli: Any, spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Training, "step", interrupt)
    result = cli("run", spec, "--out", tmp_path / "run", "--json")
    assert result.code == 130
    assert result.err.splitlines()[-1] == (
        f"stopped by SIGINT before the end of round 1 of 6; continue with: "
        f"sottovoce run {spec} --out {tmp_path / 'run'} --json --resume"
    )
    assert json.loads(result.out)["rounds_done"] == 0


def test_a_client_without_a_guarantee_has_spent_an_infinite_epsilon(
    cli: Any, spec: Path, tmp_path: Path
) -> None:
    table = "privacy={level='sample', clip_norm=1.0, delta=1e-5}"
    mechanism = "mechanism={kind='no_privacy'}"
    cli("run", spec, "--out", tmp_path / "run", "--set", table, "--set", mechanism)
    assert "infinite" in cli("ledger", "show", tmp_path / "run").out


def test_a_halted_run_ends_well_and_says_so(cli: Any, spec: Path, tmp_path: Path) -> None:
    loud = "mechanism={kind='gauss_hermite', levels=2, noise_multiplier=2.0}"
    result = cli("run", spec, "--out", tmp_path / "run", "--set", loud)
    assert result.code == 0
    assert "warning: halted after 3 of 6 rounds" in result.err
    assert "halted because before round 4 only 0 of 4 clients" in " ".join(result.out.split())


def test_groups_are_shown_in_a_table_and_each_client_at_its_own_delta(
    cli: Any, spec: Path, tmp_path: Path
) -> None:
    groups = "privacy.groups=[{clients=1, epsilon=1.0, delta=1e-7}]"
    result = cli("run", spec, "--out", tmp_path / "run", "--set", "rounds=2", "--set", groups)
    assert result.code == 0
    assert "ran out" in result.out
    assert (
        "clients have different budgets (epsilon 1 at delta 1e-07, 4 at delta 1e-05)"
        in " ".join(result.out.split())
    )
    first, *others = cli("ledger", "show", tmp_path / "run", "--json").json
    assert (first["budget"], first["delta"]) == (1.0, 1e-7)
    assert {row["delta"] for row in others} == {1e-5}
    assert all(row["epsilon"] <= row["budget"] for row in (first, *others))
    at = cli("ledger", "show", tmp_path / "run", "--delta", "1e-3", "--json").json
    assert {row["delta"] for row in at} == {1e-3}


@pytest.mark.parametrize("command", ["show", "verify", "export"])
@pytest.mark.parametrize("content", [b"garbage " * 1000, b"", b"SQLite format 3"])
def test_a_damaged_ledger_is_one_line_and_exit_two(
    cli: Any, tmp_path: Path, command: str, content: bytes
) -> None:
    (tmp_path / "ledger.sqlite").write_bytes(content)
    result = cli("ledger", command, tmp_path / "ledger.sqlite")
    assert result.code == 2
    assert len(result.err.strip().splitlines()) == 1
    assert (tmp_path / "ledger.sqlite").read_bytes() == content


DESIGN = ["mechanism", "design", "mvu", "--epsilon", "3", "--output-bits", "3"]


def test_design_prints_the_table_and_its_certificate(cli: Any, tmp_path: Path) -> None:
    picture = tmp_path / "design.svg"
    result = cli(*DESIGN, "--input-bits", 3, "--plot", picture, "--out", tmp_path, "--json").json
    assert result["sum_of_variances"] <= 0.548243 * 1.001
    assert 0.54 < result["lower_bound"] <= result["sum_of_variances"]
    assert max(result["max_bias"], result["dp_excess"], result["row_error"]) <= 1e-12
    assert result["table_epsilon"] <= 3.0
    assert result["solve_seconds"] > 0.0
    assert len(result["alphabet"]) == 8
    assert [len(row) for row in result["probabilities"]] == [8] * 8
    assert picture.read_text().startswith("<svg")
    assert Path(result["saved"]).is_file()


def test_design_for_people_shows_the_matrix(cli: Any) -> None:
    shown = cli(*DESIGN, "--input-bits", 3)
    assert shown.code == 0
    assert "lower_bound" in shown.out
    assert "0.5795" in shown.out  # the largest cell
    assert "--plot" in cli(*DESIGN[:5], "--output-bits", 1, "--input-bits", 8).out


def test_a_metric_design_speaks_in_the_units_it_was_asked_in(cli: Any) -> None:
    words = "mechanism design mvu --epsilon 21 --input-bits 3 --output-bits 1 --json --metric"
    for metric in ("l1", "l2_squared"):
        result = cli(*words.split(), metric).json
        assert result["metric"].startswith(metric)
        assert result["table_epsilon"] == pytest.approx(21.0, rel=1e-6)
        assert result["table_epsilon"] <= 21.0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--epsilon 0 --input-bits 3 --output-bits 3", "epsilon"),
        ("--epsilon nan --input-bits 3 --output-bits 3", "epsilon"),
        ("--epsilon 1e6 --input-bits 3 --output-bits 3", "between 0.001 and 60"),
        ("--epsilon 1 --input-bits 20 --output-bits 3", "input_bits"),
        ("--epsilon 1 --input-bits 3 --output-bits 0", "output_bits"),
        ("--epsilon 1 --output-bits 3", "one of --input-bits and --continuous"),
        ("--epsilon 1 --continuous --output-bits 3 --metric l1", "input_bits"),
        ("--epsilon 1 --input-bits 3 --output-bits 3 --metric l3", "did you mean 'l1'"),
    ],
)
def test_a_design_that_cannot_be_is_one_line_and_exit_2(cli: Any, words: str, reason: str) -> None:
    shown = cli("mechanism", "design", "mvu", *words.split())
    assert shown.code == 2
    assert reason in shown.err
    assert len(shown.err.splitlines()) == 1


def test_a_damaged_cache_is_one_line_that_says_what_to_delete(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sottovoce.mechanisms.design import store

    monkeypatch.setenv("SOTTOVOCE_CACHE", str(tmp_path))
    words = [
        "mechanism",
        "design",
        "mvu",
        "--epsilon",
        "2.375",
        "--input-bits",
        "2",
        "--output-bits",
        "1",
    ]
    assert cli(*words).code == 0
    (found,) = (tmp_path / "designs").glob("*.npz")
    found.write_bytes(found.read_bytes()[:100])
    store.find.cache_clear()
    shown = cli(*words)
    assert shown.code == 2
    assert "delete it and it will be solved again" in shown.err


@pytest.mark.parametrize(
    ("geometry", "expected"), [("l1", 1.0), ("l2", None), ("linf", 2.5), (None, 1.0)]
)
def test_spend_knows_the_clip_geometries(
    cli: Any, geometry: str | None, expected: float | None
) -> None:
    words = (
        "privacy spend --mechanism laplace --param noise_multiplier=1 --dimension 5 --delta 1e-9"
    )
    chosen = ("--clip-geometry", geometry) if geometry else ()
    result = cli(*words.split(), *chosen, "--json").json
    assert result["clip_geometry"] == (geometry or "l1")
    if expected:
        assert result["epsilon"] == pytest.approx(expected, rel=1e-6)


def test_python_m_sottovoce_is_the_command_line() -> None:
    call = [sys.executable, "-m", "sottovoce", "--version"]
    shown = subprocess.run(call, capture_output=True, text=True, check=True)
    assert shown.stdout == f"sottovoce {sottovoce.__version__}\n"


def test_missing_kernels_are_one_line_without_a_place_in_our_code(cli: Any) -> None:
    cli("--version")  # the command line has begun
    missed = NativeMissingWarning("no kernels")
    shown = warnings.formatwarning(missed, NativeMissingWarning, "n.py", 7)
    assert shown == "warning: no kernels\n"
    assert "n.py:7" in warnings.formatwarning("odd", UserWarning, "n.py", 7)
