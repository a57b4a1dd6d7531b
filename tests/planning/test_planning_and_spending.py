"""`plan` and `spend`: the same answers as the commands, as objects."""

from typing import Any

import pytest
from command_line import printed_json

import sottovoce
from sottovoce import Adjacency, GaussHermite, Gaussian, L2Ball
from sottovoce.core.errors import ParameterError, PrivacyError, UnknownNameError
from sottovoce.mechanisms import registry

pytestmark = pytest.mark.usefixtures("ranked_once")
BUDGET: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-5, "dimension": 50}


def test_a_plan_is_what_the_command_prints() -> None:
    plan = sottovoce.plan(**BUDGET)
    command = "plan --epsilon 2 --delta 1e-5 --dimension 50"
    assert plan.to_dict() == printed_json(*command.split())
    assert plan.to_dicts() == plan.to_dict()["ranking"]
    assert plan[0].mechanism == plan.to_dict()["choice"]
    assert [one.mse for one in plan] == sorted(one.mse for one in plan)
    kinds = {one.mechanism for one in (*plan, *plan.left_out)}
    assert kinds == {registration.kind for registration in registry.registrations()}


def test_a_plan_shows_itself() -> None:
    plan = sottovoce.plan(**BUDGET, bits=1)
    assert plan.explanation in str(plan)
    assert "times best" in str(plan)
    page = plan._repr_html_()
    assert page.count("<tr>") == 1 + len(plan)
    assert "epsilon 2.0" in page
    assert set(plan.to_pandas()["mechanism"]) == {one.mechanism for one in plan}


def test_all_settings_are_more_than_the_best_of_each() -> None:
    every = sottovoce.plan(**BUDGET, all_settings=True)
    assert len(every) > len(sottovoce.plan(**BUDGET))
    assert every[0].relative_mse == 1.0


def test_errors_of_a_plan_name_arguments_and_not_options() -> None:
    with pytest.raises(ParameterError, match="sampling and sampling_hidden_by need sampling_rate"):
        sottovoce.plan(**BUDGET, sampling="fixed-size")


def test_spending_is_what_the_command_prints() -> None:
    spent = sottovoce.spend("gaussian", noise_multiplier=10, rounds=100, delta=1e-5)
    command = "privacy spend --mechanism gaussian --param noise_multiplier=10 --rounds 100"
    assert spent.to_dict() == printed_json(*command.split(), "--delta", "1e-5")
    assert spent.epsilon == pytest.approx(4.37718, abs=1e-5)
    assert spent.bounds[spent.accountant] == spent.epsilon == min(spent.bounds.values())
    assert "4.3772" in str(spent)
    assert "epsilon 4.3772 at delta 1e-05 (zero-out)" in spent._repr_html_()


def test_a_name_a_mechanism_and_its_event_spend_the_same() -> None:
    ball = L2Ball(dimension=100, radius=0.5)
    mechanism = GaussHermite(input_domain=ball, levels=2, noise_multiplier=10.0)
    by_name = sottovoce.spend(
        "gauss_hermite",
        levels=2,
        noise_multiplier=10.0,
        dimension=100,
        clip_norm=0.5,
        rounds=7,
        delta=1e-6,
    )
    built = sottovoce.spend(mechanism, rounds=7, delta=1e-6)
    event = sottovoce.spend(mechanism.privacy(Adjacency.ZERO_OUT), rounds=7, delta=1e-6)
    assert by_name == built
    assert (event.epsilon, event.bounds, event.rounds) == (built.epsilon, built.bounds, 7)
    assert event.to_dict()["rounds"] == 7


@pytest.mark.parametrize(
    ("kind", "given", "options"),
    [
        ("gauss_hermite", {"levels": 2}, {"adjacency": "replace-one"}),
        ("gaussian", {}, {"sampling_rate": 0.1, "records": 20}),
        ("mvu", {"input_bits": 1, "output_bits": 1}, {"clip_geometry": "linf", "dimension": 1}),
    ],
)
def test_a_calibrated_mechanism_is_the_command_s_and_keeps_the_budget(
    kind: str, given: dict[str, Any], options: dict[str, Any]
) -> None:
    asked = {**BUDGET, "rounds": 3, **options}
    mechanism = sottovoce.calibrate(kind, **given, **asked)
    words = [f"--param={name}={value}" for name, value in given.items()]
    words += [f"--{name.replace('_', '-')}={value}" for name, value in asked.items()]
    command = printed_json("privacy", "calibrate", "--mechanism", kind, *words)
    built = {"records", "clip_geometry", "dimension", "epsilon"}
    hidden = {name: value for name, value in asked.items() if name not in built}
    spent = sottovoce.spend(mechanism, **hidden)
    assert spent.to_dict() == command
    assert 0.99 * asked["epsilon"] < spent.epsilon <= asked["epsilon"]


def test_what_cannot_be_calibrated_is_refused() -> None:
    for kind, given, words in (
        ("gauss_hermite", {}, "needs levels; give a value, for example levels=2"),
        ("gauss_hermite", {"levels": 2, "noise_multiplier": 1.0}, "that calibration finds"),
        ("no_privacy", {}, "has no parameter to calibrate"),
        ("gaussian", {"adjacency": "zero"}, "did you mean 'zero-out'"),
        ("gaussian", {"clip_nrom": 1.0}, "argument of calibrate.*did you mean 'clip_norm'"),
        ("gaussian", {"rounds": 0}, "rounds"),
    ):
        with pytest.raises((ParameterError, UnknownNameError), match=words):
            sottovoce.calibrate(kind, **BUDGET, **given)


def test_what_hides_messages_is_assumed_and_what_they_would_give_away_is_told() -> None:
    spent = sottovoce.spend("seeded_step", epsilon=1.0, length="kept", generator="chacha20-1",
                            timing="variable", shuffled_clients=1000, dimension=100,
                            adjacency="replace-one", delta=1e-6)  # fmt: skip
    assert spent.local_epsilon is not None
    assert spent.epsilon < spent.local_epsilon
    assert spent.assumes is not None
    assert "at least 1000 clients" in spent.assumes
    assert "ChaCha20" in spent.assumes  # what the mechanism itself assumes stays


def test_no_privacy_is_infinite_and_plain_data_have_none() -> None:
    spent = sottovoce.spend("no_privacy", delta=1e-5)
    assert not spent.private
    assert spent.to_dict()["epsilon"] is None
    assert "infinite" in str(spent)


def test_arguments_that_say_nothing_here_are_refused() -> None:
    mechanism = Gaussian(input_domain=L2Ball(dimension=3, radius=1.0), noise_multiplier=1.0)
    with pytest.raises(ParameterError, match="clip_norm cannot be given here: a mechanism object"):
        sottovoce.spend(mechanism, clip_norm=1.0, delta=1e-5)
    with pytest.raises(ParameterError, match="levels cannot be given here"):
        sottovoce.spend(mechanism, levels=3, delta=1e-5)
    event = mechanism.privacy(Adjacency.ZERO_OUT)
    with pytest.raises(ParameterError, match="adjacency cannot be given here: a privacy event"):
        sottovoce.spend(event, adjacency="zero-out", delta=1e-5)
    with pytest.raises(UnknownNameError, match="did you mean 'rounds'"):
        sottovoce.spend("gaussian", noise_multiplier=1.0, round=3, delta=1e-5)
    with pytest.raises(PrivacyError, match="sampling_rate and shuffled_clients together"):
        sottovoce.spend(
            "gaussian", noise_multiplier=1.0, delta=1e-5, sampling_rate=0.1, shuffled_clients=5
        )


def test_no_mechanism_has_a_parameter_that_spend_takes_itself() -> None:
    import inspect

    own = set(inspect.signature(sottovoce.spend).parameters)
    for registration in registry.registrations():
        assert not own & set(registration.parameters), registration.kind
