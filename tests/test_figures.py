"""The register of figures is whole, its readers read, and nothing unread passes."""

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import measure_figures
import pytest
from figures import figure as figure_module
from figures import page as figures_page
from figures import register, running
from figures.figure import (
    Figure,
    Kept,
    Model,
    Output,
    Reader,
    Source,
    UnreadableError,
    at_most,
    failed_tests,
    field,
    read,
    wall_seconds,
)
from figures.page import AT_CHANCE, NOT_JUDGED, NOT_MEASURED, REACHED, REDUCED, SHORT

from sottovoce.cli.main import parser

ROOT = Path(__file__).parents[1]
COMMANDS = parser().commands
FIGURES = [figure for theme in register.themes().values() for figure in theme]
SOURCES = list(dict.fromkeys(figure.source for figure in FIGURES))
# What commands printed, cut to what is read. {figure: (its number, output)}
RECORDED: dict[str, tuple[float, str]] = {
    "demo-one-bit": (0.25, '{"comparison": {"accuracy_difference_mean": -0.0025}}'),
    "demo-accuracy": (
        0.906,
        '{"variants": [{"private": false}, {"private": true, "epsilon": 5.0, "delta": 1e-5, '
        '"accuracy_mean": 0.906}]}',
    ),
    "envelope-milliseconds": (
        0.82,
        "envelope against the linear programme: 2.2e-16, 0.82 ms an order",
    ),
    "envelope-exact": (
        2.2e-16,
        "envelope against the linear programme: 2.2e-16, 0.82 ms an order",
    ),
    "design-variances": (
        1.2,
        '[{"variance_over_best_known": 0.9}, {"variance_over_best_known": 1.2}]',
    ),
    "ledger-seconds": (44.8, "1000000 charges\n  44.8 s, 22341 charges/s, 105 MB on disk\n"),
    "ledger-renyi": (2.0, "nothing cached\n  renyi  1.2345 in 2 ms\n  pld    1.1 in 212 ms\n"),
    "ledger-pld": (212.0, "nothing cached\n  renyi  1.2345 in 2 ms\n  pld    1.1 in 212 ms\n"),
    "round-overhead": (
        0.17,
        "seconds a round, ours   1.06  1 1\nratio                      0.17\n",
    ),
    "wire-up": (
        1.092,
        "  up    payload   124,999  sealed   125,043  wire   136,561  ratio 1.092\n"
        "  down  payload 3,999,940  wire 4,009,000  ratio 2.002\n",
    ),
    "shadows-minutes": (
        2.0,
        "64 shadows, 10 epochs of 2500 images: 120.0 s, 200.0 s of processors",
    ),
    "mismatches": (0.0, "codes   kernels   draws\n1 bit   avx2  1,000  0\n0 mismatches, 67 s\n"),
    "plan-predictions": (0.0125, "  laplace  predicted 1 simulated 1  ratio 0.9875\n"),
    "make-test": (9.5, "16160 passed in 500s\nmake test took 570 s\n"),
    "parity": (1.0, "FAILED tests/x.py::test_y\n1 failed, 4 passed, 2 skipped in 60.1s\n"),
}


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_a_figure_says_what_is_asked_and_how_it_is_measured(figure: Figure) -> None:
    assert re.fullmatch(r"[a-z0-9-]+", figure.name)
    assert len(figure.asked) > 10
    assert figure.bound.low > -math.inf or figure.bound.high < math.inf
    assert figure.source.command
    with pytest.raises(UnreadableError):  # nothing printed, no time taken: never a pass
        read(figure, Output(text=""))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_a_source_names_what_exists(source: Source | Kept) -> None:
    words = source.command.split()
    assert words[0] in {"sottovoce", "python", "pytest", "bash"}
    for word in re.findall(r"(?:papers/tests|tests|benchmarks|examples)/[\w/.]+", source.command):
        assert (ROOT / word).exists(), word
    for file, name in re.findall(r"((?:papers/)?tests/[\w/.]+)::(\w+)", source.command):
        assert f"\ndef {name}(" in (ROOT / file).read_text()
    if words[0] == "sottovoce" and not words[1].startswith("-"):
        assert words[1] in COMMANDS
    if isinstance(source, Kept):
        assert (ROOT / source.path).exists()
    else:
        assert source.minutes > 0.0


@pytest.mark.parametrize("name", RECORDED)
def test_readers_find_the_number_in_what_was_printed(name: str) -> None:
    (figure,) = (figure for figure in FIGURES if figure.name == name)
    expected, text = RECORDED[name]
    assert read(figure, Output(text=text, seconds=1.0)) == pytest.approx(expected)


@pytest.mark.parametrize(
    "figure", [one for one in FIGURES if isinstance(one.source, Kept)], ids=lambda one: one.name
)
def test_kept_results_are_read(figure: Figure) -> None:
    assert isinstance(figure.source, Kept)
    path = ROOT / figure.source.path
    assert math.isfinite(read(figure, Output(text=path.read_text(), folder=path.parent)))


_VALUE = field("value")


def _figure(command: str, reader: Reader = _VALUE, **more: Any) -> Figure:
    source = Source(name="planted", command=command, minutes=0.1)
    return Figure(
        name="planted", asked="planted here", bound=at_most(1.0), source=source, read=reader, **more
    )


def _json(value: object) -> str:
    return f"""python -c 'print("{{\\"value\\": {value}}}")'"""


def _measured(
    figure: Figure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], int]:
    monkeypatch.setattr(measure_figures, "WORKSHOP", tmp_path)
    monkeypatch.setattr(running, "_others_now", lambda: 0.0)
    monkeypatch.setattr(running, "_shares", lambda *_: (0.0, 0.0))
    records, failures = measure_figures.measured(figure.source, [figure])
    return records["planted"], failures


@pytest.mark.parametrize(
    ("figure", "verdict", "failures"),
    [
        (_figure(_json(0.5)), REACHED, 0),
        (_figure(_json(1.5)), SHORT, 0),
        (_figure(_json("NaN")), NOT_MEASURED, 1),
        (_figure(_json(1), field("another")), NOT_MEASURED, 1),
        (_figure("python -c 'raise SystemExit(3)'", wall_seconds), NOT_MEASURED, 1),
        (_figure("python no-such-file.py", failed_tests), NOT_MEASURED, 1),
    ],
    ids=["reached", "short", "nan", "unread", "crash", "no such file"],
)
def test_a_verdict_is_given_only_to_a_number(
    figure: Figure,
    verdict: str,
    failures: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record, failed = _measured(figure, tmp_path, monkeypatch)
    assert (record["verdict"], failed) == (verdict, failures)
    assert ("value" in record) == (verdict in (REACHED, SHORT))


def test_a_time_of_a_busy_machine_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "MOST_OTHERS", -1.0)
    timed, _ = _measured(_figure(_json(1.5), timed=True), tmp_path / "a", monkeypatch)
    untimed, _ = _measured(_figure(_json(1.5)), tmp_path / "b", monkeypatch)
    assert (timed["verdict"], untimed["verdict"]) == (NOT_JUDGED, SHORT)


@pytest.mark.parametrize(("unit", "verdict"), [("s", REACHED), ("times", NOT_JUDGED)])
def test_seconds_that_suffice_on_a_busy_machine_do_so_on_a_quiet_one(
    unit: str, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "MOST_OTHERS", -1.0)
    figure = _figure(_json(0.5), timed=True, unit=unit)
    assert _measured(figure, tmp_path, monkeypatch)[0]["verdict"] == verdict


@pytest.mark.parametrize("value", [0.5, 1.5])
def test_a_reduced_run_is_never_judged(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a command with --fast nor a kept result whose page says what was reduced."""
    live, _ = _measured(_figure(f"{_json(value)} --fast"), tmp_path, monkeypatch)
    asked_for, _ = _measured(
        _figure(f"{_json(value)} --fast", about_reduced=True), tmp_path, monkeypatch
    )
    assert (live["verdict"], live["run"], live["value"]) == (REDUCED, "reduced", value)
    assert asked_for["verdict"] == (REACHED if value <= 1.0 else SHORT)
    kept, _ = _kept_record(tmp_path, monkeypatch, value, "**Reduced:** 2 rounds, not 150.")
    assert (kept["verdict"], kept["reason"]) == (REDUCED, "2 rounds, not 150.")
    assert _kept_record(tmp_path, monkeypatch, 0.5, "")[0]["verdict"] == REACHED


@pytest.mark.parametrize(
    ("accuracy_low", "verdict"), [(0.1136, REACHED), (0.1135, AT_CHANCE), (math.nan, AT_CHANCE)]
)
def test_a_model_at_chance_never_reaches_a_figure(
    accuracy_low: float, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = (
        Model(name="fine", accuracy_low=0.9, constant=0.1135),
        Model(name="planted", accuracy_low=accuracy_low, constant=0.1135),
    )
    figure = _figure(_json(0.5), models=lambda _: models)
    record, _ = _measured(figure, tmp_path, monkeypatch)
    assert record["verdict"] == verdict
    assert record.get("reason") == (None if verdict == REACHED else "planted")


def test_the_command_printed_is_the_command_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what the register says today; what did not run is marked."""
    record, figure = _kept_record(tmp_path, monkeypatch, 0.5, "")
    assert record["command"] == "sottovoce experiment run planted --seeds 3 --fast"
    page = figures_page.page({"toys": (figure,)}, {"planted": {**record, "command": "ran so"}})
    assert "| `ran so` | kept result" in page
    assert "full run" in page
    page = figures_page.page({"toys": (figure,)}, {})
    assert f"| not measured | not run: `{record['command']}` |" in page


def _kept_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float, reduced: str
) -> tuple[dict[str, Any], Figure]:
    (tmp_path / "data.json").write_text(json.dumps({"value": value}))
    again = "- Again: `sottovoce experiment run planted --seeds 3 --fast`"
    (tmp_path / "README.md").write_text(f"# Planted\n\n{reduced}\n\n{again}\n")
    monkeypatch.setattr(figure_module, "ROOT", tmp_path)
    monkeypatch.setattr(measure_figures, "ROOT", tmp_path)
    source = Kept(path="data.json")
    figure = Figure(
        name="planted", asked="planted here", bound=at_most(1.0), source=source, read=_VALUE
    )
    records, _ = measure_figures.measured(source, [figure])
    return records["planted"], figure


def test_the_page_in_results_keeps_to_that() -> None:
    records = json.loads((ROOT / "results" / "figures.json").read_text())
    page = (ROOT / "results" / "figures.md").read_text()
    for figure in FIGURES:
        source, record = figure.source, records.get(figure.name, {"verdict": NOT_MEASURED})
        if source.reduced and not figure.about_reduced:
            assert record["verdict"] in (REDUCED, NOT_MEASURED), figure.name
        if isinstance(source, Kept):
            assert f"`{record['command']}`" in page
            assert record["command"] == source.command != "not recorded"
            text = (ROOT / source.path).read_text()
            learned = source.path.endswith("/data.csv") and ",accuracy_low," in text
            assert not learned or figure.models or figure.name == "seeded-shuffled"


def test_a_source_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Source, "timeout_seconds", 0.2)
    figure = _figure("python -c 'import time; time.sleep(60)'", wall_seconds)
    record, failed = _measured(figure, tmp_path, monkeypatch)
    assert (record["verdict"], failed) == (NOT_MEASURED, 1)


def test_a_source_is_measured_once_at_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = tmp_path / "tally"
    count = f"""python -c 'open("{tally}", "a").write("x"); print("{{\\"value\\": 0}}")'"""
    for commit in ("one", "one", "two", "two+", "two+"):  # '+': files differ, so always anew
        monkeypatch.setattr(running, "code_commit", lambda commit=commit: commit)
        assert _measured(_figure(count), tmp_path / "w", monkeypatch)[0]["verdict"] == REACHED
    assert len(tally.read_text()) == 4


def test_skipping_every_test_is_no_pass() -> None:
    assert failed_tests(Output(text="12 passed, 1 skipped in 1.2s")) == 0
    assert failed_tests(Output(text="1 failed, 12 passed, 2 errors in 1.2s")) == 3
    for text in ("3 skipped in 0.1s", "no tests ran in 0.1s", ""):
        with pytest.raises(UnreadableError):
            failed_tests(Output(text=text))


def test_the_command_writes_a_page_and_says_by_its_exit_what_was_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = (_figure(_json(2.0), known_reason="It is planted."),)
    monkeypatch.setattr(register, "themes", lambda: {"toys": figures})
    monkeypatch.setattr(measure_figures, "WORKSHOP", tmp_path / "w")
    given = ["--results", str(tmp_path)]
    assert measure_figures.main([*given, "--within", "0.01"]) == 0
    assert "takes about 0.1 minutes" in (tmp_path / "figures.md").read_text()
    assert measure_figures.main(given) == 0
    page = (tmp_path / "figures.md").read_text()
    assert "- **planted here**: asked at most 1, measured 2. It is planted." in page
    assert page.index("What falls short") < page.index("## Toys")
    assert json.loads((tmp_path / "figures.json").read_text())["planted"]["value"] == 2.0
    broken = (_figure(f"{Path(sys.executable).name} --no-such-option", wall_seconds),)
    monkeypatch.setattr(register, "themes", lambda: {"toys": broken})
    assert measure_figures.main([*given, "--again"]) == 1
    with pytest.raises(SystemExit):
        measure_figures.main([*given, "--only", "nothing-like-this"])


def test_what_needs_data_is_left_out_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(name="x", command="python", minutes=1.0, needs_data=True)
    monkeypatch.delenv("SOTTOVOCE_DATA", raising=False)
    assert "SOTTOVOCE_DATA" in measure_figures._left_out(source, None)
    monkeypatch.setenv("SOTTOVOCE_DATA", "/anywhere")
    assert measure_figures._left_out(source, None) == ""
