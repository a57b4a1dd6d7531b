"""Where two copies of a ledger part.

Each row's link is a digest of everything up to it, so two copies are the same up to a row exactly
if their links of that row are: where they part is the first row whose links differ.
"""

from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from sottovoce.ledger.reader import LedgerReader
from sottovoce.ledger.verification import Chain

_TABLES: tuple[Chain, ...] = ("charges", "budgets", "messages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """One table of two copies: how many rows they share, and how many each has beyond them."""

    table: Chain
    shared: int
    only_first: int
    only_second: int

    @property
    def agree(self) -> bool:
        return not self.only_first and not self.only_second

    @property
    def parts_at(self) -> str | None:
        """The first row that the copies do not share, if both went on, each its own way."""
        if self.only_first and self.only_second:
            return f"{self.table.removesuffix('s')} {self.shared + 1}"
        return None

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "agree": self.agree, "parts_at": self.parts_at}

    def sentence(self) -> str:
        if self.agree:
            return f"{self.table}: the same {self.shared}"
        if self.parts_at:
            return (
                f"{self.table}: they part at {self.parts_at}; the first goes on with "
                f"{self.only_first}, the second with {self.only_second} others: neither is a copy "
                "of the other any more, and each forgets what the other has charged"
            )
        longer = "first" if self.only_first else "second"
        more = self.only_first or self.only_second
        return (
            f"{self.table}: the same {self.shared}, then {more} that only the {longer} has; "
            f"go on with the {longer}"
        )


def comparison(first: LedgerReader, second: LedgerReader) -> list[Parting]:
    """Two whole ledgers, table by table; neither is trusted more than the other."""
    return [_parting(table, first, second) for table in _TABLES]


def _parting(table: Chain, first: LedgerReader, second: LedgerReader) -> Parting:
    shared, lengths = 0, [0, 0]
    together = True
    for links in zip_longest(first.links(table), second.links(table)):
        for place, link in enumerate(links):
            lengths[place] += link is not None
        together = together and links[0] == links[1]
        shared += together
    return Parting(
        table=table,
        shared=shared,
        only_first=lengths[0] - shared,
        only_second=lengths[1] - shared,
    )
