"""Whatever is secret or private is its owner's alone from the moment it is there, umask or not."""

import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specs import small_spec

from sottovoce.core import files
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.deployment.machines.address import Address
from sottovoce.deployment.machines.federation import create_federation
from sottovoce.deployment.machines.processes import Child, hold_supervisor_lock
from sottovoce.deployment.machines.site_folder import create_rehearsal_sites
from sottovoce.learning.features import FeatureCache
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Release
from sottovoce.privacy.events import PureDp
from sottovoce.runs.runner import run

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
PUBLIC_NAMES = {"ca.crt", "link.crt", "federation.toml", "node.pub", "a.pub", "b.pub"} | {
    "trust.pub",
    "roster.toml",
}


@pytest.fixture(autouse=True)
def _no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _open_to_others(folder: Path) -> dict[str, str]:
    """What others may read, write or enter, by its path."""
    found = [folder, *folder.rglob("*")]
    return {
        str(path.relative_to(folder)): oct(_mode(path)) for path in found if _mode(path) & 0o077
    }


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_a_file_has_its_mode_at_once_and_never_more_than_the_umask_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: int
) -> None:
    os.umask(mask)
    seen: list[int] = []
    sync = os.fsync

    def watched(handle: int) -> None:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            seen.append(stat.S_IMODE(os.fstat(handle).st_mode))
        sync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    files.write_atomic(tmp_path / "secret", b"x", mode=files.PRIVATE)
    files.write_atomic(tmp_path / "page", b"x")
    with files.open_private(tmp_path / "log") as log:
        log.write(b"x")
    assert seen == [0o600, 0o644 & ~mask]
    assert [_mode(tmp_path / name) for name in ("secret", "log")] == [0o600, 0o600]
    assert _mode(tmp_path / "page") == 0o644 & ~mask


def test_a_ledger_and_what_sqlite_writes_next_to_it(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite", create=True) as ledger:
        release = Release(unit=Unit.CLIENT, run="run", client="ada", round=1, uplink=0)
        charge = ledger.charge(release, 0, PureDp(epsilon=1.0, adjacency=Adjacency.ZERO_OUT))
        ledger.store_message(charge, b"sealed")
        modes = {path.name: _mode(path) for path in tmp_path.iterdir()}
    assert set(modes) == {"ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"}
    assert set(modes.values()) == {0o600}


def test_the_folder_of_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "first"
    run(small_spec(rounds=2, checkpoint_every=1), folder)
    assert {"run.json", "metrics.jsonl", "result.json", "checkpoint.npz", "ledger.sqlite"} <= {
        path.name for path in folder.iterdir()
    }
    assert _open_to_others(folder) == {}


def test_a_folder_that_was_there_keeps_its_mode_and_its_files_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o755)
    run(small_spec(rounds=2, checkpoint_every=1), folder)
    assert _open_to_others(folder) == {".": "0o755"}


def test_keys_ledgers_and_policies_of_a_federation(tmp_path: Path) -> None:
    address = Address(host="127.0.0.1", port=9092)
    federation = create_federation(tmp_path / "f", address=address, sites=["a", "b"])
    create_rehearsal_sites(federation)
    shown = {Path(name).name for name in _open_to_others(tmp_path / "f")}
    assert shown <= PUBLIC_NAMES
    assert all(_mode(path) == 0o700 for path in tmp_path.glob("f/sites/*"))
    assert _mode(tmp_path / "f") == 0o700


def test_logs_and_states_of_keepers(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    with hold_supervisor_lock(folder, what="the node") as announce:
        announce({"control": "here"})
        child = Child.start(
            "a child",
            [sys.executable, "-c", "print('x')"],
            log=folder / "child.log",
            environment=dict(os.environ),
        )
        child.process.wait(60)
        assert json.loads((folder / "state.json").read_text())["ready"]
        names = {path.name for path in folder.iterdir()}
        assert names == {"child.log", "lock", "processes", "state.json"}
        assert _open_to_others(folder) == {}


def test_kept_features(tmp_path: Path) -> None:
    def fill(array: Any) -> None:
        array[:] = 1.0

    folder = tmp_path / "cache"
    FeatureCache(folder).array("0" * 16, (2, 3), np.float32, fill)
    assert list(folder.iterdir())
    assert _open_to_others(folder) == {}


def test_exported_charges_are_as_private_as_the_ledger(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from sottovoce.cli.main import app

    with Ledger(tmp_path / "l.db", create=True) as ledger:
        release = Release(unit=Unit.CLIENT, run="run", client="ada", round=1, uplink=0)
        ledger.charge(release, 0, PureDp(epsilon=1.0, adjacency=Adjacency.ZERO_OUT))
    out = tmp_path / "charges.jsonl"
    done = CliRunner().invoke(app, ["ledger", "export", str(tmp_path / "l.db"), "--out", str(out)])
    assert done.exit_code == 0
    assert _mode(out) == 0o600
