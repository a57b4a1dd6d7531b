"""Whole copies of a ledger: one file, of one moment, verified before it gets its name."""

import secrets
from pathlib import Path

from sottovoce.core import files
from sottovoce.core.errors import LedgerError
from sottovoce.ledger.reader import LedgerReader
from sottovoce.ledger.records import Standing


def back_up(ledger: LedgerReader, path: Path) -> Standing:
    """Write a copy of a whole ledger to a new file, its owner's alone; return how far it goes.

    Others may go on charging meanwhile. A file that is there already is left alone.
    """
    check_whole(ledger)
    before = ledger.standing()
    temporary = path.parent / f".{path.name[:100]}.{secrets.token_hex(8)}"
    try:
        with files.explained("write", path):
            files.open_private(temporary).close()
        ledger.copy_to(temporary)
        with LedgerReader(temporary) as copy:
            check_whole(copy)
            if copy.head_after(before.charges) != before.charges_head:
                raise LedgerError(f"the copy {path} is not what was copied; check the disk")
            standing = copy.standing()
        with files.explained("write", path):
            if not files.place_new(temporary, path):
                raise LedgerError(f"{path} is there already; choose another name")
    finally:
        temporary.unlink(missing_ok=True)
    return standing


def check_whole(ledger: LedgerReader) -> None:
    """Refuse a ledger in which anything is wrong."""
    for problem in ledger.verify():
        raise LedgerError(
            f"{problem}; a ledger that is not whole is not copied ('sottovoce ledger verify' lists "
            "everything that is wrong)"
        )
