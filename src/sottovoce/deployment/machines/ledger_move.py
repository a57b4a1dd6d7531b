"""A site's account moves to another folder: to one that `deploy join` made for a new key, say.

At every moment at most one of the two folders answers, and the ledger is whole in one of them at
least. Interrupted, the move is finished by the same call.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from sottovoce import files
from sottovoce.deployment.machines.keeper import keeping
from sottovoce.deployment.machines.site_folder import FILE_NAME
from sottovoce.errors import ConfigError, LedgerError
from sottovoce.ledger import copies
from sottovoce.ledger import seal as seals
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.ledger.records import Standing
from sottovoce.ledger.seal import SEAL_NAME, Seal

_ALONG = ("audit.jsonl", "witness*.json")  # what else is about the charges, where it is there


def move_ledger(old: Path, new: Path) -> Standing:
    """Move the ledger of the folder `old` to the folder `new`, whose own has no charges yet."""
    old, new = old.resolve(), new.resolve()
    if not (new / FILE_NAME).is_file():
        raise ConfigError(f"{new} is not a site's folder; make one with 'sottovoce deploy join'")
    if old == new:
        raise ConfigError(f"{old} is one folder; name the old one and the new one")
    if not any((old / name).exists() for name in (LEDGER_NAME, SEAL_NAME)):
        raise LedgerError(f"{old} has no ledger to move")
    with _stopped(old), _stopped(new):
        standing = _begin(old, new)
        _copy(old, new, standing)
        with seals.open_sealed(new / LEDGER_NAME, new / SEAL_NAME) as ledger:
            seals.check(ledger, Seal(standing=standing), new / LEDGER_NAME)
        for path in (*_files(old / LEDGER_NAME), *_along(old)):
            path.unlink(missing_ok=True)
    return standing


def _begin(old: Path, new: Path) -> Standing:
    """Let neither folder answer from now on; the standing of the account that moves."""
    seal = seals.read(old / SEAL_NAME)
    if seal is not None and seal.moved_to == str(new):
        return seal.standing
    with seals.open_sealed(old / LEDGER_NAME, old / SEAL_NAME) as ledger:
        copies.check_whole(ledger)
        ledger.checkpoint()
        # A node that was not started by 'deploy node' may be charging: from the end of the
        # transaction on its `settle` refuses, and what it has settled before is in the standing.
        with ledger.transaction():
            standing = ledger.standing()
            _await(new, old, standing)
            Seal(standing=standing, moved_to=str(new)).write(old / SEAL_NAME)
    return standing


def _await(new: Path, old: Path, standing: Standing) -> None:
    """Let the new folder, whose ledger has no charges, wait for the account of the old one."""
    seal, arriving = seals.read(new / SEAL_NAME), Seal(standing=standing, arriving_from=str(old))
    if seal is not None and seal.arriving_from == str(old):
        arriving.write(new / SEAL_NAME)  # after a move that was interrupted
        return
    with seals.open_sealed(new / LEDGER_NAME, new / SEAL_NAME) as ledger, ledger.transaction():
        if ledger.num_charges:
            raise LedgerError(
                f"{new / LEDGER_NAME} has charges of its own ({ledger.num_charges}), and two "
                "accounts are not put together; move to a folder that has never answered"
            )
        arriving.write(new / SEAL_NAME)


def _copy(old: Path, new: Path, standing: Standing) -> None:
    """Bring the ledger, and what else is about it, to the new folder; then that one may answer."""
    seal = seals.read(new / SEAL_NAME)
    if seal is None or seal.arriving_from != str(old):
        return  # it has arrived before, or the check that follows finds another ledger
    with Ledger(old / LEDGER_NAME) as ledger:
        seals.check(ledger, Seal(standing=standing), old / LEDGER_NAME)
        for path in _files(new / LEDGER_NAME):
            path.unlink(missing_ok=True)  # without a charge, or a copy of an earlier try
        copies.back_up(ledger, new / LEDGER_NAME)
    for path in _along(old):
        there, content = new / path.name, path.read_bytes()
        if there.exists() and there.read_bytes() != content:
            there.replace(there.with_name(f"{there.name}.before-move"))
        files.write_atomic(there, content, mode=files.PRIVATE)
    Seal(standing=standing).write(new / SEAL_NAME)


@contextlib.contextmanager
def _stopped(folder: Path) -> Iterator[None]:
    """Keep a folder's node from running meanwhile; refuse if it runs."""
    with keeping(folder / "node", what=f"the node of {folder}"):
        yield


def _files(ledger: Path) -> list[Path]:
    return [ledger.with_name(f"{ledger.name}{suffix}") for suffix in ("", "-wal", "-shm")]


def _along(folder: Path) -> list[Path]:
    return sorted(path for pattern in _ALONG for path in folder.glob(pattern))
