"""Ledgers that record what each client has spent, in SQLite or in memory.

    with Ledger("ledger.sqlite", create=True) as ledger:
        print(ledger.spent("clinic-3", delta=1e-5))

A ledger stores privacy events, never epsilons, and never refunds a charge. Epsilon is recomputed
from the events with the installed accountants. The package imports `privacy` and `core`.
"""

from typing import TYPE_CHECKING

from sottovoce.core.faces import export_lazily

if TYPE_CHECKING:
    from sottovoce.ledger.copies import back_up as back_up
    from sottovoce.ledger.ledger import Ledger as Ledger
    from sottovoce.ledger.reader import LedgerReader as LedgerReader
    from sottovoce.ledger.records import Budget as Budget
    from sottovoce.ledger.records import Charge as Charge
    from sottovoce.ledger.records import LedgerPosition as LedgerPosition
    from sottovoce.ledger.records import PendingCharge as PendingCharge
    from sottovoce.ledger.records import Release as Release
    from sottovoce.ledger.tally import Tally as Tally

export_lazily(
    __name__,
    {
        "copies": ["back_up"],
        "ledger": ["Ledger"],
        "reader": ["LedgerReader"],
        "records": ["Budget", "Charge", "PendingCharge", "Release", "LedgerPosition"],
        "tally": ["Tally"],
    },
)
