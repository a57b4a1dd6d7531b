"""What fuzzing and reading have found, each mended and kept."""

import io
import json
import math
import os
import sqlite3
import zipfile
from datetime import date
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from specs import small_table

from sottovoce.cli import mistakes
from sottovoce.core.errors import (
    ConfigError,
    DataError,
    DesignError,
    LedgerError,
    OutputError,
    ParameterError,
    PolicyError,
)
from sottovoce.federated.training import Progress
from sottovoce.flower.announcement import PLAN, build_request, read_announcement
from sottovoce.learning import datasets
from sottovoce.learning.datasets.register import CsvOptions
from sottovoce.ledger.ledger import Ledger
from sottovoce.mechanisms.design import store
from sottovoce.mechanisms.design.store import DesignSpec
from sottovoce.runs import tracking
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.loading import parse, parse_text
from sottovoce.runs.opened import export_model
from sottovoce_papers.features import public_images


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(
    "where", [("mechanism", "generator"), ("mechanism", "levels"), ("privacy", "clip_norm")]
)
def test_no_number_of_a_spec_is_infinite(where: tuple[str, str], value: float) -> None:
    table = small_table()
    table[where[0]] = {**table[where[0]], where[1]: value}
    with pytest.raises(ConfigError, match=r"must be a finite number"):
        parse(table)
    with pytest.raises(ConfigError, match="finite"):
        parse(parse_text(f"[{where[0]}]\n{where[1]} = {value!r}\n", "text"))


@pytest.mark.parametrize(
    "value",
    [
        date(2024, 1, 1), b"bytes", None, {"a": None}, [None], {1: 2}, "\ud800", {"\ud800": 1},
        object(),
    ],
)  # fmt: skip
def test_parameters_that_would_be_written_as_others_are_refused(value: Any) -> None:
    mechanism = {"kind": "gauss_hermite", "levels": 2, "odd": value}
    with pytest.raises(ConfigError):
        parse(small_table(mechanism=mechanism))
    model = {"kind": "module", "factory": "a:b", "arguments": {"odd": value}}
    with pytest.raises(ConfigError):
        parse(small_table(model=model))
    with pytest.raises(ConfigError):
        parse(small_table(algorithm={"kind": "a_plug_in_s", "odd": value}))


def test_a_tuple_is_the_list_that_is_written() -> None:
    model = {"kind": "module", "factory": "a:b", "arguments": {"sizes": (1, 2), "none": ()}}
    spec = parse(small_table(model=model))
    assert parse(spec.plain()) == spec


def test_a_spec_without_end_is_refused() -> None:
    deep: Any = 1
    for _ in range(2000):
        deep = {"a": deep}
    with pytest.raises(ConfigError, match="nested more than"):
        parse(small_table(mechanism={"kind": "gaussian", "deep": deep}))


@pytest.mark.parametrize("key", ["0", "7", "²"])
def test_a_key_that_looks_like_a_place_in_a_list_is_an_unknown_key(key: str) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        parse(small_table(**{key: 1}))
    with pytest.raises(ConfigError, match="unknown key"):
        parse(small_table(data={"dataset": "digits", "clients": 4, key: {}}))


def test_a_budget_whose_client_is_gone_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    from sottovoce.core.adjacency import Adjacency, Unit
    from sottovoce.ledger.records import Budget

    path = tmp_path / "l.db"
    with Ledger(path, create=True) as ledger:
        budget = Budget(epsilon=1.0, delta=1e-6, adjacency=Adjacency.ZERO_OUT, unit=Unit.CLIENT)
        ledger.set_budget("ada", budget)
    db = sqlite3.connect(path)
    db.execute("PRAGMA writable_schema = ON")
    db.execute("UPDATE sqlite_master SET sql = replace(sql, 'client TEXT NOT NULL', 'client TEXT')")
    db.commit()
    db.close()
    db = sqlite3.connect(path)
    db.execute("UPDATE budgets SET client = NULL")
    db.commit()
    db.close()
    with Ledger(path) as ledger:
        assert any("budget cannot be found" in problem for problem in ledger.verify())


def test_an_error_of_sqlite_that_is_no_text_is_a_ledger_error(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    Ledger(path, create=True).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = DELETE")
    db.close()
    content = path.read_bytes()
    at = content.rindex(b"CREATE TABLE meta") + len(b"CREATE TABLE m")
    path.write_bytes(content[:at] + b"\xff\x80(" + content[at + 3 :])
    with pytest.raises(LedgerError), Ledger(path) as ledger:
        ledger.check_unaltered()


@pytest.mark.parametrize("change", [{"adjacency": []}, {"adjacency": 1.5}, {"clip_norm": 10**400}])
def test_a_foreign_plan_of_odd_types_is_refused(change: dict[str, Any]) -> None:
    plain = {
        "version": 2, "client": "a", "round": 1, "rounds": 9, "cohort": 3,
        "mechanism": "gauss_hermite",
        "parameters": {"levels": 2, "noise_multiplier": 8.0}, "dimension": 32, "clip_norm": 1.0,
        "adjacency": "zero-out", "layout": "x", "num_examples": False,
    }  # fmt: skip
    assert build_request(_announced(plain), "run").uplinks == 1
    with pytest.raises(PolicyError):
        build_request(_announced({**plain, **change}), "run")


def _announced(plain: dict[str, Any]) -> Any:
    from flwr.app import ConfigRecord

    return read_announcement(ConfigRecord({PLAN: json.dumps(plain)}))


def _archive(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def _npy(value: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, value)
    return buffer.getvalue()


UNFINISHED = _npy(np.ones(3)).replace(b"}", b"(")  # a header that numpy cannot take apart


@pytest.mark.parametrize(
    "members",
    [
        {"model": UNFINISHED},
        {"model": b"no array"},
        {"model": _npy(np.ones((2, 4)))},
        {"model": _npy(np.array("text"))},
        {"model": _npy(np.array([*np.ones(7), np.nan]))},
        {"model": _npy(np.array([-np.inf, *np.ones(7)]))},
        {"rounds_done": _npy(np.array(0.5))},
        {"rounds_done": _npy(np.array(-1))},
        {"num_charges": _npy(np.arange(2))},
    ],
)
def test_a_damaged_checkpoint_is_said_to_be_damaged(
    tmp_path: Path, members: dict[str, bytes]
) -> None:
    run = RunFolder(tmp_path)
    whole = {
        "rounds_done": _npy(np.int64(3)),
        "num_charges": _npy(np.int64(0)),
        "model": _npy(np.ones(8)),
    }
    (tmp_path / "checkpoint.npz").write_bytes(_archive(**whole))
    assert run.load_checkpoint() is not None
    (tmp_path / "checkpoint.npz").write_bytes(_archive(**{**whole, **members}))
    with pytest.raises(OutputError, match="is damaged"):
        run.load_checkpoint()


HEADER: dict[str, Any] = {
    "spec": {"privacy": {"delta": 1e-5, "adjacency": "zero-out"}},
    "spec_hash": "0" * 16,
    "layout": [["weight", [2, 3]], ["bias", [2]]],
    "guarantee": "none",
    "randomness": "seeded",
    "sampling_grade": "exact",
}


@pytest.mark.parametrize(
    "change",
    [
        {"layout": [["weight", [2, 3]]]},
        {"layout": [["weight", [2, -3]], ["bias", [2]]]},
        {"layout": [["same", [2, 3]], ["same", [2]]]},
        {"layout": [["weight", [2.0, 3]], ["bias", [2]]]},
        {"layout": [[1, [8]]]},
        {"layout": 7},
        {"spec": {}},
        {"spec": {"privacy": {"delta": "x", "adjacency": "zero-out"}}},
        {"guarantee": None},
        {"guarantee": "\ud800"},
    ],
)
def test_a_model_is_exported_only_as_its_run_describes_it(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    folder = tmp_path / "run"
    run = RunFolder(folder)
    run.create(HEADER, with_ledger=True)
    run.save_checkpoint(Progress(rounds_done=3, model=np.ones(8), algorithm_state={}), 0)
    assert export_model(folder, tmp_path / "m.safetensors")["parameters"] == 8
    (folder / "run.json").write_text(json.dumps({**HEADER, **change}))
    with pytest.raises(OutputError, match=r"does not match|run\.json is damaged"):
        export_model(folder, tmp_path / "other.safetensors")
    assert not (tmp_path / "other.safetensors").exists()


def test_a_model_that_no_float32_holds_is_not_exported(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create(HEADER, with_ledger=True)
    model = np.ones(8)
    model[7] = -1e39
    run.save_checkpoint(Progress(rounds_done=3, model=model, algorithm_state={}), 0)
    with pytest.raises(OutputError, match=r"'bias'.*float32"):
        export_model(tmp_path / "run", tmp_path / "m.safetensors")
    assert not (tmp_path / "m.safetensors").exists()


@pytest.mark.parametrize("label", ["number", "class"])
def test_numbers_that_no_float32_holds_are_named(
    label: Literal["number", "class"], tmp_path: Path
) -> None:
    path = tmp_path / "own.csv"
    path.write_text("x,y\n" + "".join(f"{n},{n % 2}\n" for n in range(20)) + "3,1e39\n-1e39,1\n")
    options = CsvOptions(label_columns=("y",), label=label)
    with pytest.raises(DataError, match=r"data row 2[12], column '[xy]': -?1e\+39 is too large"):
        datasets.load(f"csv:{path}", np.random.default_rng(1), csv=options)


def test_bounds_whose_distance_is_infinite_are_refused() -> None:
    with pytest.raises(ParameterError, match="finite"):
        CsvOptions(label_columns=("y",), bounds={"x": (-1e308, 1e308)})


def test_half_a_character_is_a_mistake_and_no_crash() -> None:
    with pytest.raises(UnicodeEncodeError) as error:
        os.stat("\ud800")
    assert mistakes.explain(error.value) == (
        "error: '\\ud800' cannot be encoded as text; correct that argument"
    )


@pytest.mark.parametrize("content", [UNFINISHED, b"no array"])
def test_damaged_images_and_designs_are_said_to_be_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(_archive(images=content))
    with pytest.raises(ParameterError, match=r"a \.npz file of arrays"):
        public_images.read(tmp_path / "x.npz", (1, 4, 4))
    spec = DesignSpec(family="strict", epsilon=1.0, inputs=2, letters=2)
    store.save(store.solve(spec), tmp_path)
    (arrays,) = tmp_path.glob(f"{spec.name}-*.npz")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("knots", "rows", "letters"):
            archive.writestr(f"{spec.name}/{name}.npy", content)
    arrays.write_bytes(buffer.getvalue())
    with pytest.raises(DesignError, match="cannot be read"):
        store.load(tmp_path, spec)


def test_trackers_leave_out_what_is_no_figure() -> None:
    row = {"accuracy": "high", "loss": [1], "epsilon": math.inf, "payload_bytes_up": 10**400}
    assert tracking.round_figures(row) == {}
    assert tracking.final_texts({"warnings": 3}) == {}
    assert tracking.final_texts({"warnings": ["a", 1]}) == {"warnings": "a; 1"}
