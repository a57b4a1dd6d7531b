"""Estimates: near the truth, from codes alone, the same in parts as in one, and plain to send."""

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sottovoce.analytics import question
from sottovoce.analytics.estimates import ask, estimate, question_for
from sottovoce.analytics.tallies import CodeCounts, add_tallies
from sottovoce.core.domains import Vector
from sottovoce.core.errors import DomainError, ParameterError, UnknownNameError
from sottovoce.core.randomness import SeededRandomness, SystemRandomness
from sottovoce.mechanisms.mechanism import LevelCodes
from sottovoce.mechanisms.packing import pack, unpack

PEOPLE = 20_000
RANGE: dict[str, Any] = {"lower": 0.0, "upper": 100.0, "epsilon": 2.0}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("mean", RANGE),
    ("mean", {**RANGE, "mechanism": "laplace"}),
    ("variance", RANGE),
    ("variance", {**RANGE, "mechanism": "discrete_laplace"}),
    ("histogram", {**RANGE, "bins": 5, "mechanism": "randomised_response"}),
    ("histogram", {**RANGE, "bins": 5, "mechanism": "hadamard_response"}),
    ("quantiles", {**RANGE, "mechanism": "haar_hadamard"}),
    ("quantiles", {**RANGE, "epsilon": 5.0, "mechanism": "randomised_response"}),
]


@pytest.fixture(scope="module")
def values() -> Vector:
    return 100.0 * np.random.default_rng(8).beta(2.0, 5.0, size=PEOPLE)


def truths(statistic: str, values: Vector) -> list[float]:
    match statistic:
        case "mean":
            return [float(values.mean())]
        case "variance":
            return [float(values.var())]
        case "histogram":
            return list(np.histogram(values, 5, (0.0, 100.0))[0] / len(values))
        case _:
            return [float(x) for x in np.quantile(values, [0.25, 0.5, 0.75])]


@pytest.mark.parametrize(("statistic", "options"), CASES)
def test_the_truth_lies_near(statistic: str, options: dict[str, Any], values: Vector) -> None:
    found = estimate(statistic, values, seed=3, **options)
    assert found.people == PEOPLE
    assert found.epsilon <= options["epsilon"]
    for number, truth in zip(found.numbers, truths(statistic, values), strict=True):
        assert number.interval is not None
        low, high = number.interval
        assert low < high
        # Twice the interval: a test must not fail once in twenty times.
        reach = high - low
        assert low - reach / 2 <= truth <= high + reach / 2
        assert abs(number.estimate - truth) <= reach


@pytest.mark.parametrize(("statistic", "options"), CASES)
def test_parts_add_up_to_the_whole(statistic: str, options: dict[str, Any], values: Vector) -> None:
    asked = question_for(statistic, public_seed=5, **options)
    codes = asked.answer(values[:3000], SeededRandomness(1))
    whole = asked.tally(codes)
    parts = add_tallies(asked.tally(codes[:1000]), asked.tally(codes[1000:], first=1000))
    assert parts.people == whole.people == 3000
    assert asked.estimate(parts).estimate == pytest.approx(asked.estimate(whole).estimate)


@pytest.mark.parametrize(("statistic", "options"), CASES)
def test_a_question_survives_the_wire_and_so_do_codes(
    statistic: str, options: dict[str, Any], values: Vector
) -> None:
    asked = question_for(statistic, public_seed=5, **options)
    again = question.from_json(question.to_json(asked))
    assert again == asked
    codes = again.answer(values[:500], SeededRandomness(1))
    if isinstance(asked.code_format, LevelCodes):
        bits = asked.code_format.bits
        sent = pack(codes, bits)  # type: ignore[arg-type]
        assert len(sent) == math.ceil(500 * bits / 8)
        assert np.array_equal(unpack(sent, 500, bits), codes)
        assert asked.estimate(asked.tally(codes)).bits == bits


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"colour": 1}, "unknown field"),
        ({"lower": None}, "number"),
        ({"epsilon": "1"}, "number"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"bits": 2.5}, "integer"),
        ({"bits": 300}, "integer"),
        ({"mechanism": "gaussian"}, "unknown mechanism"),
        ({"kind": "mode"}, "unknown kind"),
        ({"digest": "00"}, "other tables"),
        ({"upper": -1.0}, "lower must be below upper"),
    ],
)
def test_an_odd_question_is_refused(change: dict[str, Any], match: str) -> None:
    plain = question.to_dict(question_for("mean", lower=0, upper=1, epsilon=1.0))
    with pytest.raises((ParameterError, UnknownNameError), match=match):
        question.from_dict({**plain, **change})


@pytest.mark.parametrize(
    ("statistic", "options", "change"),
    [
        ("histogram", {"categories": ["a", "b"], "epsilon": 1.0}, {"categories": "abc"}),
        ("histogram", {"categories": ["a", "b"], "epsilon": 1.0}, {"categories": [1, 2]}),
        ("histogram", {"categories": ["a", "b"], "epsilon": 1.0}, {"bins": 3}),
        ("histogram", {**RANGE, "bins": 3}, {"bins": 2**40}),
        ("histogram", {**RANGE, "bins": 3}, {"mechanism": ["hadamard_response"]}),
        ("quantiles", RANGE, {"quantiles": "0.5"}),
        ("quantiles", RANGE, {"quantiles": [None]}),
        ("quantiles", RANGE, {"depth": 60}),
        ("quantiles", RANGE, {"public_seed": -1}),
        ("variance", RANGE, {"public_seed": "x"}),
        ("variance", RANGE, {"upper": math.inf}),
        ("mean", RANGE, {"lower": [1.0]}),
        ("mean", RANGE, {"epsilon": True}),
    ],
)
def test_odd_values_of_a_question_are_refused(
    statistic: str, options: dict[str, Any], change: dict[str, Any]
) -> None:
    plain = question.to_dict(question_for(statistic, **options))
    with pytest.raises((ParameterError, UnknownNameError)):
        question.from_dict({**plain, **change})


def test_a_question_that_lacks_something_is_refused() -> None:
    plain = question.to_dict(question_for("mean", lower=0, upper=1, epsilon=1.0))
    del plain["upper"]
    with pytest.raises(ParameterError, match="must have the field 'upper'"):
        question.from_dict(plain)
    for text in ("", "[]", "{"):
        with pytest.raises(ParameterError, match="JSON"):
            question.from_json(text)


def test_codes_that_no_one_could_have_sent_are_refused() -> None:
    asked = question_for("histogram", lower=0, upper=1, bins=5, epsilon=4.0)
    with pytest.raises(DomainError, match="codes"):
        asked.tally(np.array([7], dtype=np.uint8))


def test_tallies_of_two_questions_are_not_added() -> None:
    first = CodeCounts(counts=np.zeros((1, 4), dtype=np.int64))
    second = CodeCounts(counts=np.zeros((1, 8), dtype=np.int64))
    with pytest.raises(ParameterError, match="different questions"):
        add_tallies(first, second)


def test_series_lists_and_arrays_are_alike(values: Vector) -> None:
    some = values[:500]
    found = [
        estimate("mean", each, seed=1, **RANGE).estimate
        for each in (some, some.tolist(), pd.Series(some, index=range(7, 507)))
    ]
    assert found[0] == found[1] == found[2]


def test_people_in_batches_or_at_once_get_the_same_interval_width(values: Vector) -> None:
    asked = question_for("mean", **RANGE)
    whole = ask(asked, [values], SystemRandomness())
    parts = ask(asked, [values[:5000], values[5000:]], SystemRandomness())
    widths = []
    for found in (whole, parts):
        assert found.numbers[0].interval is not None
        low, high = found.numbers[0].interval
        widths.append(high - low)
    assert widths[0] == pytest.approx(widths[1], rel=0.05)


def test_values_outside_are_moved_to_the_bounds() -> None:
    outside = np.array([-1e300, 1e300] * 2000)
    for statistic in ("mean", "variance", "histogram", "quantiles"):
        found = estimate(statistic, outside, seed=2, **{**RANGE, "epsilon": 5.0})
        assert found.people == 4000
    mean = estimate("mean", outside, seed=2, **RANGE).estimate
    assert isinstance(mean, float)
    assert abs(mean - 50.0) < 10.0


def test_categories_and_others() -> None:
    words = ["a"] * 3000 + ["b"] * 1000 + ["elsewhere"] * 1000
    found = estimate("histogram", words, categories=["a", "b", "c"], epsilon=4.0, seed=1)
    assert [number.label for number in found.numbers] == ["a", "b", "c", "other"]
    assert found.estimate == pytest.approx((0.6, 0.2, 0.0, 0.2), abs=0.05)
    assert math.isclose(sum(found.details["share"]), 1.0, abs_tol=1e-9)
    assert min(found.details["share"]) >= 0.0


def test_places_have_a_mean_and_a_map() -> None:
    generator = np.random.default_rng(1)
    rows = np.column_stack(
        (40.75 + generator.normal(0.0, 0.01, 5000), -73.97 + generator.normal(0.0, 0.01, 5000))
    )
    found = estimate(
        "location", rows, centre=(40.75, -73.97), side_km=10.0, epsilon=2.0, bits=2, seed=1
    )
    by_label = {number.label: number for number in found.numbers}
    assert by_label["latitude"].estimate == pytest.approx(40.75, abs=0.005)
    assert by_label["longitude"].estimate == pytest.approx(-73.97, abs=0.005)
    assert found.epsilon == 2.0
    assert found.epsilon_unit == "per kilometre"
    density = np.array(found.details["density"])
    assert density.shape == (16, 16)
    assert density.sum() == pytest.approx(1.0)
    assert density[6:10, 6:10].sum() > 0.5
    assert question.from_json(question.to_json(_places())) == _places()


def _places() -> question.Question:
    return question_for("location", centre=(1.0, 2.0), side_km=5.0, epsilon=2.0, bits=2)


def test_few_people_get_no_interval_and_are_told_why() -> None:
    found = estimate("mean", [1.0, 2.0], **RANGE)
    assert found.interval is None
    assert any("no interval" in note for note in found.notes)
    noisy = estimate("variance", np.linspace(0, 100, 150), **{**RANGE, "epsilon": 0.5})
    assert noisy.interval is None
    assert any("raise epsilon" in note for note in noisy.notes)
    quantile = estimate("quantiles", np.linspace(0, 100, 150), **{**RANGE, "epsilon": 0.5})
    assert quantile.interval == (None, None, None)


def test_labels_say_what_holds(values: Vector) -> None:
    seeded = estimate("mean", values, seed=1, **RANGE)
    system = estimate("mean", values, **RANGE)
    floats = estimate("mean", values, mechanism="laplace", **RANGE)
    assert any("seed" in note for note in seeded.notes)
    assert not any("seed" in note for note in system.notes)
    assert any("simulation only" in note for note in floats.notes)
    assert any("not charged to a ledger" in note for note in system.notes)
    assert floats.sampling == "float"


def test_a_result_reads_well(values: Vector) -> None:
    found = estimate("quantiles", values, seed=1, **RANGE)
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["labels"] == ["0.25", "0.5", "0.75"]
    assert len(plain["estimate"]) == len(plain["interval"]) == 3
    assert "epsilon" in str(found)
    assert "<table>" in found._repr_html_()
    frame = pd.DataFrame(found.rows())
    assert list(frame.columns) == ["label", "estimate", "low", "high"]
    single = estimate("mean", values, seed=1, **RANGE).to_dict()
    assert isinstance(single["estimate"], float)
    assert len(single["interval"]) == 2


@pytest.mark.parametrize(
    ("statistic", "given", "match"),
    [
        ("mode", {}, "unknown statistic"),
        ("mean", {"lowerr": 1.0}, "did you mean 'lower'"),
        ("mean", {"lower": 0.0, "upper": 1.0}, "epsilon"),
        ("histogram", {"epsilon": 1.0}, "lower and upper"),
        ("histogram", {"epsilon": 1.0, "categories": ["a", "a"]}, "differ"),
        (
            "histogram",
            {"epsilon": 1.0, "categories": ["a"], "bins": 3},
            "leave out lower, upper and bins, or categories",
        ),
        ("histogram", {**RANGE, "bins": 1}, "bins"),
        ("quantiles", {**RANGE, "quantiles": [1.5]}, "level"),
        ("quantiles", {**RANGE, "quantiles": []}, "at least one"),
        ("quantiles", {**RANGE, "quantiles": 0.5}, "a list of levels between 0 and 1"),
        ("variance", {**RANGE, "mechanism": "mvv"}, "did you mean 'mvu'"),
    ],
)
def test_odd_options_are_refused(statistic: str, given: dict[str, Any], match: str) -> None:
    with pytest.raises((ParameterError, UnknownNameError), match=match):
        estimate(statistic, [0.5] * 50, **given)


@pytest.mark.parametrize(
    "odd",
    [
        [],
        [[1.0]],
        ["x"],
        [math.nan],
        [math.inf],
        None,
        0.5,
        [10**400],
        [1j],
        [[1], [1, 2]],
        np.ma.array([1.0, 2.0], mask=[True, False]),
        pd.Series(pd.date_range("2026-01-01", periods=3)),
        pd.Series([1, None], dtype="Int64"),
    ],
)
@pytest.mark.parametrize("statistic", ["mean", "quantiles"])
def test_odd_values_are_refused(statistic: str, odd: Any) -> None:
    with pytest.raises((ParameterError, DomainError)):
        estimate(statistic, odd, **RANGE)


@pytest.mark.parametrize("single", [None, 0.5, "people.csv", iter([0.5])])
def test_what_is_no_list_of_people_is_named(single: Any) -> None:
    with pytest.raises(ParameterError, match=f"Series.*got {type(single).__name__}; for a file"):
        estimate("mean", single, **RANGE)


@pytest.mark.parametrize("missing", [None, math.nan, pd.NA, pd.NaT])
def test_a_missing_word_is_no_category(missing: Any) -> None:
    for values in (["a", missing], pd.Series(["a", missing], dtype=object)):
        with pytest.raises(DomainError, match=r"value 1 .*is missing"):
            estimate("histogram", values, categories=["a"], epsilon=1.0)
    assert estimate("histogram", ["a", "nan", 1], categories=["a"], epsilon=1.0).people == 3


@pytest.mark.parametrize("statistic", ["mean", "variance", "histogram", "quantiles"])
def test_huge_values_are_moved_to_the_bounds_in_silence(statistic: str) -> None:
    huge = estimate(statistic, [1.7e308, -1.7e308] * 50, seed=1, **RANGE)
    assert huge.estimate == estimate(statistic, [100.0, 0.0] * 50, seed=1, **RANGE).estimate


def test_intervals_of_many_bins_hold_together() -> None:
    """Score intervals did in 84% of cases."""
    asked = question_for("histogram", lower=0, upper=1, bins=64, epsilon=4.0, public_seed=1)
    truth = np.array([1.0] + 63 * [0.0])
    held = 0
    for seed in range(200):
        found = asked.estimate(asked.tally(asked.answer(np.zeros(2000), SeededRandomness(seed))))
        low, high = np.array(found.details["simultaneous_interval"]).T
        held += bool(((low <= truth) & (truth <= high)).all())
    assert held >= 184  # three standard deviations below 95%


def test_quantiles_with_few_people_beyond_are_noted() -> None:
    values = np.random.default_rng(2).uniform(0.0, 100.0, size=1000)
    asked = {**RANGE, "epsilon": 6.0, "quantiles": [0.01, 0.02, 0.5, 0.981]}
    found = estimate("quantiles", values, seed=1, **asked)
    few = [number.caveat is not None and "beyond" in number.caveat for number in found.numbers]
    assert few == [True, False, False, True]


def test_few_people_and_little_noise_are_noted() -> None:
    values = np.full(100, 7.0)  # between two letters, so that codes differ
    little = estimate("mean", values, seed=1, **{**RANGE, "epsilon": 8.0})
    assert "covers less often" in little.caveats()[0]
    assert not estimate("mean", values, seed=1, **RANGE).caveats()
    assert not estimate("mean", np.tile(values, 10), seed=1, **{**RANGE, "epsilon": 8.0}).caveats()
