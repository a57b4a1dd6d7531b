"""The explorer's answers are the library's own."""

import json
import math
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import clipped_domain
from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import FiniteLaw
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.events import Repeated
from sottovoce.reporting.explorer.answer import MOST_COLUMNS, answer, curve, table_of
from sottovoce.reporting.explorer.question import (
    ExplorerQuestion,
    bits_parameter,
    describe_mechanisms,
)
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.loading import load
from sottovoce.runs.resolve import resolve

ONE_BIT = ExplorerQuestion(mechanism="gauss_hermite", bits=1)
# A design that is shipped: nothing is solved.
NUMBER = ExplorerQuestion(
    mechanism="mvu", bits=3, epsilon=2.0, rounds=1, dimension=1, clip_geometry="linf"
)


def test_every_mechanism_that_can_be_calibrated_is_offered() -> None:
    found = {one["kind"]: one for one in describe_mechanisms()}
    assert set(found) == {
        one.kind for one in registry.registrations() if one.calibrated_parameter and one.settings
    }
    assert "poisson_binomial" not in found  # only in secure sums
    assert found["gauss_hermite"]["bits_parameter"] == "levels"
    assert found["gaussian"]["bits_parameter"] is None
    assert all(one["variants"] for one in found.values())


@pytest.mark.parametrize("kind", [one["kind"] for one in describe_mechanisms()])
def test_what_is_answered_keeps_the_budget(kind: str) -> None:
    offer = next(one for one in describe_mechanisms() if one["kind"] == kind)
    geometry = next(one for one in ("l2", "linf", "l1") if one in offer["geometries"])
    if kind == "metric_mvu":
        geometry = "l1"  # in l2 every value tried is a design to solve
    bits = max(offer["bits"] or [1]) if kind in ("skellam", "discrete_gaussian") else 2
    if kind == "interpolated_mvu":
        bits = 1  # of two, every value tried is a design to solve
    question = ExplorerQuestion(
        mechanism=kind, bits=bits, rounds=3, dimension=2, clip_geometry=geometry, epsilon=3.0
    )
    if kind == "mvu":
        question = NUMBER
    found = answer(question)
    registration = registry.find(kind)
    mechanism = registration.build(question.domain, found["parameters"])
    event = mechanism.privacy(Adjacency.ZERO_OUT)
    spent = privacy_spent(Repeated(event=event, count=question.rounds), question.delta)
    assert spent.epsilon <= question.epsilon
    assert found["spent"]["epsilon"] == spent.epsilon
    assert float(found["spent"]["shown"]) >= spent.epsilon
    assert found["mse"] > 0.0
    assert math.isfinite(json.loads(json.dumps(found, allow_nan=False))["bytes_per_message"])


def test_bias_variance_and_matrix_are_those_of_the_law() -> None:
    found = answer(ONE_BIT)
    law = found["law"]
    alone = registry.find("gauss_hermite").build(clipped_domain("l2", 1, 1.0), found["parameters"])
    for n in (0, 10, 24, 48):
        x = law["inputs"][n]
        exact = alone.law([x])
        assert isinstance(exact, FiniteLaw)
        assert law["bias"][n] == pytest.approx(float(exact.mean()[0]) - x, abs=1e-12)
        assert law["variance"][n] == pytest.approx(float(exact.variance()[0]))
        assert law["table"]["matrix"][n] == pytest.approx(exact.table[0].tolist())
        assert law["table"]["letters"] == pytest.approx(sorted(exact.points.tolist()))


def test_the_curve_ends_where_the_answer_does() -> None:
    found, line = answer(ONE_BIT), curve(ONE_BIT)
    assert line["rounds"][-1] == ONE_BIT.rounds
    assert line["epsilon"][-1] == found["spent"]["epsilon"]
    assert line["epsilon"] == sorted(line["epsilon"])
    for n, epsilon in enumerate(line["epsilon"]):
        known = [bound[n] for bound in line["bounds"].values() if bound[n] is not None]
        assert epsilon == min(known)


def test_of_one_round_the_curve_shows_what_more_would_cost() -> None:
    line = curve(NUMBER)
    assert line["rounds"][0] == 1
    assert line["epsilon"][0] == answer(NUMBER)["spent"]["epsilon"]
    assert line["rounds"][-1] == 10


def test_the_gaussian_reference_has_the_same_budget() -> None:
    own = answer(ExplorerQuestion(mechanism="gaussian"))
    assert own["gaussian"]["times_the_error"] == pytest.approx(1.0, rel=1e-3)
    one_bit = answer(ONE_BIT)["gaussian"]
    assert one_bit["variance"] == own["gaussian"]["variance"]
    assert 1.0 < one_bit["times_the_error"] < 1.1


def test_a_round_value_that_fits_is_taken() -> None:
    assert answer(NUMBER)["parameters"]["epsilon"] == 2.0


def test_the_spec_that_is_copied_out_loads_and_can_be_run(tmp_path: Path) -> None:
    path = tmp_path / "copied.toml"
    path.write_text(answer(ONE_BIT)["recipe"]["spec"])
    spec = load(path)
    assert spec.privacy.epsilon == ONE_BIT.epsilon
    assert spec.privacy.delta == ONE_BIT.delta
    assert spec.rounds == ONE_BIT.rounds
    assert spec.mechanism.parameters == {"levels": 2}
    mechanism = resolve(load_inputs(spec)).parts[0].mechanism
    assert registry.kind_of(mechanism) == "gauss_hermite"


@pytest.mark.parametrize(
    "kind",
    [
        o["kind"]
        for o in describe_mechanisms()
        if "l2" in o["geometries"] and o["kind"] != "metric_mvu"
    ],
)
def test_the_spec_of_every_mechanism_for_l2_can_be_run(kind: str, tmp_path: Path) -> None:
    from sottovoce.reporting.explorer.answer import recipe

    bits = {"interpolated_mvu": 1, "gauss_hermite": 1, "skellam": 16}.get(kind, 8)
    question = ExplorerQuestion(mechanism=kind, bits=bits, rounds=3)
    path = tmp_path / "copied.toml"
    path.write_text(recipe(question, {})["spec"])
    assert registry.kind_of(resolve(load_inputs(load(path))).parts[0].mechanism) == kind


def test_a_mechanism_that_runs_cannot_use_has_no_spec_but_says_why() -> None:
    recipe = answer(NUMBER)["recipe"]
    assert recipe["spec"] is None
    assert "Runs clip updates in l2" in recipe["no_spec"]


def test_the_python_that_is_copied_out_builds_the_mechanism() -> None:
    names: dict[str, Any] = {}
    exec(answer(NUMBER)["recipe"]["python"], names)
    assert registry.parameters_of(names["mechanism"]) == answer(NUMBER)["parameters"]


@pytest.mark.parametrize("question", [ONE_BIT, NUMBER])
def test_the_commands_that_are_copied_out_find_the_same(
    question: ExplorerQuestion, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sottovoce.cli.main import main

    found = answer(question)
    # A plan under linf designs tables of its own, which takes most of a minute.
    for name in ("calibrate", "plan") if question is ONE_BIT else ("calibrate",):
        words = [*shlex.split(found["recipe"][name]), "--json"]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        told = json.loads(capsys.readouterr().out)
        if name == "plan":
            assert told["setting"]["dimension"] == question.dimension
            assert told["setting"]["epsilon"] == question.epsilon
            continue
        knob = found["calibrated"]
        assert told["parameters"][knob] == pytest.approx(found["parameters"][knob], rel=1e-3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mechanism": "gausian"}, "did you mean 'gaussian'"),
        ({"mechanism": "gaussian", "epsilon": 0}, "epsilon must be a finite number above 0"),
        ({"mechanism": "gaussian", "epsilon": "2"}, "epsilon must be a number"),
        ({"mechanism": "gaussian", "epsilon": True}, "epsilon must be a number"),
        ({"mechanism": "gaussian", "rounds": 1.5}, "rounds must be a whole number"),
        ({"mechanism": "gaussian", "rounds": 10**7}, "rounds must be an integer from 1 to"),
        ({"mechanism": "gaussian", "dimension": 10**12}, "dimension must be an integer"),
        ({"mechanism": "seeded_sign", "dimension": 10**7}, "dimension must be an integer"),
        ({"mechanism": "gaussian", "delta": 1}, "delta must lie strictly between 0 and 1"),
        ({"mechanism": "gaussian", "clip_norm": -1}, "clip norm must be"),
        ({"mechanism": "gaussian", "clip_geometry": "l3"}, "unknown clip geometry 'l3'"),
        ({"mechanism": "gaussian", "adjacency": "none"}, "none"),
        ({"mechanism": "gaussian", "variant": 7}, "variant must be an integer"),
        ({"mechanism": "gaussian", "bit": 7}, "did you mean 'bits'"),
        ({"epsilon": 1}, "must name a 'mechanism'"),
        ([], "a question must be an object"),
        (
            {"mechanism": "laplace", "clip_geometry": "linf", "dimension": 10**5, "rounds": 100},
            "releases would be composed",
        ),
    ],
)
def test_a_bad_or_absurd_question_is_refused_in_a_sentence(given: Any, said: str) -> None:
    with pytest.raises((ParameterError, UnknownNameError)) as refused:
        ExplorerQuestion.from_plain(given)
    assert said in str(refused.value)


def test_a_slow_design_is_not_begun_unasked() -> None:
    with pytest.raises(ParameterError, match="takes a minute or more"):
        answer(ExplorerQuestion(mechanism="metric_mvu", bits=2))


def test_the_librarys_own_sentence_says_what_does_not_fit() -> None:
    with pytest.raises(ParameterError, match="must be a Box"):
        answer(ExplorerQuestion(mechanism="mvu", bits=2))


def test_adjacent_letters_are_merged_and_little_is_lost() -> None:
    question = ExplorerQuestion(mechanism="discrete_gaussian", bits=12, dimension=10, rounds=1)
    table = answer(question)["law"]["table"]
    assert table["all_letters"] == 4096
    assert len(table["letters"]) <= MOST_COLUMNS
    for row in table["matrix"]:
        assert 1.0 - 3e-4 < sum(row) <= 1.0 + 1e-9


def test_a_law_without_a_table_has_none() -> None:
    mechanism = registry.find("gaussian").build(
        clipped_domain("l2", 1, 1.0), {"noise_multiplier": 1.0}
    )
    assert table_of(np.array([0.0]), [mechanism.law([0.0])]) is None
    assert bits_parameter(registry.find("gaussian")) is None
