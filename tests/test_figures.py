"""The register of figures is whole, its readers read, and nothing unread passes."""

import dataclasses
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import measure_figures
import pytest
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
from figures.page import NOT_LEARNED, NOT_MEASURED, REACHED, REDUCED, SHORT

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
    ("figure", "state", "failures"),
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
def test_only_a_number_is_judged(
    figure: Figure,
    state: str,
    failures: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record, failed = _measured(figure, tmp_path, monkeypatch)
    assert (record["state"], failed) == (state, failures)
    assert ("value" in record) == (state in (REACHED, SHORT))


def test_a_time_of_a_busy_machine_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "MOST_OTHERS", -1.0)
    timed, _ = _measured(_figure(_json(1.5), timed=True), tmp_path / "a", monkeypatch)
    untimed, _ = _measured(_figure(_json(1.5)), tmp_path / "b", monkeypatch)
    assert (timed["state"], untimed["state"]) == (NOT_MEASURED, SHORT)
    assert "on a busy machine" in timed["reason"]


@pytest.mark.parametrize(("unit", "state"), [("s", REACHED), ("times", NOT_MEASURED)])
def test_seconds_that_suffice_on_a_busy_machine_do_so_on_a_quiet_one(
    unit: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "MOST_OTHERS", -1.0)
    figure = _figure(_json(0.5), timed=True, unit=unit)
    assert _measured(figure, tmp_path, monkeypatch)[0]["state"] == state


@pytest.mark.parametrize("value", [0.5, 1.5])
def test_a_fast_run_is_judged_only_where_it_is_what_was_asked_about(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, _ = _measured(_figure(f"{_json(value)} --fast"), tmp_path, monkeypatch)
    asked_for, _ = _measured(
        _figure(f"{_json(value)} --fast", about_reduced=True), tmp_path, monkeypatch
    )
    assert (live["state"], live["reason"]) == (REDUCED, "run with --fast.")
    assert (live["value"], asked_for["value"]) == (value, value)
    assert asked_for["state"] == (REACHED if value <= 1.0 else SHORT)


@pytest.mark.parametrize(
    ("accuracy_low", "state"), [(0.1136, REACHED), (0.1135, NOT_LEARNED), (math.nan, NOT_LEARNED)]
)
def test_a_model_at_chance_never_reaches_a_figure(
    accuracy_low: float, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = (
        Model(name="fine", accuracy_low=0.9, constant=0.1135),
        Model(name="planted", accuracy_low=accuracy_low, constant=0.1135),
    )
    figure = _figure(_json(0.5), models=lambda _: models)
    record, _ = _measured(figure, tmp_path, monkeypatch)
    assert record["state"] == state
    assert record.get("reason") == (None if state == REACHED else "At chance: planted.")


def test_the_command_printed_is_the_command_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what the register says today; what did not run is marked."""
    figure = _figure(_json(0.5))
    record, _ = _measured(figure, tmp_path, monkeypatch)
    today = record["command"]
    assert today == figure.source.command
    page = figures_page.page({"toys": (figure,)}, {"planted": record})
    assert f"| reached | `{today}` |" in page
    page = figures_page.page({"toys": (figure,)}, {"planted": {**record, "command": "ran so"}})
    assert f"| reached | `ran so`; today, not run: `{today}` |" in page
    page = figures_page.page({"toys": (figure,)}, {})
    assert f"| not measured | not run: `{today}` |" in page


def test_what_was_measured_before_is_judged_by_what_is_asked_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, _ = _measured(_figure(_json(0.5)), tmp_path, monkeypatch)
    stricter = dataclasses.replace(_figure(_json(0.5)), bound=at_most(0.4))
    again = measure_figures.judged(stricter, record)
    assert (again["state"], again["bound"], again["value"]) == (SHORT, "at most 0.4", 0.5)
    busy = {**record, "others": 0.4}
    timed = dataclasses.replace(stricter, timed=True)
    assert measure_figures.judged(timed, busy)["state"] == NOT_MEASURED


def test_the_page_in_results_keeps_to_that() -> None:
    records = json.loads((ROOT / "results" / "figures.json").read_text())
    page = (ROOT / "results" / "figures.md").read_text()
    for figure in FIGURES:
        source, record = figure.source, records.get(figure.name, {"state": NOT_MEASURED})
        if isinstance(source, Kept):
            assert not source.page.refused, figure.name
            assert f"| `{record['command']}` |" in page
            assert record["command"] == source.command
            text = (ROOT / source.path).read_text()
            assert ",accuracy_low," not in text or figure.models
        if record["state"] == REACHED:
            assert not source.reduced or figure.about_reduced, figure.name
            assert not isinstance(source, Kept) or not source.page.not_learned, figure.name
        else:
            assert f"- **{figure.asked}**" in page


def test_a_source_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Source, "timeout_seconds", 0.2)
    figure = _figure("python -c 'import time; time.sleep(60)'", wall_seconds)
    record, failed = _measured(figure, tmp_path, monkeypatch)
    assert (record["state"], failed) == (NOT_MEASURED, 1)


def test_a_source_is_measured_once_at_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = tmp_path / "tally"
    count = f"""python -c 'open("{tally}", "a").write("x"); print("{{\\"value\\": 0}}")'"""
    for commit in ("one", "one", "two", "two+", "two+"):  # '+': files differ, so always anew
        monkeypatch.setattr(running, "code_commit", lambda commit=commit: commit)
        assert _measured(_figure(count), tmp_path / "w", monkeypatch)[0]["state"] == REACHED
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
    assert "Of 1 figures 0 are reached, 1 is not reached, 0 are reduced, " in page
    assert page.index("## Not reached") < page.index("## Toys")
    assert "| planted here | at most 1 | 2 | not reached |" in page
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
