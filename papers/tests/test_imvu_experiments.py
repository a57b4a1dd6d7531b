"""The experiments about I-MVU: closed forms, fast runs, and verdicts that can go either way."""

import csv
import html
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce_papers import study
from sottovoce_papers.experiment import find
from sottovoce_papers.studies import imvu_bias, imvu_mse
from sottovoce_papers.studies.imvu_mse import UnitVector


def fast(name: str, folder: Path) -> dict[str, Any]:
    found = find(name)
    result = study.run(found, found.settings(fast=True), folder)
    with (folder / "data.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == len(result["rows"])
    for figure in result["figures"]:
        assert (folder / figure["file"]).is_file()
    page = html.unescape((folder / "index.html").read_text())
    assert all(line in page for line in result["verdict"].splitlines())
    return result


def test_the_bias_of_figure_1(tmp_path: Path) -> None:
    result = fast("imvu-bias", tmp_path)
    rows = {(row["epsilon"], row["mechanism"]): row for row in result["rows"]}
    assert len(rows) == len(imvu_bias.FAST_EPSILONS) * (2 + len(imvu_bias.OURS))
    assert [figure["name"] for figure in result["figures"]][:2] == ["expected-value", "bias"]
    for epsilon, largest in ((1.0, 0.0153), (5.0, 0.186)):
        assert rows[epsilon, imvu_bias.MVU]["bias_max"] < 1e-12
        assert rows[epsilon, imvu_bias.INTERPOLATED]["bias_max"] == pytest.approx(largest, rel=5e-3)
        # sigma tanh(u/sigma) at u = 1/2, sigma = 1/epsilon
        expected = 0.5 - math.tanh(epsilon / 2.0) / epsilon
        assert rows[epsilon, imvu_bias.OURS[0]]["bias_max"] == pytest.approx(expected, rel=1e-9)
    assert "MVU is unbiased" in result["verdict"]


def bias_rows(mvu: float, published: list[float], ours: float) -> list[dict[str, Any]]:
    return [
        {
            "epsilon": float(epsilon),
            "mechanism": name,
            "bias_max": bias,
            "bias_squared_mean": bias**2,
            "mse_mean": 1.0,
        }
        for epsilon, own in enumerate(published, start=1)
        for name, bias in (
            (imvu_bias.MVU, mvu),
            (imvu_bias.INTERPOLATED, own),
            *((name, ours) for name in imvu_bias.OURS),
        )
    ]


def test_the_verdict_on_the_bias_says_what_the_rows_say() -> None:
    agreeing = imvu_bias.verdict(bias_rows(0.0, [0.1, 0.2], ours=0.15))
    assert "MVU is unbiased" in agreeing
    assert "it grows with epsilon" in agreeing
    assert "1%, 4% of one client's MSE" in agreeing
    assert "less than I-MVU's at epsilon = 2;" in agreeing
    contrary = imvu_bias.verdict(bias_rows(1e-3, [0.2, 0.1], ours=0.3))
    assert "MVU is BIASED: at most 0.001" in contrary
    assert "does NOT always grow" in contrary
    assert contrary.count("never less") == len(imvu_bias.OURS)


def test_the_mse_of_a_fast_run(tmp_path: Path) -> None:
    result = fast("imvu-mse", tmp_path)
    keys = ("dimension", "vector", "rho", "mechanism")
    rows = {tuple(row[key] for key in keys): row for row in result["rows"]}
    assert len(rows) == len(result["rows"]) == 2 * 3 * len(imvu_mse.RHOS) * 5
    # One bit at d = 128, rho = 1 and 5: .985/1.043 and .933/6.42 on average over directions.
    for rho, few, many in ((1.0, 0.985, 1.043), (5.0, 0.933, 6.42)):
        row = rows[128, "flat", rho, imvu_mse.OURS[1]]
        assert row["ratio_1"] == pytest.approx(few, rel=5e-3)
        assert row["ratio_10000"] == pytest.approx(many, rel=0.1)
        for bits in (2, 3, 4):
            assert rows[128, "flat", rho, imvu_mse.OURS[bits]]["ratio_10000"] == pytest.approx(
                1.0, abs=imvu_mse.WITHIN
            )
    sampled = [row for row in result["rows"] if row["sampled_ratio_100"] is not None]
    assert len(sampled) == 15
    for row in sampled:
        error = abs(row["sampled_ratio_100"] - row["ratio_100"])
        assert error < 0.25 * row["ratio_100"]
    assert rows[128, "flat", 1.0, imvu_mse.PUBLISHED]["best_epsilons"].startswith("0.25 ")
    assert "Fewest bits" in result["verdict"]
    for row in rows.values():
        if row["vector"] == "spiky-rotated" and row["bits"] == row["automatic_bits"]:
            assert row["mechanism"] == imvu_mse.PUBLISHED or row["ratio_10000"] < 1.003


@pytest.mark.parametrize("rho", [0.01, 1.0, 20.0])
def test_a_spike_has_its_closed_form_error(rho: float) -> None:
    """sigma^2 + u^2 - 2 u sigma tanh(u/sigma) for one client and one bit."""
    (spike,) = [v for v in imvu_mse.unit_vectors(50) if v.name == imvu_mse.SPIKY]
    errors = imvu_mse.exact_errors(imvu_mse.gauss_hermite(rho, levels=2), spike, rho)
    sigma = 1.0 / math.sqrt(2.0 * rho)
    at_spike = sigma**2 + 1.0 - 2.0 * sigma * math.tanh(1.0 / sigma)
    assert errors.ratio(1) == pytest.approx((at_spike + 49.0 * sigma**2) / (50.0 * sigma**2))
    assert errors.ratio(10) - errors.ratio(1) == pytest.approx(9.0 * errors.squared_bias)


@pytest.mark.parametrize(
    ("epsilon", "second_moment"), [(0.25, 1.010), (1.0, 1.17), (3.0, 2.75), (5.0, 6.42)]
)
def test_the_published_letters_have_the_known_second_moment(
    epsilon: float, second_moment: float
) -> None:
    """Over sigma^2, at equal rho: what the published mechanism costs where the bias is nil."""
    nothing = UnitVector(name="zero", values=np.zeros(1), counts=np.array([5.0]))
    option = imvu_mse.interpolated_mvu(2.0, epsilon=epsilon, output_bits=1)
    errors = imvu_mse.exact_errors(option, nothing, 2.0)
    assert errors.ratio(10**6) == pytest.approx(second_moment, rel=5e-3)


def test_chunks_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    vector = imvu_mse.unit_vectors(100)[0]
    option = imvu_mse.gauss_hermite(20.0, levels=4)
    whole = imvu_mse.exact_errors(option, vector, 20.0)
    monkeypatch.setattr(imvu_mse, "_CHUNK", 7)
    parts = imvu_mse.exact_errors(option, vector, 20.0)
    assert parts.ratio(1000) == pytest.approx(whole.ratio(1000), rel=1e-12)
    assert float(np.linalg.norm(vector.full())) == pytest.approx(1.0)


def mse_rows(ratios: dict[str, float], sampled: float | None = None) -> list[dict[str, Any]]:
    bits = {imvu_mse.PUBLISHED: 1} | {name: b for b, name in imvu_mse.OURS.items()}
    return [
        {
            "dimension": 128,
            "vector": imvu_mse.FLAT,
            "rho": 1.0,
            "mechanism": name,
            "bits": bits[name],
            "automatic_bits": 2,
            "ratio_1": 1.0,
            "ratio_100": 1.0,
            "ratio_10000": ratio,
            "sampled_ratio_100": sampled,
            "sampled_half_width": None if sampled is None else 0.1,
        }
        for name, ratio in ratios.items()
    ]


def test_the_verdict_on_the_mse_says_what_the_rows_say() -> None:
    ours = imvu_mse.OURS
    some = imvu_mse.verdict(
        mse_rows({ours[1]: 1.1, ours[2]: 1.002, ours[3]: 1.0, imvu_mse.PUBLISHED: 1.2}, 1.05)
    )
    assert "flat, d = 128: 2 at rho = 1." in some
    assert "below our one bit's in 0 of 3 settings" in some
    assert "above the Gaussian's in 2." in some
    assert "in 4 of 4 cases" in some
    assert "at most 2 bits, and an MSE of at most 1.0020 of the Gaussian's" in some
    none = imvu_mse.verdict(mse_rows({ours[1]: 1.1, ours[2]: 1.004, imvu_mse.PUBLISHED: 1.0}, 1.2))
    assert "more than 2 at rho = 1." in none
    assert "below our one bit's in 1 of 3 settings" in none
    assert "in 0 of 3 cases" in none
    assert "Sampled" not in imvu_mse.verdict(mse_rows({ours[1]: 1.0, imvu_mse.PUBLISHED: 1.0}))
