"""The seal of a site's ledger: which ledger it is, and how far it had come when a message left.

It is a small file beside the ledger, written after each charge and before its message leaves. A
ledger that is gone, emptied, replaced by another or by an older copy does not match it, and the
site stops: going on would forget what was spent. A ledger may be ahead of its seal, for a process
can be killed between the two; nothing has left then. It is no protection against someone who
changes both files.
"""

import os
import sqlite3
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from sottovoce.core import bounded_json, files, printable_text
from sottovoce.core.errors import LedgerError, LedgerLostError
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.ledger.reader import LedgerReader
from sottovoce.ledger.records import Standing
from sottovoce.ledger.verification import Chain

SEAL_NAME = "ledger.seal"
_MOST_BYTES = 2**16  # two paths and some numbers
_LARGEST_COUNT = 2**63 - 1  # of rows in SQLite
_LOG = printable_text.logger()
_Kind = TypeVar("_Kind", bound=LedgerReader)
_RESTORE = (
    "restore its newest copy; if none is as new, make a new folder with 'sottovoce deploy join', "
    "and lower its limits by what was spent, which 'sottovoce ledger log' shows"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """What a ledger must match; while a ledger is being moved, no ledger matches it.

    `moved_to` is the folder where the account goes on, `arriving_from` the one that a move, which
    was not finished, is from. An account that `has_left` is whole in the other folder: a ledger
    that turns up here again is an older copy.
    """

    standing: Standing
    moved_to: str | None = None
    arriving_from: str | None = None
    has_left: bool = False

    def write(self, path: Path) -> None:
        """Replace the file, durably and whole."""
        moves = {key: getattr(self, key) for key in ("moved_to", "arriving_from", "has_left")}
        plain = asdict(self.standing) | {key: value for key, value in moves.items() if value}
        files.write_json(path, plain, mode=files.PRIVATE)


def read(path: Path) -> Seal | None:
    """Return the seal in a file; None if there is none."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        return _seal_in(bounded_json.loads(text, most_bytes=_MOST_BYTES))
    except (ValueError, TypeError, KeyError):
        raise LedgerLostError(
            f"{path} is damaged, and without it nobody knows whether the ledger beside it is whole;"
            f" restore both from one backup, the newest: {_RESTORE}"
        ) from None


def _seal_in(plain: Any) -> Seal:
    standing = Standing(**{field.name: plain[field.name] for field in fields(Standing)})
    seal = Seal(
        standing=standing,
        moved_to=plain.get("moved_to"),
        arriving_from=plain.get("arriving_from"),
        has_left=plain.get("has_left", False),
    )
    heads = (standing.identity, standing.charges_head, standing.messages_head)
    folders = (folder for folder in (seal.moved_to, seal.arriving_from) if folder is not None)
    if any(b"\0" in os.fsencode(text) for text in (*heads, *folders)):  # which refuses no text
        raise TypeError
    for count in (standing.charges, standing.messages):
        if type(count) is not int or not 0 <= count <= _LARGEST_COUNT:
            raise TypeError
    return seal


def create(folder: Path) -> None:
    """Make a site's ledger and its seal, both new."""
    ledger, seal = folder / LEDGER_NAME, folder / SEAL_NAME
    if os.path.lexists(seal):
        raise LedgerError(f"{seal} is there already: a site has one ledger, made once")
    with Ledger(ledger, create=True) as made:
        if made.num_charges:
            raise LedgerError(f"{ledger} is there already: a site has one ledger, made once")
        Seal(standing=made.standing()).write(seal)


def open_sealed(ledger: Path, seal: Path) -> Ledger:
    """Open a site's ledger, or raise LedgerLostError where it does not match its seal.

    A ledger that an earlier version has made gets its seal now.
    """
    found = read(seal)  # before the ledger, which others may be charging: it is never behind
    check_there(ledger, found)
    opened = _opened(ledger, Ledger)
    try:
        if found is None and not opened.is_bound:
            settle(opened, seal)
            _LOG.warning(
                "%s, made by an earlier version, has a seal from now on (%d charges)",
                ledger,
                opened.num_charges,
            )
        else:
            check(opened, found, ledger)
        if not opened.is_bound:
            opened.bind()
    except BaseException:
        opened.close()
        raise
    return opened


def open_to_read(ledger: Path, seal: Path) -> LedgerReader:
    """Open a site's ledger to be read, as `open_sealed` does; nothing is changed, no seal made."""
    found = read(seal)
    check_there(ledger, found)
    opened = _opened(ledger, LedgerReader)
    try:
        check(opened, found, ledger)
    except BaseException:
        opened.close()
        raise
    return opened


def check(opened: LedgerReader, seal: Seal | None, path: Path) -> None:
    """Refuse a ledger that does not match its seal: LedgerLostError."""
    check_there(path, seal)
    if seal is None:
        if not opened.is_bound:
            return  # made by an earlier version, and no site has answered with it since
        raise LedgerLostError(
            f"{path} has no seal: {path.with_name(SEAL_NAME)} is gone, and without it nobody knows "
            f"whether this is the ledger that was charged; restore both from one backup: {_RESTORE}"
        )
    sealed, found = seal.standing, opened.standing()
    if found.identity != sealed.identity:
        raise LedgerLostError(
            f"{path} is another ledger, with {_charges(found.charges)}; this site's, with "
            f"{_charges(sealed.charges)}, is gone: {_RESTORE}"
        )
    chains: tuple[tuple[Chain, int, str], ...] = (
        ("charges", sealed.charges, sealed.charges_head),
        ("messages", sealed.messages, sealed.messages_head),
    )
    for table, count, head in chains:
        there = opened.head_after(count, table)
        if there is None:
            raise LedgerLostError(
                f"{path} is an older copy, with {getattr(found, table)} {table} where {count} were "
                f"made: {_RESTORE}"
            )
        if there != head:
            raise LedgerLostError(
                f"{path} is a copy that was charged elsewhere: its first {count} {table} are "
                f"not those that this site has made: {_RESTORE}"
            )


def settle(ledger: Ledger, seal: Path) -> None:
    """Bring a ledger's file and its seal up to its last charge, before a message leaves.

    Where the account is being moved it raises LedgerLostError, and nothing leaves.
    """
    ledger.checkpoint()
    with ledger.transaction():  # one process at a time, so that no seal goes back
        before, now = read(seal), Seal(standing=ledger.standing())
        check_there(ledger.path, before)
        if before is not None and before.standing.identity != now.standing.identity:
            raise LedgerLostError(f"{ledger.path} was replaced by another ledger: {_RESTORE}")
        if before != now:
            now.write(seal)


def check_there(path: Path, seal: Seal | None) -> None:
    """Refuse a place from which, by its seal, a ledger is gone: LedgerLostError."""
    check_not_moved(path, seal)
    if seal is not None and not os.path.lexists(path):
        charges = _charges(seal.standing.charges)
        raise LedgerLostError(f"{path} is gone, with {charges}: {_RESTORE}")


def check_not_moved(path: Path, seal: Seal | None) -> None:
    """Refuse a place whose account, by its seal, is in another folder, or on its way."""
    if seal is not None and seal.moved_to is not None:
        raise LedgerLostError(
            f"the ledger of {path.parent} was moved to {seal.moved_to}, where the account goes on; "
            f"if that was interrupted: sottovoce ledger move {path.parent} {seal.moved_to}"
        )
    if seal is not None and seal.arriving_from is not None:
        raise LedgerLostError(
            f"a move of the ledger of {seal.arriving_from} to {path.parent} was interrupted; finish"
            f" it: sottovoce ledger move {seal.arriving_from} {path.parent}"
        )


def _opened(path: Path, kind: type[_Kind]) -> _Kind:
    if not os.path.lexists(path):
        raise LedgerLostError(
            f"{path} is gone, or was never made, and so is its seal; restore both from a backup. "
            "Only a site that has never answered makes a ledger: with its folder, by 'sottovoce "
            f"deploy join', or by 'sottovoce ledger create {path.parent}'"
        )
    try:
        return kind(path)
    except LedgerError as error:
        if isinstance(error.__cause__, sqlite3.OperationalError):  # locked, or a disk's failure
            raise
        raise LedgerLostError(str(error)) from error


def _charges(count: int) -> str:
    return f"{count} charge" if count == 1 else f"{count} charges"
