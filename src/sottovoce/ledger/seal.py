"""The seal of a site's ledger: its identity and its position when the last message left.

The seal is a small file in the ledger's folder, written after each charge and before its message
leaves. A ledger that is missing, emptied, or replaced by another ledger or an older copy does not
match its seal, and the site stops: continuing would omit what was spent. A ledger may be ahead of
its seal, because a process can be killed between the charge and the seal; no message has left then.
The seal does not protect against someone who changes both files.
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
from sottovoce.ledger.records import LedgerPosition
from sottovoce.ledger.verification import Chain

SEAL_NAME = "ledger.seal"
_MOST_BYTES = 2**16  # enough for two paths and some numbers
_LARGEST_COUNT = 2**63 - 1  # SQLite's largest number of rows
_LOG = printable_text.logger()
_Kind = TypeVar("_Kind", bound=LedgerReader)
_RESTORE_REMEDY = (
    "restore the ledger and its seal from the newest backup. If there is no backup that new, make "
    "a new folder with 'sottovoce deploy join' and lower the limits in its policy by what was "
    "spent, which 'sottovoce ledger log' shows"
)
_ONE_LEDGER_REMEDY = (
    "a site has one ledger, created once. Use the one that is there, or choose a folder that has "
    "none"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The position that a ledger must match; while a ledger is being moved, no ledger matches.

    Attributes:
        position: The position of the ledger when the seal was written.
        moved_to: The folder to which the ledger was or is being moved; None if it stays here.
        arriving_from: The folder from which an unfinished move brings the ledger here; else None.
        has_left: Whether the folder `moved_to` has the whole ledger; a ledger that is still found
            here is then an older copy.
    """

    position: LedgerPosition
    moved_to: str | None = None
    arriving_from: str | None = None
    has_left: bool = False

    def write(self, path: Path) -> None:
        """Write the seal to a file, durably, as a whole and readable only by its owner."""
        moves = {key: getattr(self, key) for key in ("moved_to", "arriving_from", "has_left")}
        plain = asdict(self.position) | {key: value for key, value in moves.items() if value}
        files.write_json(path, plain, mode=files.PRIVATE)


def read(path: Path) -> Seal | None:
    """Return the seal in a file; None if there is no file.

    Raises LedgerError if the file cannot be read, LedgerLostError if it is damaged.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerError(
            f"cannot read {path}: {error.strerror or error}; check the file's permissions"
        ) from error
    try:
        return _seal_in(bounded_json.loads(text, most_bytes=_MOST_BYTES))
    except (ValueError, TypeError, KeyError):
        raise LedgerLostError(
            f"{path} is damaged, so the ledger next to it cannot be checked; {_RESTORE_REMEDY}"
        ) from None


def _seal_in(plain: Any) -> Seal:
    """Return the seal in JSON data; raise ValueError, TypeError or KeyError if it is none."""
    standing = LedgerPosition(**{field.name: plain[field.name] for field in fields(LedgerPosition)})
    seal = Seal(
        position=standing,
        moved_to=plain.get("moved_to"),
        arriving_from=plain.get("arriving_from"),
        has_left=plain.get("has_left", False),
    )
    heads = (standing.identity, standing.charges_head, standing.messages_head)
    folders = (folder for folder in (seal.moved_to, seal.arriving_from) if folder is not None)
    # os.fsencode raises TypeError for anything that is not text.
    if any(b"\0" in os.fsencode(text) for text in (*heads, *folders)):
        raise TypeError
    for count in (standing.charges, standing.messages):
        if type(count) is not int or not 0 <= count <= _LARGEST_COUNT:
            raise TypeError
    return seal


def create(folder: Path) -> None:
    """Create a site's ledger and its seal in a folder.

    Raises LedgerError if there is a seal or a ledger with charges. A ledger without charges, which
    an interrupted call may have left, is used.
    """
    ledger, seal = folder / LEDGER_NAME, folder / SEAL_NAME
    if os.path.lexists(seal):
        raise LedgerError(f"{seal} exists; {_ONE_LEDGER_REMEDY}")
    with Ledger(ledger, create=True) as made:
        if made.num_charges:
            raise LedgerError(f"{ledger} exists and has charges; {_ONE_LEDGER_REMEDY}")
        Seal(position=made.position()).write(seal)


def open_sealed(ledger: Path, seal: Path) -> Ledger:
    """Open a site's ledger for charging; raise LedgerLostError if it does not match its seal.

    A ledger that an earlier version made has no seal yet and gets it now. Raises another
    LedgerError if the ledger is locked or the disk fails.
    """
    # Read before the ledger: other processes may be charging, and a ledger is never behind its
    # seal.
    found = read(seal)
    check_present(ledger, found)
    opened = _opened(ledger, Ledger)
    try:
        if found is None and not opened.is_bound:
            settle(opened, seal)
            _LOG.warning(
                "%s was made by an earlier version; a seal for its %d charges was created",
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


def open_read_only(ledger: Path, seal: Path) -> LedgerReader:
    """Open a site's ledger for reading; check it as `open_sealed` does, change nothing.

    A ledger of an earlier version that has no seal yet is opened without that check.
    """
    found = read(seal)
    check_present(ledger, found)
    opened = _opened(ledger, LedgerReader)
    try:
        check(opened, found, ledger)
    except BaseException:
        opened.close()
        raise
    return opened


def check(opened: LedgerReader, seal: Seal | None, path: Path) -> None:
    """Raise LedgerLostError if a ledger does not match its seal.

    A ledger that has more rows than its seal says matches. Without a seal (None) only a ledger
    passes that an earlier version made and no site has used since.
    """
    check_present(path, seal)
    if seal is None:
        if not opened.is_bound:
            return  # an earlier version made it, and no site has answered with it since
        raise LedgerLostError(
            f"{path} has no seal: {path.with_name(SEAL_NAME)} is missing, so it cannot be checked "
            "that this is the ledger that was charged; "
            f"{_RESTORE_REMEDY}"
        )
    sealed, found = seal.position, opened.position()
    if found.identity != sealed.identity:
        raise LedgerLostError(
            f"{path} is another ledger, with {_charges(found.charges)}; this site's ledger, with "
            f"{_charges(sealed.charges)}, is missing; {_RESTORE_REMEDY}"
        )
    chains: tuple[tuple[Chain, int, str], ...] = (
        ("charges", sealed.charges, sealed.charges_head),
        ("messages", sealed.messages, sealed.messages_head),
    )
    for table, count, head in chains:
        there = opened.head_after(count, table)
        if there is None:
            raise LedgerLostError(
                f"{path} is an older copy: it has {getattr(found, table)} {table}, but {count} "
                f"were made; {_RESTORE_REMEDY}"
            )
        if there != head:
            raise LedgerLostError(
                f"{path} is a copy that was charged elsewhere: its first {count} {table} are "
                f"not those of this site; {_RESTORE_REMEDY}"
            )


def settle(ledger: Ledger, seal: Path) -> None:
    """Move all commits into the ledger's file and update its seal, before a message leaves.

    Raises LedgerLostError where the account is being moved or the ledger was replaced; the caller
    must not send anything then.
    """
    ledger.checkpoint()
    with ledger.transaction():  # one process at a time, so that no older seal replaces a newer one
        before, now = read(seal), Seal(position=ledger.position())
        check_present(ledger.path, before)
        if before is not None and before.position.identity != now.position.identity:
            raise LedgerLostError(
                f"{ledger.path} was replaced by another ledger; {_RESTORE_REMEDY}"
            )
        if before != now:
            now.write(seal)


def check_present(path: Path, seal: Seal | None) -> None:
    """Raise LedgerLostError if a ledger with this seal is missing, or was or is being moved.

    Without a seal (None) nothing is checked.
    """
    check_not_moved(path, seal)
    if seal is not None and not os.path.lexists(path):
        charges = _charges(seal.position.charges)
        raise LedgerLostError(f"{path}, with {charges}, is missing; {_RESTORE_REMEDY}")


def check_not_moved(path: Path, seal: Seal | None) -> None:
    """Raise LedgerLostError if, by its seal, the ledger was moved or a move to here is unfinished.

    Without a seal (None) nothing is checked.
    """
    if seal is not None and seal.moved_to is not None:
        raise LedgerLostError(
            f"the ledger of {path.parent} was moved to {seal.moved_to}; use that folder. If the "
            f"move was interrupted, run: sottovoce ledger move {path.parent} {seal.moved_to}"
        )
    if seal is not None and seal.arriving_from is not None:
        raise LedgerLostError(
            f"a move of the ledger of {seal.arriving_from} to {path.parent} was interrupted; to "
            f"finish it, run: sottovoce ledger move {seal.arriving_from} {path.parent}"
        )


def _opened(path: Path, kind: type[_Kind]) -> _Kind:
    if not os.path.lexists(path):
        raise LedgerLostError(
            f"{path} and its seal are missing; restore both from a backup. Only for a site that "
            "has never answered, create a new ledger: 'sottovoce deploy join' makes one with the "
            f"folder, 'sottovoce ledger create {path.parent}' in an existing folder"
        )
    try:
        return kind(path)
    except LedgerError as error:
        if isinstance(
            error.__cause__, sqlite3.OperationalError
        ):  # locked, or a failure of the disk
            raise
        raise LedgerLostError(str(error)) from error


def _charges(count: int) -> str:
    return f"{count} charge" if count == 1 else f"{count} charges"
