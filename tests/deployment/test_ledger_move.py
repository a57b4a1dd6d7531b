"""A site's account moves to a new folder: whole, once, and at whatever moment it is interrupted."""

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import call, printed_json
from ledger_files import contents

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import ConfigError, DeploymentError, LedgerError, LedgerLostError
from sottovoce.deployment.machines import processes, site_folder
from sottovoce.deployment.machines.processes import hold_supervisor_lock
from sottovoce.deployment.machines.site_folder import move_ledger
from sottovoce.ledger import database, seal
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.ledger.records import Release
from sottovoce.privacy.events import PureDp

EVENT = PureDp(epsilon=0.5, adjacency=Adjacency.ZERO_OUT)
RELEASE = Release(unit=Unit.CLIENT, run="run", client="ada", round=9, uplink=0)
Folders = tuple[Path, Path]


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """A site with three charges, and the folder that takes over."""
    old, new = join(tmp_path / "old"), join(tmp_path / "new")
    for number in (1, 2, 3):
        charge(old, number)
    (old / "audit.jsonl").write_text("{}\n")
    (old / "witness-hospital.json").write_text("{}")
    return old, new


def opened(folder: Path) -> Ledger:
    return seal.open_sealed(folder / LEDGER_NAME, folder / seal.SEAL_NAME)


def charge(folder: Path, number: int) -> None:
    release = Release(unit=Unit.CLIENT, run="run", client="ada", round=number, uplink=0)
    with opened(folder) as ledger:
        ledger.charge(release, 0, EVENT)
        seal.settle(ledger, folder / seal.SEAL_NAME)


def answers(folder: Path) -> bool:
    try:
        opened(folder).close()
    except LedgerLostError:
        return False
    return True


def assert_moved(old: Path, new: Path, before: list[str]) -> None:
    assert contents(new / LEDGER_NAME) == before
    with opened(new) as ledger:
        assert ledger.verify() == []
        assert ledger.num_charges == 3
    with pytest.raises(LedgerLostError, match=f"was moved to {new}"):
        opened(old)
    names = {path.name for path in old.iterdir() if not path.name.startswith(".")}
    assert names == {"site.toml", "node", seal.SEAL_NAME}
    assert (new / "audit.jsonl").read_text() == "{}\n"
    assert (new / "witness-hospital.json").is_file()


def test_a_ledger_moves_with_its_seal_and_the_old_folder_refuses(folders: Folders) -> None:
    before = contents(folders[0] / LEDGER_NAME)
    assert move_ledger(*folders).charges == 3
    assert_moved(*folders, before)
    assert move_ledger(*folders).charges == 3  # once more changes nothing
    assert_moved(*folders, before)
    charge(folders[1], 4)  # and the account goes on
    assert move_ledger(*folders).charges == 3
    with opened(folders[1]) as ledger:
        assert ledger.num_charges == 4


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_move_that_is_killed_anywhere_loses_nothing_and_is_finished_by_the_next(
    folders: Folders, tmp_path: Path
) -> None:
    before = contents(folders[0] / LEDGER_NAME)
    for step in range(1, 200):
        old, new = (tmp_path / str(step) / folder.name for folder in folders)
        shutil.copytree(folders[0], old)
        shutil.copytree(folders[1], new)
        killed = _killed_at(step, old, new)
        assert answers(old) or not answers(new) or _has(new, before)
        assert not (answers(old) and answers(new) and _has(new, before))
        assert not (_has(old, before) and answers(new) and _has(new, before))
        assert _has(old, before) or _has(new, before)
        move_ledger(old, new)
        assert_moved(old, new, before)
        if not killed:
            break
    assert step > 20
    assert not killed


@pytest.fixture
def interrupted(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> Folders:
    """A move that ended when neither folder answers and nothing has been copied."""
    with monkeypatch.context() as patch:
        patch.setattr(site_folder, "_copy", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            move_ledger(*folders)
    assert not any(map(answers, folders))
    return folders


def join(folder: Path) -> Path:
    folder.mkdir()
    (folder / "site.toml").touch()
    seal.create(folder)
    return folder


def test_an_interrupted_move_goes_on_to_a_folder_that_was_made_again(interrupted: Folders) -> None:
    old, new = interrupted
    before = contents(old / LEDGER_NAME)
    shutil.rmtree(new)
    join(new)
    assert move_ledger(old, new).charges == 3
    assert_moved(old, new, before)


def test_an_interrupted_move_goes_on_between_folders_that_were_renamed(
    interrupted: Folders, tmp_path: Path
) -> None:
    before = contents(interrupted[0] / LEDGER_NAME)
    old, new = (folder.rename(tmp_path / f"renamed-{folder.name}") for folder in interrupted)
    assert move_ledger(old, new).charges == 3
    assert_moved(old, new, before)


def test_an_interrupted_move_may_go_elsewhere_and_then_not_to_the_former_folder(
    interrupted: Folders, tmp_path: Path
) -> None:
    (old, new), third = interrupted, join(tmp_path / "third")
    before = contents(old / LEDGER_NAME)
    assert move_ledger(old, third).charges == 3
    assert_moved(old, third, before)
    with pytest.raises(LedgerLostError, match=f"was moved to {third}"):
        move_ledger(old, new)
    assert not answers(new)


def test_a_new_folder_that_awaits_one_account_does_not_take_another(
    interrupted: Folders, tmp_path: Path
) -> None:
    old, new = interrupted
    with pytest.raises(LedgerLostError, match=f"ledger move {old} {new}"):
        move_ledger(join(tmp_path / "third"), new)
    shutil.rmtree(old)
    with pytest.raises(LedgerLostError, match="is another ledger, with 0 charges"):
        move_ledger(join(old), new)


@pytest.mark.parametrize("is_restored", [False, True])
@pytest.mark.parametrize("is_wiped", [False, True])
def test_an_account_that_has_arrived_is_not_begun_again_from_the_old_folder(
    folders: Folders, tmp_path: Path, is_restored: bool, is_wiped: bool
) -> None:
    (old, new), third = folders, join(tmp_path / "third")
    ledger = (old / LEDGER_NAME).read_bytes()
    move_ledger(old, new)
    charge(new, 4)
    if is_restored:
        (old / LEDGER_NAME).write_bytes(ledger)
    if is_wiped:
        shutil.rmtree(new)
        with pytest.raises(ConfigError, match="renamed since, restore its name"):
            move_ledger(old, new)
        join(new)
        with pytest.raises(LedgerLostError, match="is another ledger"):
            move_ledger(old, new)
    with pytest.raises(LedgerLostError, match="was moved to"):
        move_ledger(old, third)
    assert not answers(old)


def _killed_at(step: int, old: Path, new: Path) -> bool:
    """Move in a process that is killed before its step-th change of a file; False if it ends."""
    child = os.fork()
    if not child:
        left = step

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            changes = event in ("os.rename", "os.remove", "os.link", "sqlite3.connect")
            if changes or (event == "open" and arguments[2] & os.O_ACCMODE != os.O_RDONLY):
                left -= 1
                if not left:
                    os._exit(9)

        code = 1
        with contextlib.suppress(BaseException):
            sys.addaudithook(hook)
            move_ledger(old, new)
            code = 0
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


def _has(folder: Path, before: list[str]) -> bool:
    path = folder / LEDGER_NAME
    return path.exists() and contents(path) == before


def test_what_may_not_be_moved_is_left_as_it_was(folders: Folders, tmp_path: Path) -> None:
    old, new = folders
    charge(new, 1)
    with pytest.raises(LedgerError, match="charges of its own"):
        move_ledger(old, new)
    with pytest.raises(ConfigError, match="is not a site's folder"):
        move_ledger(old, tmp_path)
    with pytest.raises(ConfigError, match="was given twice"):
        move_ledger(old, old)
    (tmp_path / "empty").mkdir()
    with pytest.raises(LedgerError, match="has no ledger to move"):
        move_ledger(tmp_path / "empty", new)
    assert answers(old)
    assert answers(new)


def test_a_ledger_is_not_moved_while_a_node_runs(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_LOCK_SECONDS", 0.1)
    for folder in folders:
        with (
            hold_supervisor_lock(folder / "node", what="the node"),
            pytest.raises(DeploymentError, match="is already running"),
        ):
            move_ledger(*folders)
    assert answers(folders[0])


def test_a_ledger_that_moved_does_not_move_elsewhere(folders: Folders, tmp_path: Path) -> None:
    move_ledger(*folders)
    third = join(tmp_path / "third")
    with pytest.raises(LedgerLostError, match="was moved to"):
        move_ledger(folders[0], third)
    assert move_ledger(folders[1], third).charges == 3


@pytest.mark.parametrize("number", [0, 1])
def test_a_node_that_charges_while_the_ledger_moves_does_not_answer(
    folders: Folders, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the old folder nor in the new: a node of Flower's own is not stopped by it."""
    seal_file = folders[number] / seal.SEAL_NAME
    refusals: list[str] = []

    def copy(*arguments: Any) -> Any:
        node.charge(RELEASE, 0, EVENT)
        with pytest.raises(LedgerLostError) as refusal:
            seal.settle(node, seal_file)
        refusals.append(str(refusal.value))
        return _copy(*arguments)

    _copy = site_folder._copy
    monkeypatch.setattr(site_folder, "_copy", copy)
    with opened(folders[number]) as node:
        move_ledger(*folders)
        with pytest.raises(LedgerError):
            seal.settle(node, seal_file)
    assert len(refusals) == 1
    assert "sottovoce ledger move" in refusals[0]
    assert not answers(folders[0])


def test_a_move_and_a_node_that_settles_wait_for_each_other(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited, write = [], seal.Seal.write

    def write_against(new: seal.Seal, path: Path) -> None:
        if (new.moved_to or new.arriving_from) and not new.has_left:
            monkeypatch.setattr(database, "_BUSY_SECONDS", 0.05)
            node = Ledger(path.with_name(LEDGER_NAME))
            with node, pytest.raises(LedgerError, match="locked"):
                seal.settle(node, path)
            waited.append(path.parent)
        write(new, path)

    monkeypatch.setattr(seal.Seal, "write", write_against)
    move_ledger(*folders)
    assert waited == [folders[1], folders[0]]


def test_an_older_copy_is_not_moved(folders: Folders) -> None:
    old, new = folders
    older = (old / LEDGER_NAME).read_bytes()
    charge(old, 4)
    (old / LEDGER_NAME).write_bytes(older)
    with pytest.raises(LedgerLostError, match="older copy"):
        move_ledger(old, new)
    assert answers(new)


def test_the_commands_say_what_they_have_done(folders: Folders, tmp_path: Path) -> None:
    old, new = folders
    shown = call("ledger", "backup", str(old), str(tmp_path / "one.sqlite"))
    assert shown.code == 0
    assert "has all 3 charges up to now; going back to it would forget" in shown.text
    assert printed_json("ledger", "backup", str(old), str(tmp_path / "two.sqlite"))["charges"] == 3
    again = call("ledger", "backup", str(old), str(tmp_path / "one.sqlite"))
    assert (again.code, "exists" in again.text) == (2, True)
    assert printed_json("ledger", "verify", str(tmp_path / "one.sqlite"))["charges"] == 3
    assert printed_json("ledger", "move", str(old), str(new))["to"] == str(new)
    for folder, name in ((old, "hospital-b"), (new, "hospital-a")):
        (folder / "site.toml").write_text(f'name = "{name}"')
    finished = call("ledger", "move", str(old), str(new))
    assert "warning: the account of 'hospital-b' continues as 'hospital-a'" in finished.text
    assert "[policy], [data], [columns], factories, app" in finished.text
    moved = call("ledger", "verify", str(old))
    assert (moved.code, f"was moved to {new}" in moved.text) == (2, True)
    third = tmp_path / "third"
    third.mkdir()
    assert call("ledger", "create", str(third)).code == 2
    (third / "site.toml").touch()
    assert printed_json("ledger", "create", str(third))["ledger"] == str(third / LEDGER_NAME)
    assert call("ledger", "create", str(third)).code == 2


@pytest.mark.parametrize("command", ["show", "export", "backup", "verify"])
def test_commands_that_read_a_site_s_ledger_notice_an_older_copy(
    tmp_path: Path, command: str
) -> None:
    seal.create(tmp_path)
    empty = (tmp_path / LEDGER_NAME).read_bytes()
    charge(tmp_path, 1)
    (tmp_path / LEDGER_NAME).write_bytes(empty)
    out = [str(tmp_path / "out")] if command == "backup" else []
    shown = call("ledger", command, str(tmp_path), *out)
    assert shown.code == (1 if command == "verify" else 2)
    assert "is an older copy: it has 0 charges, but 1 were made" in shown.text
