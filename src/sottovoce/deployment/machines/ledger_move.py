"""A site's account moves to another folder: to one that `deploy join` made for a new key, say.

At every moment at most one of the two folders answers, and the ledger is whole in one of them at
least. Interrupted, the move is finished by the same call. The new folder answers only once the
seal of the old one says that the account has left: until then nothing was charged elsewhere, and
the move can begin again, to the same folder or to another.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from sottovoce.core import files
from sottovoce.core.errors import ConfigError, LedgerError
from sottovoce.deployment.machines.processes import keeping
from sottovoce.deployment.machines.site_folder import FILE_NAME
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
        raise ConfigError(
            f"{new} is not a site's folder; make one with 'sottovoce deploy join'. One that a move "
            "was interrupted to, and that was renamed since, gets its name back"
        )
    if old == new:
        raise ConfigError(f"{old} is one folder; name the old one and the new one")
    if not any((old / name).exists() for name in (LEDGER_NAME, SEAL_NAME)):
        raise LedgerError(f"{old} has no ledger to move")
    with _stopped(old), _stopped(new):
        standing = _begin(old, new)
        seal = seals.read(new / SEAL_NAME)
        is_arriving = seal is not None and seal.arriving_from is not None
        if is_arriving and os.path.lexists(old / LEDGER_NAME):
            _copy(old, new, standing)
        _check_arrived(new, standing, is_arriving=is_arriving)
        Seal(standing=standing, moved_to=str(new), has_left=True).write(old / SEAL_NAME)
        for path in (*_files(old / LEDGER_NAME), *_along(old)):
            path.unlink(missing_ok=True)
        files.sync_folder(old)
        if is_arriving:
            Seal(standing=standing).write(new / SEAL_NAME)
    return standing


def _begin(old: Path, new: Path) -> Standing:
    """Let neither folder answer from now on; the standing of the account that moves."""
    seal = seals.read(old / SEAL_NAME)
    if seal is not None and seal.moved_to is not None and _is_over(old, seal):
        if seal.moved_to != str(new):
            seals.check_there(old / LEDGER_NAME, seal)  # raises: it is elsewhere
        return seal.standing
    with _opened(old, seal) as ledger:
        copies.check_whole(ledger)
        ledger.checkpoint()
        # A node that was not started by 'deploy node' may be charging: from the end of the
        # transaction on its `settle` refuses, and what it has settled before is in the standing.
        with ledger.transaction():
            standing = ledger.standing()
            _await(new, ledger, standing)
            Seal(standing=standing, moved_to=str(new)).write(old / SEAL_NAME)
    return standing


def _is_over(old: Path, seal: Seal) -> bool:
    """Whether the account is no longer in the old folder alone, by the seal that it left there."""
    return seal.has_left or not os.path.lexists(old / LEDGER_NAME)


def _opened(old: Path, seal: Seal | None) -> Ledger:
    """The old ledger, also where a move of it has begun; LedgerLostError if it is not whole."""
    path = old / LEDGER_NAME
    if seal is None or seal.moved_to is None:
        return seals.open_sealed(path, old / SEAL_NAME)
    ledger = Ledger(path)
    try:
        seals.check(ledger, Seal(standing=seal.standing), path)
    except BaseException:
        ledger.close()
        raise
    return ledger


def _await(new: Path, old: Ledger, standing: Standing) -> None:
    """Let the new folder, whose ledger has no charges, wait for the account of the old one."""
    seal, sender = seals.read(new / SEAL_NAME), str(old.path.parent)
    arriving = Seal(standing=standing, arriving_from=sender)
    if (
        seal is not None
        and seal.arriving_from is not None  # by a move that was interrupted
        and (seal.arriving_from == sender or seal.standing.identity == standing.identity)
    ):
        seals.check(old, Seal(standing=seal.standing), old.path)  # what has come is in the old one
        arriving.write(new / SEAL_NAME)
        return
    with seals.open_sealed(new / LEDGER_NAME, new / SEAL_NAME) as ledger, ledger.transaction():
        if ledger.num_charges:
            raise LedgerError(
                f"{new / LEDGER_NAME} has charges of its own ({ledger.num_charges}), and two "
                "accounts are not put together; move to a folder that has never answered"
            )
        arriving.write(new / SEAL_NAME)


def _copy(old: Path, new: Path, standing: Standing) -> None:
    """Bring the ledger, and what else is about it, to the new folder."""
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


def _check_arrived(new: Path, standing: Standing, *, is_arriving: bool) -> None:
    """Refuse to go on where the new folder does not have the whole account: LedgerLostError."""
    path = new / LEDGER_NAME
    with Ledger(path) if is_arriving else seals.open_sealed(path, new / SEAL_NAME) as ledger:
        seals.check(ledger, Seal(standing=standing), path)


@contextlib.contextmanager
def _stopped(folder: Path) -> Iterator[None]:
    """Keep a folder's node from running meanwhile; refuse if it runs."""
    with keeping(folder / "node", what=f"the node of {folder}"):
        yield


def _files(ledger: Path) -> list[Path]:
    return [ledger.with_name(f"{ledger.name}{suffix}") for suffix in ("", "-wal", "-shm")]


def _along(folder: Path) -> list[Path]:
    return sorted(path for pattern in _ALONG for path in folder.glob(pattern))
