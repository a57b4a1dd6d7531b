"""A site's ledger and its seal: a ledger that is gone, replaced or older is not gone on with."""

import json
import logging
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ledger_files import make_version_2

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import LedgerError, LedgerLostError
from sottovoce.ledger import database, seal
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.ledger.records import Release
from sottovoce.privacy.events import PureDp

EVENT = PureDp(epsilon=0.5, adjacency=Adjacency.ZERO_OUT)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder whose ledger has three charges, all of them sealed."""
    folder = tmp_path / "site"
    folder.mkdir()
    seal.create(folder)
    for number in (1, 2, 3):
        charge(folder, number)
    return folder


def opened(folder: Path) -> Ledger:
    return seal.open_sealed(folder / LEDGER_NAME, folder / seal.SEAL_NAME)


def charge(folder: Path, number: int, *, settle: bool = True, message: bytes | None = None) -> None:
    release = Release(unit=Unit.CLIENT, run="run", client="ada", round=number, uplink=0)
    with opened(folder) as ledger:
        charged = ledger.latest(release) or ledger.charge(release, 0, EVENT)
        if message is not None:
            ledger.store_message(charged, message)
        if settle:
            seal.settle(ledger, folder / seal.SEAL_NAME)


def remove(folder: Path) -> None:
    (folder / LEDGER_NAME).unlink()


def truncate(folder: Path) -> None:
    os.truncate(folder / LEDGER_NAME, 0)


def cut_short(folder: Path) -> None:
    os.truncate(folder / LEDGER_NAME, 5000)


def overwrite(folder: Path) -> None:
    (folder / LEDGER_NAME).write_bytes(b"no database " * 1000)


def link_to_nothing(folder: Path) -> None:
    (folder / LEDGER_NAME).rename(folder / "elsewhere")
    (folder / LEDGER_NAME).symlink_to(folder / "nowhere")


def replace_by_new(folder: Path) -> None:
    remove(folder)
    Ledger(folder / LEDGER_NAME, create=True).close()


def replace_by_older(folder: Path) -> None:
    older = (folder / LEDGER_NAME).read_bytes()
    charge(folder, 4)
    (folder / LEDGER_NAME).write_bytes(older)


def replace_by_one_without_the_message(folder: Path) -> None:
    """A copy from between a charge and its message would send another under the same charge."""
    charge(folder, 4)
    older = (folder / LEDGER_NAME).read_bytes()
    charge(folder, 4, message=b"it may have left")
    (folder / LEDGER_NAME).write_bytes(older)


def replace_by_one_that_parted(folder: Path) -> None:
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    charge(copy, 9)
    charge(folder, 4)
    shutil.copyfile(copy / LEDGER_NAME, folder / LEDGER_NAME)


def remove_the_seal(folder: Path) -> None:
    (folder / seal.SEAL_NAME).unlink()


def remove_both(folder: Path) -> None:
    remove(folder)
    remove_the_seal(folder)


def damage_the_seal(folder: Path) -> None:
    (folder / seal.SEAL_NAME).write_text('{"charges": "3"}')


def nest_the_seal(folder: Path) -> None:
    (folder / seal.SEAL_NAME).write_text("[" * 100_000)


def count_beyond_sqlite(folder: Path) -> None:
    change_the_seal(folder, charges=2**70)


def count_below_zero(folder: Path) -> None:
    change_the_seal(folder, messages=-1)


def change_the_seal(folder: Path, **changes: int) -> None:
    path = folder / seal.SEAL_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


LOSSES: dict[Callable[[Path], None], str] = {
    remove: r"with 3 charges, is missing; restore the ledger.*deploy join.*lower the limits",
    truncate: "is empty; restore it from a backup",
    cut_short: "restore it from a backup",
    overwrite: "file is not a database; restore it from a backup",
    link_to_nothing: "is a link to a missing file",
    replace_by_new: "with 0 charges; this site's ledger, with 3 charges, is missing",
    replace_by_older: "is an older copy: it has 3 charges, but 4 were made",
    replace_by_one_without_the_message: "is an older copy: it has 0 messages, but 1 were made",
    replace_by_one_that_parted: "its first 4 charges are not those of this site",
    remove_the_seal: "has no seal",
    remove_both: "and its seal are missing; restore both",
    damage_the_seal: r"ledger\.seal is damaged",
    nest_the_seal: r"ledger\.seal is damaged",
    count_beyond_sqlite: r"ledger\.seal is damaged",
    count_below_zero: r"ledger\.seal is damaged",
}


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_a_ledger_that_was_lost_is_not_gone_on_with(
    site: Path, lose: Callable[[Path], None]
) -> None:
    lose(site)
    before = {path.name: path.lstat().st_size for path in site.iterdir()}
    for _ in range(2):  # nothing is made by asking
        with pytest.raises(LedgerLostError, match=LOSSES[lose]):
            opened(site)
    assert {path.name: path.lstat().st_size for path in site.iterdir()} == before


def test_a_ledger_may_be_ahead_of_its_seal(site: Path) -> None:
    """Killed between the charge and the seal: nothing has left under that charge."""
    charge(site, 4, settle=False)
    with opened(site) as ledger:
        assert ledger.num_charges == 4
        seal.settle(ledger, site / seal.SEAL_NAME)
    assert json.loads((site / seal.SEAL_NAME).read_text())["charges"] == 4


def test_after_settling_the_file_alone_matches_the_seal(site: Path, tmp_path: Path) -> None:
    with opened(site) as ledger:  # so that the log stays
        charge(site, 4)
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in (LEDGER_NAME, seal.SEAL_NAME):
            shutil.copyfile(site / name, copy / name)
        with opened(copy) as other:
            assert other.position() == ledger.position()
            assert other.num_charges == 4


def test_a_reader_that_holds_on_keeps_the_seal_from_being_written(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.05)
    before = (site / seal.SEAL_NAME).read_bytes()
    with Ledger(site / LEDGER_NAME) as reader, reader.snapshot():
        assert reader.num_charges == 3
        with pytest.raises(LedgerError, match="nothing is lost") as caught:
            charge(site, 4)
        assert not isinstance(caught.value, LedgerLostError)  # asked again, it goes
    assert (site / seal.SEAL_NAME).read_bytes() == before
    with opened(site) as ledger:
        seal.settle(ledger, site / seal.SEAL_NAME)
        assert ledger.num_charges == 4


def test_a_locked_ledger_is_not_lost(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.05)
    other = sqlite3.connect(site / LEDGER_NAME)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LedgerError, match="locked") as caught:
        opened(site)
    assert not isinstance(caught.value, LedgerLostError)
    other.close()


def test_processes_that_charge_at_once_leave_a_seal_of_the_last_charge(site: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: charge(site, number), range(10, 22)))
    with opened(site) as ledger:
        standing = ledger.position()
        assert standing.charges == 15
    assert seal.read(site / seal.SEAL_NAME) == seal.Seal(position=standing)


def test_a_ledger_of_an_earlier_version_gets_a_seal_once(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_version_2(site / LEDGER_NAME)
    remove_the_seal(site)
    Ledger(site / LEDGER_NAME).close()  # brought up to date before the node starts
    with caplog.at_level(logging.WARNING):
        opened(site).close()
        opened(site).close()
    assert caplog.text.count("a seal for its 3 charges was created") == 1
    remove_the_seal(site)
    with pytest.raises(LedgerLostError, match="has no seal"):
        opened(site)


def test_a_seal_of_a_ledger_of_an_earlier_version_binds_it_even_after_a_crash(site: Path) -> None:
    make_version_2(site / LEDGER_NAME)
    remove_the_seal(site)
    with Ledger(site / LEDGER_NAME) as ledger:
        seal.settle(ledger, site / seal.SEAL_NAME)  # and killed before it was noted
    opened(site).close()
    remove_the_seal(site)
    with pytest.raises(LedgerLostError, match="has no seal"):
        opened(site)


@pytest.mark.parametrize("left", [LEDGER_NAME, seal.SEAL_NAME])
def test_a_site_s_ledger_is_made_once(site: Path, left: str) -> None:
    for path in list(site.iterdir()):
        if path.name != left:
            path.unlink()
    with pytest.raises(LedgerError, match=f"{left} exists"):
        seal.create(site)
    assert [path.name for path in site.iterdir()] == [left]


def test_a_ledger_that_was_made_and_not_sealed_is_sealed_by_making_it_again(tmp_path: Path) -> None:
    Ledger(tmp_path / LEDGER_NAME, create=True).close()  # and killed
    seal.create(tmp_path)
    opened(tmp_path).close()


def test_ledger_and_seal_are_their_owner_s_alone(site: Path) -> None:
    assert {stat.S_IMODE(path.stat().st_mode) for path in site.iterdir()} == {0o600}
