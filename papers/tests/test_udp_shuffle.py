"""The shuffler's study: exact divergences, a printed bound below them, a verdict both ways."""

import csv
import html
from pathlib import Path
from typing import Any

import mpmath
import pytest
from shuffled_bits import enumerated_divergence

from sottovoce_papers import study
from sottovoce_papers.experiment import find
from sottovoce_papers.published.udp_shuffling import exact_divergence
from sottovoce_papers.studies import udp_shuffle


@pytest.mark.parametrize("eps0", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("clients", [1, 2, 7])
@pytest.mark.parametrize("order", [2, 8, 32])
def test_the_exact_divergence_is_that_of_all_messages(
    eps0: float, clients: int, order: int
) -> None:
    found = exact_divergence(eps0, clients, order)
    with mpmath.workdps(40):
        expected = float(enumerated_divergence(eps0, clients, order))
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_fast_run(tmp_path: Path) -> None:
    found = find("udp-shuffle")
    result = study.run(found, found.settings(fast=True), tmp_path)
    rows = result["rows"]
    with (tmp_path / "data.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(rows)
    assert all((tmp_path / figure["file"]).is_file() for figure in result["figures"])
    page = html.unescape((tmp_path / "index.html").read_text())
    assert all(line in page for line in result["verdict"].splitlines())

    amplified = [row for row in rows if row["part"] == udp_shuffle.AMPLIFICATION]
    assert len(amplified) == 2 * 2 * 2 * 2
    for row in amplified:
        assert 0.0 < row["shuffled_epsilon"] <= row["local_epsilon"]
        assert row["local_epsilon"] <= row["rounds"] * row["eps0"] * (1.0 + 1e-9)
    figures = {
        (row["eps0"], row["clients"], row["rounds"], row["delta"]): row["shuffled_epsilon"]
        for row in amplified
    }
    assert figures[1.0, 10, 1, 1e-5] == pytest.approx(1.000, abs=5e-4)
    assert figures[1.0, 1000, 1, 1e-5] == pytest.approx(0.154, abs=5e-4)
    assert figures[1.0, 1000, 1, 1e-6] == pytest.approx(0.182, abs=6e-4)

    for row in rows:
        if row["part"] == udp_shuffle.LEMMA:
            assert 0.0 < row["exact"] <= row["local_divergence"]
    vectors = {
        (row["dimension"], row["clients"]): row for row in rows if row["part"] == udp_shuffle.VECTOR
    }
    assert vectors[1, 1000]["shuffled_epsilon"] < 0.2
    large = vectors[10_000, 1000]
    assert large["shuffled_epsilon"] == large["local_epsilon"]
    assert large["eps0"] > 40.0
    assert "BELOW the exact divergence" in result["verdict"]
    assert "10 clients gain nothing" in result["verdict"]


def some_rows(*, printed: float, shuffled: float) -> list[dict[str, Any]]:
    nothing = dict.fromkeys(("eps0", "clients", "rounds", "delta", "dimension", "order"))
    return [
        nothing
        | {
            "part": udp_shuffle.AMPLIFICATION,
            "eps0": 1.0,
            "clients": 100,
            "rounds": 1,
            "delta": 1e-5,
            "local_epsilon": 1.0,
            "shuffled_epsilon": shuffled,
        },
        nothing
        | {
            "part": udp_shuffle.LEMMA,
            "eps0": 1.0,
            "clients": 100,
            "order": 8,
            "printed": printed,
            "exact": 0.5,
        },
        nothing
        | {
            "part": udp_shuffle.VECTOR,
            "eps0": 9.0,
            "clients": 100,
            "dimension": 50,
            "local_epsilon": 1.0,
            "shuffled_epsilon": shuffled,
        },
    ]


def test_the_verdict_says_what_the_rows_say() -> None:
    bad = udp_shuffle.verdict(some_rows(printed=0.25, shuffled=0.995))
    assert "in 1 of 1 cases" in bad
    assert "prints 0.25 where the truth is 0.5" in bad
    assert "100 clients gain nothing" in bad
    assert "nothing at dimension 50 (eps0 9)" in bad
    good = udp_shuffle.verdict(some_rows(printed=0.75, shuffled=0.3))
    assert "Lemma 2 as printed holds in all 1 cases" in good
    assert "0.3 among 100." in good
    assert "something in each dimension" in good
