"""Lists of many clients, beside run.json and result.json."""

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from specs import small_spec

import sottovoce
from sottovoce.core.errors import OutputError
from sottovoce.reporting import live
from sottovoce.reporting.report_data import report_of
from sottovoce.runs import client_lists
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.record import read_record
from sottovoce.runs.runner import run

CLIENTS = 120
FILES = ("run.json", "result.json", "run-clients.json.gz", "result-clients.json.gz")


def spec_of_many() -> Any:
    data = {"dataset": "digits", "clients": CLIENTS}
    return small_spec(data=data, rounds=2, runtime={"messages": "none"})


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many") / "run"
    run(spec_of_many(), folder)
    return folder


@pytest.fixture
def copied(many: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(many, tmp_path / "copy"))


def as_an_earlier_version_wrote(folder: Path) -> Path:
    opened = RunFolder(folder)
    whole = {"run.json": opened.full_header(), "result.json": opened.result()}
    for name, table in whole.items():
        (folder / name).write_text(json.dumps(table, indent=2))
        (folder / name.replace(".json", client_lists.SUFFIX)).unlink()
    return folder


def test_many_clients_are_next_to_the_files_and_readers_find_them_there(
    many: Path, tmp_path: Path
) -> None:
    result = run(spec_of_many(), tmp_path / "again")
    assert RunFolder(many).result() == result
    assert len(result["clients"]) == CLIENTS
    header = RunFolder(many).header()
    assert header["clients"]["count"] == CLIENTS
    least, most = header["clients"]["ranges"]["weight"]
    weights = [one["weight"] for one in RunFolder(many).full_header()["clients"]]
    assert (least, most) == (min(weights), max(weights))
    for name in FILES:  # the same run leaves the same bytes, for its owner alone
        assert (many / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name
        assert (many / name).stat().st_mode & 0o077 == 0
    opened = sottovoce.open_run(many)
    assert [one.client for one in opened.clients] == [one["client"] for one in result["clients"]]
    assert opened.to_dict() == result


def test_folders_of_earlier_versions_are_read_and_go_on(many: Path, copied: Path) -> None:
    old = as_an_earlier_version_wrote(copied)
    assert "client" in json.loads((old / "result.json").read_text())["clients"][0]
    one, other = read_record(many), read_record(old)
    assert (one.header, one.result) == (other.header, other.result)
    described = [live.describe(live.read(folder)) for folder in (many, old)]
    assert described[0]["clients"] == described[1]["clients"] == CLIENTS
    pages = [report_of([folder])["runs"][0]["accounts"] for folder in (many, old)]
    assert pages[0] == pages[1]
    assert run(spec_of_many(), old, resume=True) == one.result


def test_a_hundred_clients_stand_in_the_file_itself(tmp_path: Path) -> None:
    table = {"name": "x", "clients": [{"client": f"c{i}", "weight": None} for i in range(101)]}
    few = {**table, "clients": table["clients"][:100]}
    assert client_lists.store_clients(tmp_path / "run.json", few) == few
    assert list(tmp_path.iterdir()) == []
    stored = client_lists.store_clients(tmp_path / "run.json", table)
    assert stored["clients"]["ranges"] == {}
    assert client_lists.restore_clients(tmp_path / "run.json", stored) == table


def _other_epsilons(folder: Path) -> None:
    path = folder / "result-clients.json.gz"
    columns = json.loads(gzip.decompress(path.read_bytes()))
    columns["epsilon"] = [0.0] * CLIENTS
    path.write_bytes(gzip.compress(json.dumps(columns).encode()))


def _bytes(content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "result-clients.json.gz").write_bytes(content)


def _count(value: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        table = json.loads((folder / "result.json").read_text())
        table["clients"] = {**table["clients"], "count": value}
        (folder / "result.json").write_text(json.dumps(table))

    return edit


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "result-clients.json.gz").unlink(), "is missing"),
        (_other_epsilons, "is damaged, or belongs to another result.json"),
        (_bytes(b""), "is damaged"),
        (_bytes(b"\x1f\x8b garbage"), "is damaged"),
        (_bytes(gzip.compress(b"[" * 100_000)), "is damaged"),
        (_bytes(gzip.compress(b"\0" * (1 << 22))), "is damaged"),
        (_count(7), "is damaged"),
        (_count([]), "is damaged"),
    ],
)
def test_a_list_that_is_lost_or_not_of_this_run_is_one_clear_error(
    copied: Path, damage: Callable[[Path], object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_lists, "_MOST_BYTES", 1 << 20)
    damage(copied)
    with pytest.raises(OutputError, match=message):
        read_record(copied)
    # What needs no list of clients goes on without it, and writes it again.
    run(spec_of_many(), copied, resume=True)
    assert len(read_record(copied).header["clients"]) == CLIENTS


def test_a_watcher_waits_for_a_run_whose_list_is_written_before_it(tmp_path: Path) -> None:
    (tmp_path / "run-clients.json.gz").write_bytes(b"")
    assert live.read(tmp_path).state == "waiting"


def test_a_small_file_that_unpacks_to_a_large_one_is_refused_before_it_does(
    copied: Path,
) -> None:
    folder = copied
    header = json.loads((folder / "run.json").read_text())
    content = b'{"client":[' + b"[]," * 10**7 + b"[]]}"
    header["clients"]["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "run.json").write_text(json.dumps(header))
    (folder / "run-clients.json.gz").write_bytes(gzip.compress(content))
    with pytest.raises(OutputError, match="is damaged"):
        RunFolder(folder).full_header()
