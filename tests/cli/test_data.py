"""`sottovoce data` as people call it."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.learning.datasets import register
from sottovoce.learning.datasets.register import DataFile, Digest


def save_mnist(folder: Path) -> None:
    np.savez(
        folder / "mnist.npz",
        x_train=np.zeros((20, 28, 28), np.uint8),
        y_train=np.arange(20, dtype=np.uint8) % 10,
        x_test=np.full((10, 28, 28), 255, np.uint8),
        y_test=np.arange(10, dtype=np.uint8),
    )


def test_the_list_says_what_is_there_and_what_can_be_fetched(cli: Any, tmp_path: Path) -> None:
    save_mnist(tmp_path)
    result = cli("data", "list", "--data-dir", tmp_path, "--json").json
    assert result["folder"] == str(tmp_path)
    rows = {row["name"]: row for row in result["datasets"]}
    assert rows["mnist"]["files"] == [str(tmp_path / "mnist.npz")]
    found = {name: row["status"] for name, row in rows.items()}
    assert found == {
        "blobs:ROWSxFEATURESxCLASSES": "as named",
        "cifar10": "can be fetched",
        "csv:PATH": "as named",
        "digits": "bundled",
        "fashion_mnist": "can be fetched",
        "femnist": "missing",
        "femnist-all": "missing",
        "gefcom_wind": "missing",
        "gefcom_wind-farms": "missing",
        "hf:FOLDER": "as named",
        "medical_mnist": "missing",
        "medmnist:NAME": "as named",
        "mnist": "found",
        "memory:LABEL": "as named",
        "npz:PATH": "as named",
        "pneumonia_mnist": "can be fetched",
        "utkface": "missing",
        "utkface-race": "missing",
    }
    shown = cli("data", "list", "--data-dir", tmp_path).out
    assert "fashion_mnist" in shown
    assert f"data folder: {tmp_path}" in shown
    assert " mnist.npz" in shown


def test_a_dataset_is_shown_with_shapes_classes_owners_and_note(cli: Any, tmp_path: Path) -> None:
    save_mnist(tmp_path)
    np.savez(tmp_path / "mnist_writers.npz", writer_train=np.arange(20) // 5)
    result = cli("data", "show", "mnist", "--data-dir", tmp_path, "--json").json
    assert result["input_shape"] == [1, 28, 28]
    assert (result["train_rows"], result["test_rows"]) == (20, 10)
    assert (result["task"], result["outputs"], result["owners"]) == ("classes", 10, 4)
    assert (result["lowest_feature"], result["highest_feature"]) == (-0.5, -0.5)
    assert "CC BY-SA" in result["note"]
    assert "CC BY-SA" in cli("data", "show", "mnist", "--data-dir", tmp_path).out


def test_a_table_is_shown_by_its_label_column(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("kind,size\n" + "".join(f"{'abc'[row % 3]},{row}\n" for row in range(12)))
    result = cli("data", "show", f"csv:{path}", "--label-column", "kind", "--json").json
    assert result["outputs"] == 3
    assert result["owners"] is None


def test_a_table_is_shown_with_its_owners(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = "".join(f"{'ab'[row % 2]},{row},{row % 3}\n" for row in range(20))
    path.write_text("ward,size,kind\n" + rows)
    result = cli("data", "show", f"csv:{path}", "--owner-column", "ward", "--json").json
    assert (result["owners"], result["outputs"], result["input_shape"]) == (2, 3, [1])
    result = cli("data", "show", f"csv:{path}", "--owner-column", "wards")
    assert result.code == 2
    assert "did you mean 'ward'" in result.err


def test_a_table_without_names_of_numbers_to_predict_is_shown(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("".join(f"{row},{row / 7}\n" for row in range(20)))
    words = ("data", "show", f"csv:{path}", "--no-header", "--label")
    result = cli(*words, "number", "--json").json
    assert (result["task"], result["train_rows"] + result["test_rows"]) == ("numbers", 20)
    assert cli(*words, "numbers").code == 2


def test_mistakes_and_damage_are_one_line_and_exit_2(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "mnist.npz").write_bytes(b"no archive")
    for words, message in (
        (("show", "mnist"), "mnist.npz cannot be read as data"),
        (("show", "fashion_mnst"), "did you mean 'fashion_mnist'"),
        (("show", "cifar10"), "'sottovoce data fetch cifar10'"),
        (("fetch", "femnist"), "LEAF"),
    ):
        result = cli("data", *words, "--data-dir", tmp_path)
        assert result.code == 2
        assert result.err.startswith("error: ")
        assert message in result.err
        assert result.err.count("\n") == 1


def test_fetch_leaves_alone_what_is_there_and_needs_no_file_for_digits(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_download(*_: object, **__: object) -> None:
        raise AssertionError("nothing should be downloaded")

    monkeypatch.setattr(register, "_chunks", no_download)
    save_mnist(tmp_path)
    result = cli("data", "fetch", "mnist", "--data-dir", tmp_path, "--json").json
    assert result["files"] == [str(tmp_path / "mnist.npz")]
    (tmp_path / "mnist.npz").rename(tmp_path / "pneumoniamnist.npz")  # as good as MedMNIST's own
    result = cli("data", "fetch", "pneumonia_mnist", "--data-dir", tmp_path, "--json").json
    assert result["files"] == [str(tmp_path / "pneumoniamnist.npz")]
    assert "needs no file" in cli("data", "fetch", "digits", "--data-dir", tmp_path).out


def test_fetch_writes_what_the_source_sends_if_the_digest_is_right(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(register, "_chunks", lambda url, target: iter([(b"not CIFAR", 9)]))
    result = cli("data", "fetch", "cifar10", "--data-dir", tmp_path)
    assert result.code == 2
    assert "md5 digest is" in result.err
    assert list(tmp_path.iterdir()) == []
    digest = Digest(algorithm="md5", hexadecimal=hashlib.md5(b"not CIFAR").hexdigest())
    file = DataFile(path="cifar-10-binary.tar.gz", url="https://example.org/c", digest=digest)
    monkeypatch.setattr(register, "downloads", lambda _: (file,))
    result = cli("data", "fetch", "cifar10", "--data-dir", tmp_path)
    assert result.out.strip() == str(tmp_path / "cifar-10-binary.tar.gz")
    assert (tmp_path / "cifar-10-binary.tar.gz").read_bytes() == b"not CIFAR"


def test_a_table_from_abroad_is_shown(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = "".join(f"P{row};{row},5;{row % 2}\n" for row in range(20))
    path.write_text("name;size;kind\n" + rows + "P20;;1\n")
    call = ["data", "show", f"csv:{path}", "--ignore-columns", "name", "--missing", "skip"]
    result = cli(*call, "--decimal", ",", "--json").json
    assert (result["train_rows"], result["test_rows"]) == (16, 4)
    assert "data.csv.decimal = ','" in cli(*call).err
    assert cli(*call, "--missing", "never").code == 2
