"""`sottovoce plan` as people call it."""

from pathlib import Path
from typing import Any

import pytest

from sottovoce.mechanisms import registry

pytestmark = pytest.mark.usefixtures("ranked_once")
BUDGET = "--epsilon 2 --delta 1e-5 --rounds 100 --dimension 10000 --clip-norm 1"
SMALL = "--epsilon 2 --delta 1e-5 --dimension 50"


def test_a_plan_as_json(cli: Any) -> None:
    result = cli("plan", *BUDGET.split(), "--json").json
    assert set(result) == {"ranking", "left_out", "choice", "explanation", "setting"}
    ranking = result["ranking"]
    assert result["choice"] == ranking[0]["mechanism"]
    assert [entry["mse"] for entry in ranking] == sorted(entry["mse"] for entry in ranking)
    assert ranking[0]["relative_mse"] == 1.0
    names = {entry["mechanism"] for entry in (*ranking, *result["left_out"])}
    assert names == {registration.kind for registration in registry.registrations()}
    for entry in ranking:
        assert set(entry) == {
            *("mechanism", "parameters", "mse", "relative_mse", "bits_per_coordinate"),
            *("bytes_per_update", "epsilon", "accountant", "sampling_grade", "unbiased_within"),
            *("assumes", "explanation", "clip_geometry", "clip_norm"),
            *("masked_bits_per_coordinate", "local_epsilon"),
        }
        assert 1.9 < entry["epsilon"] <= 2.0
    gaussian = next(entry for entry in ranking if entry["mechanism"] == "gaussian")
    sigma = gaussian["parameters"]["noise_multiplier"]
    assert gaussian["mse"] == pytest.approx(sigma**2, rel=1e-9)
    assert gaussian["bytes_per_update"] == 40_044
    assert result["setting"]["clip_geometry"] == "l2"
    assert result["setting"]["dimension"] == 10_000


def test_what_is_planned_can_be_asked_of_privacy_spend(cli: Any) -> None:
    for entry in cli("plan", *SMALL.split(), "--json").json["ranking"]:
        given = [f"--param={name}={value}" for name, value in entry["parameters"].items()]
        words = f"privacy spend --mechanism {entry['mechanism']} --delta 1e-5 --dimension 50"
        words += " --clip-geometry l2 --json"
        spent = cli(*words.split(), *given).json
        assert spent["epsilon"] == entry["epsilon"]
        assert spent["accountant"] == entry["accountant"]
        assert spent["bits_per_coordinate"] == entry["bits_per_coordinate"]


def test_a_plan_for_people(cli: Any) -> None:
    shown = cli("plan", *SMALL.split())
    assert shown.code == 0
    assert "times best" in shown.out
    assert "has the smallest error" in shown.out
    assert "left out:" in shown.out
    assert "no_privacy: it gives no privacy" in shown.out
    deployed, _, simulated = shown.out.partition("simulation only (float noise")
    assert deployed.startswith("can be deployed (sampled exactly):")
    assert "gauss_hermite" in deployed
    assert "\n  gaussian " in simulated
    tables = [line for line in shown.out.splitlines() if line.startswith("  ") and ":" not in line]
    assert max(map(len, tables)) <= 100


def test_all_settings_are_more_than_the_best_of_each(cli: Any) -> None:
    few = cli("plan", *SMALL.split(), "--json").json
    many = cli("plan", *SMALL.split(), "--all-settings", "--json").json
    assert len(many["ranking"]) > len(few["ranking"])
    levels = {
        entry["parameters"]["levels"]
        for entry in many["ranking"]
        if entry["mechanism"] == "gauss_hermite"
    }
    assert {2, 4, 8, 16} <= levels


def test_a_sample_is_named_with_what_it_assumes(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    few = tuple(registry.find(kind) for kind in ("gauss_hermite", "gaussian", "seeded_sign"))
    monkeypatch.setattr(registry, "registrations", lambda: few)
    words = f"plan {SMALL} --rounds 10 --sampling-rate 0.1 --bits 1 --json"
    result = cli(*words.split()).json
    assert result["setting"]["sampling"]["rate"] == 0.1
    assert "in secret" in result["setting"]["assumes"]
    assert [entry["mechanism"] for entry in result["ranking"]] == ["gauss_hermite"]


def test_the_frontier_is_drawn(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "frontier.svg"
    result = cli("plan", *SMALL.split(), "--plot", path, "--json").json
    assert result["plot"] == str(path)
    drawing = path.read_text()
    assert drawing.startswith("<svg")
    for text in ("gauss_hermite", "gaussian", "bits per coordinate", "mean squared error"):
        assert text in drawing


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--epsilon 0 --delta 1e-5 --dimension 3", "epsilon must be"),
        ("--epsilon -1 --delta 1e-5 --dimension 3", "epsilon must be"),
        ("--epsilon 1 --delta 2 --dimension 3", "delta must lie"),
        ("--epsilon 1 --delta 1e-5 --dimension 0", "dimension must be"),
        ("--epsilon 1 --delta 1e-5 --dimension 3 --clip-norm 0", "clip_norm"),
        ("--epsilon 1 --delta 1e-5 --dimension 3 --clip-geometry l3", "clip geometry 'l3'"),
        ("--epsilon 1 --delta 1e-5 --dimension 3 --rounds 0", "rounds must be"),
        ("--epsilon 1 --delta 1e-5 --dimension 3 --adjacency other", "adjacency 'other'"),
        (f"{SMALL} --bits 0.1", "allow at least 1 bit"),
        ("--epsilon 1 --delta 1e-5 --dimension 3 --bits 0", "bits"),
        (
            "--epsilon 1e-9 --delta 1e-5 --dimension 100 --rounds 1000000000000",
            "no mechanism keeps",
        ),
        ("--epsilon 1 --delta 1e-5 --dimension 3 --plot x.png", "ends in .svg"),
        ("--epsilon 1 --delta 1e-5 --dimension 3 --sampling-rate 2", "sampling rate"),
        (
            f"{SMALL} --sampling-rate .1 --sampling-hidden-by nothing",
            "sees who took part",
        ),
        ("--epsilon 1 --delta 1e-5 --dimension 3 --sampling fixed-size", "--sampling-rate"),
        ("--epsilon 1 --delta 1e-5", "dimension"),
    ],
)
def test_mistakes_cost_one_line(cli: Any, words: str, message: str) -> None:
    shown = cli("plan", *words.split())
    assert shown.code == 2
    lines = [line for line in shown.err.splitlines() if not line.startswith("planning: ")]
    assert len(lines) == 1  # Progress is shown on slow machines.
    assert message in lines[0]


SUMS = "--epsilon 1 --delta 1e-5 --channel secure_sum"


def test_a_plan_for_a_secure_sum_has_both_epsilons_and_masked_bits(cli: Any) -> None:
    words = f"plan {SUMS} --clients 21 --honest 18 --dimension 10000 --json"
    result = cli(*words.split()).json
    assert result["setting"]["channel"] == "secure_sum"
    assert (result["setting"]["clients"], result["setting"]["honest"]) == (21, 18)
    ranking = {entry["mechanism"]: entry for entry in result["ranking"]}
    assert set(ranking) == {"clamped_sign", "poisson_binomial", "discrete_gaussian"}
    for entry in ranking.values():
        assert 0.99 < entry["epsilon"] <= 1.0
        assert entry["local_epsilon"] > 4.0
        assert "sums over at least 18 clients" in entry["assumes"]
        masked = entry["masked_bits_per_coordinate"]
        assert entry["bytes_per_update"] == 44 + masked * 10_000 // 8
    sign = ranking["clamped_sign"]
    assert sign["masked_bits_per_coordinate"] == 5  # up to 21 ones
    assert "one bit is enough" in result["explanation"]
    # The noise that 18 honest clients add is that of a trusted server, to a few percent.
    noise = sign["parameters"]["noise_multiplier"] * 18**0.5
    assert 3.73 < noise < 1.05 * 3.74


@pytest.mark.slow
def test_a_plan_for_few_coordinates_says_that_one_bit_is_not_enough(cli: Any) -> None:
    shown = cli(*f"plan {SUMS} --clients 21 --dimension 10".split())
    assert shown.code == 0
    flat = " ".join(shown.out.split())
    assert "one bit is not enough: clamped_sign has" in flat
    assert "masked bits" in flat
    assert "local epsilon" in flat
    assert "local epsilon holds without any of this" in flat
    assert "its codes are not added up in a secure sum" in flat


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--channel secure_sum", "needs --clients"),
        ("--channel secure_sum --clients 2", "--clients must be"),
        ("--channel secure_sum --clients 9 --honest 10", "--honest must be"),
        ("--channel secure_sum --clients 9 --honest 1", "--honest must be"),
        ("--clients 9", "set --channel to secure_sum"),
        ("--channel shuffler --clients 9", "channel 'shuffler'"),
        (
            "--channel secure_sum --clients 9 --sampling-rate 0.1",
            "a sample and a secure sum together; leave out --sampling-rate",
        ),
    ],
)
def test_a_senseless_secure_sum_is_refused_with_a_remedy(
    cli: Any, words: str, message: str
) -> None:
    result = cli(*f"plan {SMALL} {words}".split())
    assert result.code != 0
    assert message in " ".join(result.err.split())
