"""A page under results/ is judged by what it says: full or reduced, learned or not, or refused."""

import csv
import re
from pathlib import Path
from typing import Any

import measure_figures
import pytest
from figures import figure as figure_module
from figures.attacks import unexplained_intervals
from figures.figure import Figure, Kept, Output, UnreadableError, at_least
from figures.learning import accuracy, trained
from figures.page import NOT_LEARNED, NOT_MEASURED, REACHED, REDUCED, SHORT
from figures.udp_fl import fewest_seeds

from sottovoce_papers import publish
from sottovoce_papers.grid_files import read_grid_files

ROOT = Path(__file__).parents[1]
STUDY = "digits-sweep"
COMMAND = f"sottovoce experiment run {STUDY} --seeds 8"
MECHANISMS = ("Gaussian (float32)", "one bit", "sign")
Row = dict[str, Any]


def _row(mechanism: str, epsilon: float | None, accuracy: float, **more: Any) -> Row:
    row: Row = {"mechanism": mechanism, "epsilon": epsilon, "accuracy": accuracy}
    row |= {"accuracy_low": accuracy - 0.01, "accuracy_high": accuracy + 0.01}
    row |= {"seeds": 8, "failed": 0, "trivial_score": 0.1, "learned_from": 0.8}
    return {**row, **more}


def _rows(plain: float = 0.9) -> list[Row]:
    private = [_row(name, epsilon, 0.7) for epsilon in (1.0, 3.0, 10.0) for name in MECHANISMS]
    return [_row("no privacy", None, plain), *private]


def _judged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, table: list[Row], **told: Any
) -> dict[str, Any]:
    """Return the record of a figure that reads a page as `experiment publish` writes it."""
    place = folder / "results" / STUDY
    place.mkdir(parents=True, exist_ok=True)
    with (place / "data.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    empty = dict.fromkeys(("title", "claim", "verdict", "method", "machine", "reduced"), "")
    empty |= dict.fromkeys(("sottovoce", "python", "numpy", "torch"), "")
    result: dict[str, Any] = {
        "experiment": STUDY,
        "command": COMMAND,
        "seeds": 8,
        "fast": False,
        **empty,
    }
    result |= {"seconds": 1.0, "training_seconds": 1.0, "rows": table}
    result |= {name: [] for name in ("figures", "failures", "warnings", "trials")} | told
    (place / "README.md").write_text(publish.page(result, ["data.csv"], list(table[0])))
    monkeypatch.setattr(figure_module, "ROOT", folder)
    monkeypatch.setattr(measure_figures, "ROOT", folder)
    figure = Figure(
        name="planted",
        asked="one bit at epsilon 3",
        bound=at_least(60.0),
        source=Kept(path=f"results/{STUDY}/data.csv"),
        read=accuracy("one bit", 3.0),
        models=trained("digits"),
    )
    records, failed = measure_figures.measured(figure.source, [figure])
    assert failed == (records["planted"]["state"] == NOT_MEASURED)
    return records["planted"]


def test_a_full_study_that_learned_is_judged_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = _judged(tmp_path, monkeypatch, _rows())
    assert (record["state"], record["command"]) == (REACHED, COMMAND)
    assert record["value"] == pytest.approx(70.0)
    rows = [{**row, "accuracy": row["accuracy"] - 0.11} for row in _rows(plain=0.99)]
    assert _judged(tmp_path, monkeypatch, rows)["state"] == SHORT


@pytest.mark.parametrize(
    ("told", "changed", "reason"),
    [
        ({"reduced": "2 rounds, not 30."}, {}, "2 rounds, not 30."),
        ({"fast": True}, {}, "a fast version."),
        ({"command": f"{COMMAND} --fast"}, {}, "run with --fast."),
        ({"command": f"{COMMAND} --only epsilon=3.0"}, {}, "run with --only."),
        (
            {"command": COMMAND.replace("8", "3"), "seeds": 3},
            {"seeds": 3},
            "3 seeds, not 8.",
        ),
        ({}, {"seeds": 7, "failed": 1}, "10 trials failed."),
    ],
    ids=["said", "fast page", "fast command", "part", "few seeds", "failed"],
)
def test_a_reduced_page_is_never_reached(
    told: Row, changed: Row, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{**row, **changed} for row in _rows()]
    record = _judged(tmp_path, monkeypatch, rows, **told)
    assert (record["state"], record["reason"]) == (REDUCED, reason)


@pytest.mark.parametrize("missing", [0, 1, -1])
def test_a_grid_without_all_its_cells_is_reduced(
    missing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = _rows()
    del rows[missing]
    record = _judged(tmp_path, monkeypatch, rows)
    cells = 1 if missing else 3  # Training without a budget stands for all three.
    assert record["state"] == REDUCED
    assert record["reason"].startswith(f"{cells} cells of the grid are missing.")


@pytest.mark.parametrize(
    ("rows", "told", "reason"),
    [
        (_rows(plain=0.79), {}, "Without noise: 79.00%, 80% are asked for."),
        (
            [{**row, "learned_from": None} for row in _rows(plain=0.105)],
            {},
            "At chance: mechanism no privacy.",
        ),
        (_rows(), {"verdict": "Not learned: digits. It is planted."}, "Not learned: digits. It is"),
    ],
    ids=["below the floor", "at chance", "said"],
)
def test_a_page_whose_training_without_noise_is_poor_is_not_learned(
    rows: list[Row], told: Row, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = _judged(tmp_path, monkeypatch, rows, **told)
    assert record["state"] == NOT_LEARNED
    assert record["reason"].startswith(reason)


def test_without_training_without_noise_where_it_is_asked_for_nothing_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (grid,) = (one for one in read_grid_files() if one.name == STUDY)
    private = [one for one in grid.axes["mechanism"] if getattr(one, "value", "") in MECHANISMS]
    axes = {**grid.axes, "mechanism": private}
    other = grid.model_copy(update={"axes": axes})
    monkeypatch.setattr("figures.kept._grids", lambda: {STUDY: other})
    record = _judged(tmp_path, monkeypatch, _rows()[1:])
    assert record["state"] == NOT_LEARNED
    assert record["reason"] == "Without noise: no training on the page."


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"command": COMMAND.replace(STUDY, "imvu-mnist")}, "was made by `sottovoce experiment"),
        ({"command": "python train.py"}, "was made by `python train.py`"),
        ({"command": ""}, "does not say which command"),
        ({"command": COMMAND.replace("8", "9")}, "its command has 9 seeds, its page 8"),
        ({"command": COMMAND.replace("8", "9"), "seeds": 9}, "its page has 9 seeds, its table 8"),
        ({"rows": _rows(plain=0.95)}, "the table on its page is not data.csv"),
        ({"rows": _rows()[:-1]}, "the table on its page is not data.csv"),
        ({"rows": [*_rows(), _rows()[0]]}, "the table on its page is not data.csv"),
    ],
    ids=["another study", "no study", "none", "seeds", "table's seeds", "numbers", "fewer", "more"],
)
def test_a_page_whose_command_or_table_differs_is_refused(
    told: Row, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = _judged(tmp_path, monkeypatch, _rows(), **told)
    assert record["state"] == NOT_MEASURED
    assert record["reason"].startswith(f"results/{STUDY}/data.csv is refused: ")
    assert reason in record["reason"]


def test_the_list_of_results_has_the_command_of_every_page_and_says_what_is_reduced() -> None:
    lines = (ROOT / "results" / "README.md").read_text().splitlines()
    for table in sorted((ROOT / "results").glob("*/data.csv")):
        name, page = table.parent.name, Kept(path=f"results/{table.parent.name}/data.csv").page
        (line,) = (one for one in lines if one.startswith(f"| [{name}]({name}/README.md) |"))
        _, _, grid, _, command = line.strip("| ").split(" | ")
        assert not page.refused, name
        assert command == f"`{page.command}`"
        assert grid.startswith("reduced") == bool(page.reduced), name


def test_an_interval_that_misses_chance_is_counted_unless_the_page_names_it(tmp_path: Path) -> None:
    kept = ROOT / "results" / "udp-mia"
    table, page = (kept / "data.csv").read_text(), (kept / "README.md").read_text()
    for text, count in ((page, 0.0), (page.replace("Above chance", "Elsewhere"), 29.0)):
        (tmp_path / "README.md").write_text(text)
        assert unexplained_intervals(Output(text=table, folder=tmp_path)) == count


def test_seeds_are_not_counted_where_a_mechanism_spends_more_than_was_asked() -> None:
    head = "mechanism,epsilon,epsilon_spent,published_epsilon,seeds\n"
    sound = f"{head}staircase,4.0,3.99,,3\nno privacy,,,,5\nNbAFL,4.0,710.9,4.0,4\n"
    assert fewest_seeds(Output(text=sound)) == 3.0
    with pytest.raises(UnreadableError, match=r"one bit spends 4\.01"):
        fewest_seeds(Output(text=f"{sound}one bit,4.0,4.01,,3\n"))


def test_a_page_names_its_models_that_are_no_better_than_a_constant_answer() -> None:
    named = 0
    for table in sorted((ROOT / "results").glob("*/data.csv")):
        with table.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("accuracy_low")]
        # Earlier tables do not have the constant answer's score, which is at least a tenth here.
        low = [float(row["accuracy_low"]) <= float(row.get("trivial_score") or 0.1) for row in rows]
        page = table.with_name("README.md").read_text()
        told = re.findall(
            r"^No better than the best constant answer.*: (.+)\.$", page, re.MULTILINE
        )
        assert bool(told) >= any(low), table
        named += len(told)
    assert named > 5
