"""The experiment about seeds: a fast run, resumed, and verdicts that can go either way."""

from pathlib import Path
from typing import Any

import pytest

from sottovoce_papers import study
from sottovoce_papers.experiment import Settings, find
from sottovoce_papers.studies.seeded import shuffles as seeded_shuffles
from sottovoce_papers.studies.seeded import study as seeded
from sottovoce_papers.studies.seeded import training as seeded_training
from sottovoce_papers.studies.seeded import vectors as seeded_vectors


def fake_train(spec: Any, *, on_round: Any = None) -> dict[str, Any]:
    """As a training would answer; which is better does not matter here."""
    return {
        "accuracy": 0.7 + 0.01 * spec.seed,
        "loss": 1.0,
        "rounds": spec.rounds,
        "epsilon": 20.0,
        "delta": 1e-6,
        "bits_per_coordinate": 0.2,
        "payload_bytes_up_per_message": 16.0,
        "total_bytes_up_per_message": 60.0,
        "spec_hash": spec.hash,
    }


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeded, "FAST_DIMENSIONS", (1_000,))
    monkeypatch.setattr(seeded, "_MOST_UPDATES", 4)
    monkeypatch.setattr(seeded, "FAST_EPS0S", (2.0,))
    monkeypatch.setattr(seeded, "FAST_CLIENTS", (1_000,))
    monkeypatch.setattr(seeded, "ROUNDS", (1, 3))
    monkeypatch.setattr(seeded_training, "largest_eps0", lambda *_: 2.0)


def test_a_fast_run_is_whole_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    settings = Settings(seeds=2, fast=True, folder=tmp_path)
    found = seeded.study(settings, fake_train)
    parts = [row["part"] for row in found.rows]
    assert parts.count(seeded.VECTORS) == 3 * len(seeded.FAST_MUS)
    assert parts.count(seeded.SHUFFLES) == 3 * 2
    assert parts.count(seeded.TRAINING) == 5
    assert len({tuple(row) for row in found.rows}) == 1  # the same keys
    assert len(found.trials) == 10
    assert not found.failures
    assert "as claimed" in found.verdict
    assert "no clear difference" in found.verdict
    for figure in found.figures:
        assert figure.chart.svg().startswith("<svg")

    def refuse(*_: object) -> None:
        raise AssertionError("what is kept is not measured again")

    monkeypatch.setattr(seeded_vectors, "measure_vectors", refuse)
    assert seeded.study(settings, fake_train).rows == found.rows


def test_it_is_registered_and_needs_no_data() -> None:
    found = find("seeded")
    assert found.data == ""
    assert study.command(found, found.settings(fast=True)).startswith("sottovoce experiment run")


def test_all_three_have_the_error_of_the_gaussian() -> None:
    gaussian, bits, seeds = seeded_vectors.measure_vectors(20_000, 1.0, 6)
    assert (bits["payload_bytes"], seeds["payload_bytes"]) == (2_500, 16)
    assert gaussian["payload_bytes"] == 80_000
    # Standard errors: sqrt(2/(6 d)) of the noise, and 2/(mu d) along the update.
    for row in (gaussian, bits, seeds):
        assert row["error_over_gaussian"] == pytest.approx(1.0, abs=0.015), row["mechanism"]


def test_the_claim_about_a_thousand_clients() -> None:
    step, bits, gaussian = seeded_shuffles.amplified(2.0, 1_000, 1)
    assert step["shuffled_epsilon"] <= seeded.CLAIMED < step["local_epsilon"] <= 2.0
    assert bits["shuffled_epsilon"] == pytest.approx(bits["local_epsilon"])
    assert bits["message_epsilon"] > 100.0
    assert gaussian["shuffled_epsilon"] is None


@pytest.mark.slow
def test_the_largest_message_spends_all_of_the_central_budget() -> None:
    eps0 = seeded_shuffles.largest_eps0(2.0, 1_000, 3, 650)
    step, *_ = seeded_shuffles.amplified(eps0, 1_000, 3)
    assert step["shuffled_epsilon"] == pytest.approx(2.0, rel=1e-3)


def vector(mechanism: str, dimension: int, error: float, size: int, mu: float = 1.0) -> Any:
    values = {
        "mechanism": mechanism,
        "dimension": dimension,
        "mu": mu,
        "payload_bytes": size,
        "error_over_gaussian": error,
        "encode_seconds": 1.0,
    }
    return seeded._full(seeded.VECTORS, values)


def test_a_verdict_names_where_seeds_lose() -> None:
    rows = [
        vector(seeded_vectors.ONE_BIT, 1_000, 1.0, 125),
        vector(seeded_vectors.SEEDS, 1_000, 1.2, 144),
        vector(seeded_vectors.ONE_BIT, 10_000, 1.0, 1_250),
        vector(seeded_vectors.SEEDS, 10_000, 1.001, 16),
    ]
    said = "\n".join(seeded._about_vectors(rows))
    assert "at most 1.2000 times one bit's error (d = 1,000" in said
    assert "1 of 2 cells are within 1%" in said
    assert "no smaller than bits for d = 1,000 at mu = 1.0" in said


def test_a_verdict_says_if_the_shuffled_epsilon_is_larger_than_claimed() -> None:
    row = {
        "mechanism": seeded_shuffles.STEP,
        "clients": 1_000,
        "rounds": 1,
        "message_epsilon": 2.0,
        "local_epsilon": 2.0,
        "shuffled_epsilon": 0.6,
    }
    said = "\n".join(seeded._about_shuffles([seeded._full(seeded.SHUFFLES, row)]))
    assert "MORE than claimed" in said


def test_a_verdict_says_if_one_of_them_learns_better() -> None:
    def trained(mechanism: str, accuracy: float) -> Any:
        values = {
            "mechanism": mechanism,
            "accuracy": accuracy,
            "accuracy_low": accuracy - 0.01,
            "accuracy_high": accuracy + 0.01,
            "local_epsilon": 20.0,
            "bytes_per_client": 600.0,
        }
        return seeded._full(seeded.TRAINING, values)

    for gap, said in (
        (0.05, "-5.00 points (+-1.41), a clear difference"),
        (0.0, "no clear difference"),
    ):
        rows = [trained(seeded_vectors.ONE_BIT, 0.8), trained(seeded_vectors.SEEDS, 0.8 - gap)]
        assert said in "\n".join(seeded._about_training(rows))
