"""`attack reconstruction` and `attack attributes`, driven as a user drives them."""

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specs import small_spec

from sottovoce.runs.runner import run

SIDE, CLASSES, ROWS = 12, 3, 100


def _own_images(path: Path) -> str:
    """Waves whose direction is the label, and whose brightness the attribute."""
    generator = np.random.default_rng(0)
    labels, bright = generator.integers(0, CLASSES, ROWS), generator.integers(0, 2, ROWS)
    down, across = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    angle = np.pi * labels[:, None, None] / CLASSES
    phase = generator.uniform(0, 2 * np.pi, (ROWS, 1, 1))
    waves = np.cos(2 * np.pi * (down * np.cos(angle) + across * np.sin(angle)) + phase)
    pixels = 60 + 100 * bright[:, None, None] + 40 * waves
    np.savez(path, x=pixels.astype(np.uint8), y=labels, attribute_bright=bright)
    return f"npz:{path}"


def _run(tmp_path: Path, **changes: Any) -> Path:
    folder = tmp_path / "run"
    table = {
        "data": {"dataset": _own_images(tmp_path / "own.npz"), "clients": 4},
        "model": {"kind": "strided_cnn"},
        "mechanism": {"kind": "no_privacy"},
        "privacy": {"level": "sample", "clip_norm": 1.0, "delta": 1e-5},
        "rounds": 2,
    }
    run(small_spec(**(table | changes)), folder)
    return folder


@pytest.fixture(scope="module")
def open_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without privacy, which attacks read and add their own files to."""
    return _run(tmp_path_factory.mktemp("open"))


@pytest.mark.slow
def test_without_privacy_images_come_back_and_are_drawn(
    cli: Any, open_run: Path, tmp_path: Path
) -> None:
    folder, plot = open_run, tmp_path / "grid.svg"
    result = cli(
        *("attack", "reconstruction", folder, "--images", 8, "--iterations", 150),
        *("--plot", plot, "--json"),
    ).json
    assert result["ssim"]["low"] > 0.6
    assert result["beats_mean_image"] == {"mse": True, "mae": True, "ssim": True}
    assert set(result["baselines"]) == {"grey", "mean image"}
    assert result == json.loads((folder / "attack-reconstruction.json").read_text())
    assert plot.read_text().count("<image ") == 16


def test_one_bit_with_a_budget_gives_no_image(cli: Any, tmp_path: Path) -> None:
    private = {"level": "sample", "clip_norm": 1.0, "delta": 1e-5, "epsilon": 2.0}
    one_bit = {"kind": "gauss_hermite", "levels": 2}
    folder = _run(tmp_path, mechanism=one_bit, privacy=private)
    asked = ("attack", "reconstruction", folder, "--images", 4, "--iterations", 30)
    result = cli(*asked, "--json").json
    assert result["mechanism"] == "gauss_hermite"
    assert result["beats_mean_image"] == {"mse": False, "mae": False, "ssim": False}
    shown = cli(*asked)
    assert shown.code == 0
    assert "does not beat the mean image" in shown.out


@pytest.mark.slow
def test_other_ways_to_attack(cli: Any, tmp_path: Path) -> None:
    client = {"level": "client", "clip_norm": 5.0, "delta": 1e-5}
    steps = {
        "kind": "fedavg",
        "server_learning_rate": 1.0,
        "local_steps": 2,
        "local_learning_rate": 0.1,
    }
    folder = _run(tmp_path, privacy=client, algorithm=steps)
    several = ("--images", 6, "--batch", 3, "--model-at", "final", "--iterations", 10)
    result = cli("attack", "reconstruction", folder, *several, "--json").json
    assert (result["batch"], result["model_at"]) == (3, "final")
    result = cli(
        *("attack", "reconstruction", folder, "--labels", "inferred", "--images", 2),
        *("--iterations", 10, "--json"),
    ).json
    assert result["labels"] == "inferred"
    result = cli(
        *("attack", "reconstruction", folder, "--method", "learned", "--epochs", 2, "--json")
    ).json
    assert result["model_at"] == "final"
    assert result["mse"]["low"] <= result["mse"]["mean"] <= result["mse"]["high"]
    leaked = result["mse_less_on_own_rows"]  # the control: images that were not trained on
    assert leaked["low"] < 0.0 < leaked["high"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--images", 1), "images must be an integer from 2"),
        (("--images", 4, "--batch", 4), "an interval needs two updates"),
        (("--images", 202, "--batch", 101), "from 1 to 100, got 101"),
        (("--images", 100), "at most the number of training rows 80"),
        (("--method", "learned", "--images", 4, "--batch", 2), "--batch applies to the method"),
        (("--images", 4, "--batch", 2, "--labels", "inferred"), "set --batch 1"),
        (("--iterations", 0), "iterations must be an integer from 1"),
    ],
)
def test_what_cannot_be_attacked_is_one_line(
    cli: Any, open_run: Path, options: tuple[object, ...], message: str
) -> None:
    result = cli("attack", "reconstruction", open_run, *options)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1


def test_flat_squares_are_drawn_and_other_rows_are_not(cli: Any, tmp_path: Path) -> None:
    run(small_spec(), tmp_path / "digits")
    options = ("--images", 2, "--iterations", 5)
    asked = ("attack", "reconstruction", tmp_path / "digits", *options)
    assert cli(*asked, "--json").json["ssim"] is None  # 8x8 is too small for its window
    assert cli(*asked, "--plot", tmp_path / "digits.svg").code == 0
    assert (tmp_path / "digits.svg").read_text().count("<image") == 4
    assert stat.S_IMODE((tmp_path / "digits.svg").stat().st_mode) == 0o600
    run(small_spec(data={"dataset": "blobs:100x7x2", "clients": 2}), tmp_path / "blobs")
    refused = cli(
        "attack", "reconstruction", tmp_path / "blobs", *options, "--plot", tmp_path / "x.svg"
    )
    assert refused.code == 2
    assert "rows of 'blobs:100x7x2' have shape (7,)" in refused.err
    assert not (tmp_path / "x.svg").exists()


def test_without_visible_messages_there_is_none_to_invert(cli: Any, tmp_path: Path) -> None:
    hidden = {
        "channel": {"kind": "secure_sum", "minimum_clients": 4},
        "mechanism": {"kind": "clamped_sign", "logit_bound": 1.0, "noise_multiplier": 4.0},
    }
    folder = _run(tmp_path, **hidden)
    result = cli("attack", "reconstruction", folder, "--images", 2)
    assert result.code == 2
    assert "does not reveal a single client's message" in result.err


def test_an_attribute_that_embeddings_show_is_inferred(
    cli: Any, open_run: Path, tmp_path: Path
) -> None:
    folder, plot = open_run, tmp_path / "accuracy.svg"
    asked = ("attack", "attributes", folder, "--attribute", "bright")
    result = cli(*asked, "--plot", plot, "--json").json
    assert result["accuracy"]["low"] > 0.8
    assert result["beats"]["majority"] is True
    assert set(result["baselines"]) == {"untrained model", "raw rows", "majority"}
    assert result == json.loads((folder / "attack-attributes.json").read_text())
    assert plot.read_text().startswith("<svg")
    assert "The model's embeddings tell more than: majority" in cli(*asked).out
    unknown = cli("attack", "attributes", folder, "--attribute", "brigth")
    assert unknown.code == 2
    assert "did you mean 'bright'?" in unknown.err
