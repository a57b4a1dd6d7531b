"""`sottovoce estimate`: statistics of a file, what is printed, what is charged, what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.analytics.charging import charge
from sottovoce.analytics.estimates import question_for
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import BudgetExhaustedError, ParameterError
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Budget, Release
from sottovoce.privacy.events import GaussianNoise, PureDp

RANGE = "--column age --lower 0 --upper 120 --epsilon 2"


@pytest.fixture
def ages(tmp_path: Path) -> Path:
    generator = np.random.default_rng(3)
    values = generator.gamma(9.0, 5.0, size=3000)
    towns = generator.choice(["Bonn", "Ulm", "Kiel"], size=3000)
    lines = [f"{age:.2f},{town}\n" for age, town in zip(values, towns, strict=True)]
    path = tmp_path / "ages.csv"
    path.write_text("age,town\n" + "".join(lines))
    return path


def test_the_mean_with_its_interval_as_json(cli: Any, ages: Path) -> None:
    result = cli("estimate", "mean", ages, *RANGE.split(), "--json").json
    low, high = result["interval"]
    assert low < result["estimate"] < high
    assert abs(result["estimate"] - 45.0) < 10.0
    assert result["people"] == 3000
    assert result["epsilon"] == 2.0
    assert result["bits_per_person"] == 3
    assert result["sampling_grade"] == "exact"
    assert result["adjacency"] == "replace-one"
    assert "not charged to a ledger" in result["notes"]
    assert "true_not_private" not in result


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (f"variance {{}} {RANGE} --epsilon 4", None),
        (f"quantiles {{}} {RANGE} --quantiles 0.1,0.5", 2),
        (f"histogram {{}} {RANGE} --bins 4", 4),
        ("histogram {} --column town --categories Bonn,Ulm --epsilon 2", 3),
    ],
)
def test_the_other_statistics_with_the_true_values(
    cli: Any, ages: Path, words: str, numbers: int | None
) -> None:
    call = ["estimate", *words.format(ages).split(), "--seed", "4", "--show-true", "--json"]
    result = cli(*call).json
    found, true, ends = (result[key] for key in ("estimate", "true_not_private", "interval"))
    if numbers is None:
        found, true, ends = [found], [true], [ends]
    else:
        assert len(found) == len(result["labels"]) == numbers
    for value, truth, (low, high) in zip(found, true, ends, strict=True):
        assert abs(value - truth) <= high - low
    assert any("seed" in note for note in result["notes"])


def test_people_read_a_table_and_notes(cli: Any, ages: Path) -> None:
    result = cli("estimate", "mean", ages, *RANGE.split())
    assert result.code == 0
    for words in ("estimate", "epsilon", "2.0000 per person", "bits a person", "note: "):
        assert words in result.out


def test_the_same_seed_gives_the_same_numbers(cli: Any, ages: Path) -> None:
    call = ["estimate", "quantiles", ages, *RANGE.split(), "--json"]
    assert cli(*call, "--seed", "1").json == cli(*call, "--seed", "1").json
    assert cli(*call).json["estimate"] != cli(*call).json["estimate"]


def test_a_constant_column_and_values_outside(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "same.csv"
    path.write_text("age\n" + "500\n" * 1000)
    for statistic in ("mean", "variance", "quantiles", "histogram"):
        result = cli("estimate", statistic, path, *RANGE.split(), "--epsilon", "4", "--json").json
        assert result["people"] == 1000
        assert "500" not in "".join(result["notes"])


def test_what_is_left_is_said_and_another_budget_is_refused_in_words_that_help(
    cli: Any, ages: Path, tmp_path: Path
) -> None:
    book = tmp_path / "book.sqlite"
    call = ["estimate", "mean", ages, "--column", "age", "--lower", "0", "--upper", "120"]
    call += ["--ledger", book, "--account", "people", "--epsilon", "1"]
    assert "0.5000 of its budget 1.5 is left" in cli(*call, "--budget", "1.5").out
    over = cli(*call)
    assert over.code == 2
    assert "would add up to 2.0000, above the budget 1.5" in over.err
    other = cli(*call, "--budget", "3")
    assert other.code == 2
    assert "already has the budget 1.5" in other.err
    assert "leave out --budget 3" in other.err
    (row,) = cli("ledger", "show", book, "--json").json
    assert row["left"] == pytest.approx(0.5, abs=1e-9)


def test_an_account_of_pure_charges_is_shown_at_delta_0_and_one_with_others_is_not(
    cli: Any, ages: Path, tmp_path: Path
) -> None:
    book = tmp_path / "book.sqlite"
    call = ["estimate", "histogram", ages, "--column", "town", "--categories", "Bonn,Ulm"]
    for epsilon in ("0.1", "0.2"):
        told = cli(*call, "--ledger", book, "--account", "survey", "--epsilon", epsilon)
        assert f"epsilon        {epsilon}000 per person" in told.out
    shown = cli("ledger", "show", book).out.splitlines()[-2].split()
    assert shown == ["survey", "2", "0.3000", "none", "none", "0", "replace-one", "pure"]
    (row,) = cli("ledger", "show", book, "--json").json
    assert (row["epsilon"], row["delta"], row["accountant"]) == (0.3, 0.0, "pure")
    (row,) = cli("ledger", "show", book, "--delta", "1e-5", "--json").json
    assert (row["delta"], row["accountant"]) == (1e-5, "renyi")
    with Ledger(book) as ledger:
        release = Release(unit=Unit.CLIENT, run="r", client="survey", round=1, uplink=0)
        ledger.charge(release, 0, GaussianNoise(mu=0.5, adjacency=Adjacency.REPLACE_ONE))
    assert "give --delta" in cli("ledger", "show", book).err
    (row,) = cli("ledger", "show", book, "--delta", "1e-5", "--json").json
    assert row["delta"] == 1e-5
    assert row["epsilon"] > 0.3
    assert row["accountant"] != "pure"


def test_many_pure_charges_at_a_budget_with_a_delta_are_shown_at_that_delta(
    cli: Any, tmp_path: Path
) -> None:
    book = tmp_path / "book.sqlite"
    event = PureDp(epsilon=0.1, adjacency=Adjacency.REPLACE_ONE)
    with Ledger(book, create=True) as ledger:
        for client, rounds in (("ann", 1), ("bob", 400)):
            budget = Budget(
                epsilon=40.0, delta=1e-9, adjacency=Adjacency.REPLACE_ONE, unit=Unit.CLIENT
            )
            ledger.set_budget(client, budget)
            with ledger.transaction():
                for number in range(rounds):
                    release = Release(
                        unit=Unit.CLIENT, run="r", client=client, round=number, uplink=0
                    )
                    ledger.charge(release, 0, event)
    ann, bob = cli("ledger", "show", book, "--json").json
    assert (ann["epsilon"], ann["delta"], ann["accountant"]) == (0.1, 0.0, "pure")
    assert ann["left"] == pytest.approx(39.9)
    assert bob["delta"] == 1e-9
    assert bob["epsilon"] < 20.0  # and not the sum
    assert bob["left"] == pytest.approx(40.0 - bob["epsilon"])


def test_a_ledger_is_charged_and_refuses_beyond_the_budget(
    cli: Any, ages: Path, tmp_path: Path
) -> None:
    book = tmp_path / "book.sqlite"
    call = ["estimate", "mean", ages, "--column", "age", "--lower", "0", "--upper", "120"]
    charged = [*call, "--ledger", book, "--account", "ours", "--budget", "1.5", "--json"]
    first = cli(*charged, "--epsilon", "1").json
    assert any("charged to account 'ours'" in note for note in first["notes"])
    assert cli(*charged, "--epsilon", "0.5").code == 0
    refused = cli(*charged, "--epsilon", "0.5")
    assert refused.code == 2
    assert "budget" in refused.err
    assert json.loads(refused.out) == {"error": refused.err.strip().removeprefix("error: ")}
    other = cli(*call, "--ledger", book, "--account", "others", "--epsilon", "1", "--json")
    assert other.code == 0
    with Ledger(book) as ledger:
        assert sorted(ledger.clients()) == ["others", "ours"]
        assert sum(count for _, count in ledger.history("ours")) == 2


def test_many_small_questions_add_up_without_any_delta(tmp_path: Path) -> None:
    book = tmp_path / "book.sqlite"
    asked = question_for("mean", lower=0.0, upper=1.0, epsilon=0.01)
    for _ in range(10):
        charge(book, "people", asked, budget=0.1)
    with pytest.raises(BudgetExhaustedError, match=r"would add up to 0\.11"):
        charge(book, "people", asked)  # the budget was set once
    with Ledger(book) as ledger:
        assert sum(count for _, count in ledger.history("people")) == 10


def test_a_ledger_takes_a_named_account_so_that_a_renamed_copy_has_no_budget_of_its_own(
    cli: Any, ages: Path, tmp_path: Path
) -> None:
    book, copy = tmp_path / "book.sqlite", tmp_path / "copy.csv"
    copy.write_bytes(ages.read_bytes())
    bare = cli("estimate", "mean", ages, *RANGE.split(), "--ledger", book)
    assert bare.code == 2
    assert "needs --account" in bare.err
    assert not book.exists()
    account = ["--ledger", book, "--account", "members", "--budget", "2"]
    assert (
        "tells people apart by this name"
        in cli("estimate", "mean", ages, *RANGE.split(), *account).out
    )
    assert cli("estimate", "mean", copy, *RANGE.split(), *account).code == 2
    with pytest.raises(ParameterError, match="name is empty"):
        charge(book, "", question_for("mean", lower=0.0, upper=1.0, epsilon=0.01))


def test_categories_with_commas_are_quoted_or_repeated_and_never_split_by_guess(
    cli: Any, tmp_path: Path
) -> None:
    path = tmp_path / "towns.csv"
    path.write_text("town\n" + '"New York, NY"\nBoston\n' * 100)
    call = ["estimate", "histogram", path, "--epsilon", "4", "--json"]
    city = '"New York, NY"'
    for given in ([f"{city},Boston"], [city, "Boston"]):
        options = [word for text in given for word in ("--categories", text)]
        assert cli(*call, *options).json["labels"] == ["New York, NY", "Boston", "other"]
    guess = cli(*call, "--categories", "New York, NY")
    assert guess.code == 2
    assert "write --categories 'New York,NY' for 2 words, " in guess.err
    assert f"--categories '{city}' for one word" in guess.err
    assert "two ways" in cli(*call, "--categories", "a,b", "--categories", "c").err
    assert "cannot be read" in cli(*call, "--categories", '"a"b').err
    with pytest.raises(ParameterError, match="list of words"):
        question_for("histogram", epsilon=1.0, categories="New York, NY")


@pytest.mark.parametrize(
    ("statistic", "label"),
    [
        ("mean", "mean of the values clipped to [0, 120]"),
        ("quantiles", "quantiles of the values clipped to [0, 120]"),
        ("histogram", "share in each bin of the values clipped to [0, 120]"),
    ],
)
def test_the_true_value_is_said_to_be_of_clipped_values(
    cli: Any, tmp_path: Path, statistic: str, label: str
) -> None:
    path = tmp_path / "ages.csv"
    path.write_text("age\n" + "20\n1000\n" * 100)
    call = ["estimate", statistic, path, *RANGE.split(), "--show-true"]
    assert f"true (not private): {label}" in cli(*call).out
    result = cli(*call, "--json").json
    assert result["true_is"] == label
    if statistic == "mean":
        assert result["true_not_private"] == 70.0


@pytest.mark.parametrize("mechanism", ["laplace", "discrete_staircase", "generalized_rr"])
def test_every_kind_of_event_can_be_charged(
    cli: Any, ages: Path, tmp_path: Path, mechanism: str
) -> None:
    call = ["estimate", "mean", ages, *RANGE.split(), "--mechanism", mechanism]
    call += ["--ledger", tmp_path / "book.sqlite", "--account", "people", "--budget", "2", "--json"]
    assert any("charged" in note for note in cli(*call).json["notes"])
    assert cli(*call).code == 2


def test_a_file_with_a_mistake_charges_no_account(cli: Any, tmp_path: Path) -> None:
    path, book = tmp_path / "bad.csv", tmp_path / "book.sqlite"
    path.write_text("age\n" + "30\n" * 200 + "x\n")
    result = cli("estimate", "mean", path, *RANGE.split(), "--ledger", book, "--account", "people")
    assert result.code == 2
    assert "data row 201" in result.err
    assert not book.exists()


def test_cells_that_are_kept_without_a_number_are_for_sites_alone(cli: Any, tmp_path: Path) -> None:
    path, book = tmp_path / "ages.csv", tmp_path / "book.sqlite"
    path.write_text("age\n20\n\n40\n")
    call = ["estimate", "mean", path, *RANGE.split(), "--ledger", book]
    call += ["--account", "people", "--budget", "3"]
    result = cli(*call, "--missing", "keep")
    assert result.code == 2
    assert "unknown --missing 'keep'" in result.err
    assert not book.exists()
    assert cli(*call, "--missing", "skip", "--json").json["people"] == 2


def test_places_and_their_map(cli: Any, tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    rows = np.column_stack((generator.normal(0, 0.01, 800), generator.normal(0, 0.01, 800)))
    path = tmp_path / "places.csv"
    path.write_text("lat,lon\n" + "".join(f"{a},{b}\n" for a, b in rows))
    call = ["estimate", "location", path, "--latitude", "lat", "--longitude", "lon"]
    call += ["--center", "0,0", "--side-km", "8", "--epsilon", "2", "--bits", "2", "--json"]
    call += ["--ledger", tmp_path / "book.sqlite", "--account", "people"]
    for name in ("map.svg", "map.png"):
        result = cli(*call, "--plot", tmp_path / name).json
        assert result["epsilon_unit"] == "per kilometre"
        assert math.isclose(sum(map(sum, result["density"])), 1.0, abs_tol=1e-9)
        assert (tmp_path / name).stat().st_size > 500
    assert (tmp_path / "map.svg").read_text().startswith("<svg")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert "ends in .svg or .png" in cli(*call, "--plot", tmp_path / "map.pdf").err


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ("mean {} --column agee --lower 0 --upper 1 --epsilon 1", "did you mean 'age'"),
        ("mean {} --lower 0 --upper 1 --epsilon 1", "choose one with --column: age, town"),
        ("mean {}x --column age --lower 0 --upper 1 --epsilon 1", "cannot read"),
        ("mean {} --column town --lower 0 --upper 1 --epsilon 1", "is not a number"),
        ("mean {} --column age --lower 5 --upper 1 --epsilon 1", "lower must be below upper"),
        ("mean {} --column age --lower 0 --upper 1 --epsilon 0", "epsilon"),
        ("mean {} --column age --lower 0 --upper 1 --epsilon 1e9", "epsilon"),
        ("mean {} --column age --lower 0 --upper 1 --epsilon 1 --bits 0", "bits"),
        ("mean {} --column age --lower 0 --upper nan --epsilon 1", "finite"),
        ("mean {} --column age --lower 0 --upper 1 --epsilon 1 --confidence 95", "confidence"),
        ("mean {} --column age --lower 0 --upper 1 --epsilon 1 --budget 2", "give --ledger"),
        ("mean {} --column age --lower 0 --upper 1 --epsilon 1 --encoding x", "no encoding"),
        ("histogram {} --column age --epsilon 1", "lower and upper"),
        ("quantiles {} --column age --lower 0 --upper 1 --epsilon 1 --quantiles a", "numbers"),
    ],
)
def test_mistakes_are_one_line(cli: Any, ages: Path, words: str, match: str) -> None:
    result = cli("estimate", *words.format(ages).split())
    assert result.code == 2
    assert result.out == ""
    assert match in result.err
    assert len(result.err.strip().splitlines()) == 1
