"""`sottovoce privacy`: samples, shuffles, secure sums, curves, and what is refused."""

import math
from pathlib import Path
from typing import Any

import pytest

GAUSSIAN = "privacy spend --mechanism gaussian --param noise_multiplier=1 --delta 1e-5"
SAMPLED = f"{GAUSSIAN} --sampling-rate 0.01 --rounds 1000"
TABLE = "--mechanism generalized_rr --param epsilon=1 --param bits=1 --dimension 1"
SHUFFLED = f"privacy spend {TABLE} --delta 1e-6 --adjacency replace-one --shuffled-clients"
ONE_BIT = (
    "privacy spend --mechanism gauss_hermite --param levels=2 --param noise_multiplier=1 "
    "--delta 1e-5"
)
SUM = "--mechanism clamped_sign --param noise_multiplier=1 --param logit_bound=1 --delta 1e-5"


def test_a_sampled_gaussian_by_every_bound(cli: Any) -> None:
    result = cli(*SAMPLED.split(), "--json").json
    assert result["epsilon"] == pytest.approx(1.8282, abs=1e-3)
    assert result["accountant"] == "pld"
    assert set(result["bounds"]) == {"renyi", "pld"}
    assert result["bounds"]["renyi"] == pytest.approx(2.1015, abs=1e-3)
    assert result["sampling"] == {"rate": 0.01, "scheme": "poisson", "hidden_by": "own-records"}
    assert result["adjacency"] == "zero-out"
    assert result["local_epsilon"] > 100.0


def test_sampled_randomized_response_is_near_the_exact_binomial(cli: Any) -> None:
    words = f"privacy spend {TABLE} --sampling-rate 0.01 --rounds 1000 --delta 1e-5 --json"
    assert 1.278055 <= cli(*words.split()).json["epsilon"] <= 1.278055 + 1e-4


def test_one_bit_sampled(cli: Any) -> None:
    words = (
        "privacy spend --mechanism gauss_hermite --param levels=2 --param noise_multiplier=1 "
        "--dimension 10 --sampling-rate 0.01 --rounds 1000 --delta 1e-5 --json"
    )
    result = cli(*words.split()).json
    assert result["epsilon"] == pytest.approx(1.9654, abs=1e-4)
    assert 0.0 < result["rounding_inflation"] < 1e-3


def test_bits_of_no_stated_dimension_are_charged_for_any(cli: Any) -> None:
    def epsilon(dimension: str) -> Any:
        return cli(*f"{ONE_BIT} --rounds 30 {dimension} --json".split()).json

    anyone = epsilon("")
    assert anyone["dimension"] == "any"
    assert anyone["epsilon"] >= epsilon("--dimension 1000000")["epsilon"]
    assert anyone["epsilon"] > 1.05 * epsilon("--dimension 1")["epsilon"]
    assert epsilon("--dimension 650")["dimension"] == 650


@pytest.mark.parametrize(
    "words",
    ["mvu --param epsilon=1 --param input_bits=3 --param output_bits=3",
     "skellam --param noise_multiplier=2 --param bits=8 --param steps_per_radius=8",
     "laplace --param noise_multiplier=2 --clip-geometry linf"],
)  # fmt: skip
def test_a_cost_that_grows_with_the_dimension_needs_one(cli: Any, words: str) -> None:
    for command in ("spend", "curve --points 1"):
        line = f"privacy {command} --mechanism {words} --delta 1e-5"
        refused = cli(*line.split())
        assert refused.code == 2
        assert "give dimension= (in a command, --dimension)" in refused.err
        assert cli(*f"{line} --dimension 1".split()).code == 0


def test_sampling_never_raises_epsilon(cli: Any) -> None:
    """Other records remain where one is left out, so bits are not compared with fair ones."""
    result = cli(*f"{ONE_BIT} --sampling-rate 0.9999999 --json".split()).json
    assert result["epsilon"] <= result["local_epsilon"]
    alone = cli(*f"{ONE_BIT} --json".split()).json
    assert alone["accountant"] == "cubic"
    assert alone["epsilon"] < result["local_epsilon"]


def test_a_mean_of_records_is_charged_as_a_run_at_sample_level(cli: Any) -> None:
    alone, mean = (
        cli(*f"{ONE_BIT} --dimension 650 --rounds 3 --records {records} --json".split()).json
        for records in (1, 100)
    )
    assert (alone["accountant"], mean["accountant"]) == ("cubic", "quintic")
    assert alone["epsilon"] < mean["epsilon"]
    assert mean["noise_stddev"] == pytest.approx(alone["noise_stddev"] / 100)
    refused = cli(*f"privacy spend {TABLE} --delta 1e-5 --records 5".split())
    assert refused.code == 2
    assert "clip in l2 or l1" in refused.err


def test_hiding_never_raises_epsilon(cli: Any) -> None:
    """A hundred coordinates have no clones; composed one by one they cost less than their sum."""
    words = (
        "privacy spend --mechanism mvu --param epsilon=1 --param input_bits=3 --param "
        "output_bits=3 --dimension 100 --delta 1e-5 --shuffled-clients 1000 --json "
        "--adjacency replace-one"
    )
    result = cli(*words.split()).json
    assert result["epsilon"] <= result["local_epsilon"]
    assert result["accountant"] == "local"


def test_what_an_epsilon_rests_on_is_said(cli: Any) -> None:
    for hiding, words in (
        ("own-records", "samples its own records"),
        ("central-noise", "adds the noise once"),
        ("secure-sum", "send the encoding of zero"),
    ):
        result = cli(*f"{SAMPLED} --sampling-hidden-by {hiding} --json".split()).json
        assert words in result["assumes"]
        # There is no noise unless a trusted party adds it.
        assert (result["local_epsilon"] is None) == (hiding == "central-noise")


def test_numbers_may_begin_with_a_point(cli: Any) -> None:
    words = "privacy spend --mechanism gaussian --param noise_multiplier=.5 --delta 1e-5 --json"
    assert cli(*words.split()).json["parameters"]["noise_multiplier"] == 0.5


def test_shuffling_is_accounted_under_replace_one(cli: Any) -> None:
    result = cli(*f"{SHUFFLED} 1000 --json".split()).json
    assert result["epsilon"] == pytest.approx(0.149, abs=1e-3)
    assert result["adjacency"] == "replace-one"
    assert result["local_epsilon"] == pytest.approx(1.0, abs=1e-3)


def test_a_secure_sum_prints_local_and_central_epsilon(cli: Any) -> None:
    words = f"privacy spend {SUM} --dimension 100 --secure-sum-clients 1000 --json"
    result = cli(*words.split()).json
    assert result["epsilon"] < 0.1 * result["local_epsilon"]
    assert result["secure_sum_clients"] == 1000


def test_noise_for_a_sampled_budget_and_rounds_that_fit_one(cli: Any) -> None:
    sampled = "--sampling-rate 0.01 --delta 1e-5 --json"
    noise = f"privacy calibrate --mechanism gaussian --epsilon 2 --rounds 1000 {sampled}"
    found = cli(*noise.split()).json
    assert found["parameters"]["noise_multiplier"] == pytest.approx(0.9591, abs=1e-4)
    assert 2.0 - 1e-5 <= found["epsilon"] <= 2.0
    rounds = "privacy calibrate --mechanism gaussian --param noise_multiplier=1 --epsilon 2"
    fits = cli(*f"{rounds} {sampled}".split()).json
    assert fits["epsilon"] <= 2.0
    more = SAMPLED.replace("--rounds 1000", f"--rounds {fits['rounds'] + 1}")
    assert cli(*more.split(), "--json").json["epsilon"] > 2.0


def test_a_curve_and_its_picture(cli: Any, tmp_path: Path) -> None:
    picture = tmp_path / "curve.svg"
    words = SAMPLED.replace("spend", "curve").split()
    result = cli(*words, "--points", 4, "--plot", picture, "--json").json
    assert [point["rounds"] for point in result["curve"]] == [1, 10, 100, 1000]
    epsilons = [point["epsilon"] for point in result["curve"]]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] == pytest.approx(1.8282, abs=1e-3)
    drawn = picture.read_text()
    assert ">Epsilon of gaussian at delta = 1e-05, zero-out, by accountant<" in drawn
    assert "renyi" in drawn
    assert "pld" in drawn
    table = cli(*words, "--points", 2)
    assert table.code == 0
    assert "1.8283" in table.out
    assert "zero-out" in table.out
    assert "samples its own records" in table.out


def test_one_accountant_can_be_asked(cli: Any) -> None:
    result = cli(*SAMPLED.split(), "--accountant", "renyi", "--json").json
    assert result["bounds"] == {"renyi": result["epsilon"]}
    assert result["epsilon"] > 2.0


def test_an_enormous_number_of_rounds_has_an_enormous_epsilon(cli: Any) -> None:
    for rounds in (10**9, 10**12):
        result = cli(*SAMPLED.replace("1000", str(rounds)).split(), "--json").json
        assert (result["epsilon"] or math.inf) > 1e4


REFUSED = [
    (f"{SAMPLED} --sampling-hidden-by nothing", "sees who took part"),
    (
        f"{SAMPLED} --sampling-hidden-by luck",
        "valid names: central-noise, nothing, own",
    ),
    (f"{SAMPLED} --sampling fixed-size", "use adjacency replace-one"),
    (f"{SAMPLED} --sampling stratified", "valid names: fixed-size, poisson"),
    (SAMPLED.replace("0.01", "0"), "sampling rate must be"),
    (SAMPLED.replace("0.01", "1.5"), "sampling rate must be"),
    (SAMPLED.replace("0.01", "nan"), "sampling rate must be"),
    (SAMPLED.replace("1000", "0"), "rounds must be an integer from 1"),
    (SAMPLED.replace("1000", str(10**12 + 1)), "rounds must be an integer from 1"),
    (SAMPLED.replace("1e-5", "1"), "strictly between 0 and 1"),
    (
        f"{GAUSSIAN} --adjacency replace-one --shuffled-clients 100",
        "shuffling amplifies pure local guarantees only",
    ),
    (f"{SHUFFLED} 1", "shuffling a single message hides nothing"),
    (f"{SHUFFLED} 9 --adjacency zero-out", "use adjacency replace-one"),
    (
        f"{ONE_BIT} --adjacency replace-one --shuffled-clients 9",
        "the number of coordinates of an update",
    ),
    (
        f"{ONE_BIT} --adjacency replace-one --dimension 2 --records 50 --shuffled-clients 10000",
        "protect whole clients (records = 1",
    ),
    (
        f"{SAMPLED} --records 50 --sampling-hidden-by secure-sum",
        "hide it by own-records, or protect whole clients",
    ),
    (f"{ONE_BIT} --secure-sum-clients 100", "use mechanism 'clamped_sign'"),
    (f"{GAUSSIAN} --secure-sum-clients 100", "use mechanism 'clamped_sign'"),
    (f"privacy spend {SUM} --secure-sum-clients 1", "the sum of one message is that message"),
    (
        f"privacy spend {SUM} --secure-sum-clients 9 --shuffled-clients 9",
        "clients together",
    ),
    (f"privacy spend {SUM} --secure-sum-clients 9 --sampling-rate 0.1", "give only one of them"),
    (f"{GAUSSIAN} --sampling fixed-size", "need --sampling-rate"),
    (
        f"{ONE_BIT} --sampling-rate .1 --sampling-hidden-by central-noise",
        "hide a sample by own-records",
    ),
    (f"{GAUSSIAN} --sampling-hidden-by central-noise", "need --sampling-rate"),
    (f"{ONE_BIT} --accountant gaussian", "may understate it"),
    (f"{ONE_BIT} --accountant plt", "did you mean 'pld'"),
    (
        "privacy curve --mechanism no_privacy --delta 1e-5 --plot x.svg",
        "there is no curve; leave out --plot",
    ),
    (SAMPLED.replace("spend", "curve") + " --points 0", "points must be an integer"),
    (SAMPLED.replace("spend", "curve") + " --plot x.png", "name a file that ends in .svg"),
    (SAMPLED.replace("spend", "curve") + " --plot nowhere/x.svg", "create it first"),
]


@pytest.mark.parametrize(("words", "reason"), REFUSED)
def test_what_is_unsound_or_senseless_is_refused(cli: Any, words: str, reason: str) -> None:
    result = cli(*words.split())
    assert result.code == 2
    assert reason in result.err
    assert result.err.count("\n") == 1


def test_central_noise_is_named_although_all_clients_take_part(cli: Any) -> None:
    words = "privacy spend --mechanism gaussian --param noise_multiplier=1 --delta 1e-5 --json"
    result = cli(*words.split(), "--sampling-rate", 1, "--sampling-hidden-by", "central-noise").json
    assert "a trusted party adds the noise" in result["assumes"]
    assert result["local_epsilon"] is None
