"""Rounds of the pairwise sum that tests run: sites, journals and dropouts."""

import contextlib
import dataclasses
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sottovoce.ledger.journal import Journal
from sottovoce.mechanisms.packing import UnsignedCodes
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.masks import bits_for_sum
from sottovoce.protocol.secure.pairwise_server import PairwiseServer
from sottovoce.protocol.secure.pairwise_site import PairwiseSite
from sottovoce.protocol.secure.roster import Roster, TrustKey

Codes = Sequence[UnsignedCodes]


class JournalInMemory:
    """A journal's file, of which nothing is left after the test."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.execute("ROLLBACK")
            raise
        self.execute("COMMIT")

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def all(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        return self.execute(statement, values).fetchall()


@dataclasses.dataclass
class Federation:
    """Sites with their keys and journals, and the attempt that they are asked for."""

    keys: dict[str, TrustKey]
    roster: Roster
    attempt: Attempt
    colluders: int = 1
    honest: int = 2
    rows: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.files = {name: JournalInMemory() for name in self.keys}
        self.charges: dict[str, int] = dict.fromkeys(self.keys, 0)

    @property
    def names(self) -> list[str]:
        return list(self.keys)

    def server(self, **changed: Any) -> PairwiseServer:
        given = {"roster": self.roster, "attempt": self.attempt, "colluders": self.colluders}
        return PairwiseServer(**{**given, **changed})

    def site(self, name: str, **changed: Any) -> PairwiseSite:
        given = {
            "name": name,
            "roster": self.roster,
            "key": self.keys[name],
            "journal": Journal(self.files[name]),
            "attempt": self.attempt,
            "honest": self.honest,
            "colluders": self.colluders,
            "declared_rows": self.rows.get(name, 0),
        }
        return PairwiseSite(**{**given, **changed})

    def sites(self) -> dict[str, PairwiseSite]:
        return {name: self.site(name) for name in self.names}

    def contribute(self, site: PairwiseSite, name: str, box: bytes, codes: Codes) -> bytes:
        def charge() -> None:
            self.charges[name] += 1

        return site.contribute(box, charge, lambda: codes, self.files[name].transaction)


def federation(count: int, threshold: int, **changed: Any) -> Federation:
    """Return a federation of `count` sites; other arguments are those of the attempt."""
    policy = {
        name: changed.pop(name) for name in ("colluders", "honest", "rows") if name in changed
    }
    keys = {f"site-{number:03d}": TrustKey.generate() for number in range(count)}
    roster = Roster(
        federation=b"f" * 16, version=1, keys={name: key.public for name, key in keys.items()}
    )
    levels = changed.get("levels", 2)
    most = changed.get("most_clients", count)
    given = {
        "protocol": Protocol.PAIRWISE,
        "parties": roster.digest,
        "federation": roster.federation,
        "run": "run",
        "round": 1,
        "attempt": 1,
        "dimension": 8,
        "uplinks": 1,
        "levels": levels,
        "bits": bits_for_sum(most * (levels - 1)),
        "most_clients": most,
        "threshold": threshold,
        "mechanism": "{}",
        "rotation_seed": b"",
        "adjacency": "zero-out",
        "unit": "client",
        "model_digest": bytes(32),
    }
    attempt = Attempt(**{**given, **changed})
    return Federation(keys=keys, roster=roster, attempt=attempt, **policy)


def random_codes(asked: Federation, seed: int = 0) -> dict[str, list[UnsignedCodes]]:
    """Return codes of each site and uplink."""
    generator = np.random.default_rng(seed)
    attempt = asked.attempt
    return {
        name: [
            generator.integers(0, attempt.levels, attempt.dimension, dtype=np.uint32)
            for _ in range(attempt.uplinks)
        ]
        for name in asked.names
    }


@dataclasses.dataclass
class Round:
    """One attempt that is run step by step, so that a test can lie in between.

    `dropped` says after how many messages a site is gone: 0 before `Keys` ... 4 before `Answer`.
    """

    asked: Federation
    codes: Mapping[str, Codes]
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    order: Callable[[Collection[str]], Collection[str]] = list

    def __post_init__(self) -> None:
        self.sites = self.asked.sites()
        self.server = self.asked.server()

    def there(self, step: int) -> Collection[str]:
        """Return the sites that still send the message of a step, in the order of arrival."""
        return self.order([name for name in self.sites if self.dropped.get(name, 9) > step])

    def keys(self) -> bytes:
        for name in self.there(0):
            self.server.receive_keys(name, self.sites[name].begin())
        return self.server.list_message()

    def shares(self) -> None:
        listed = self.keys()
        for name in self.there(1):
            self.server.receive_shares(name, self.sites[name].share(listed))

    def boxes(self) -> dict[str, bytes]:
        self.shares()
        return {name: self.server.box(name) for name in self.there(1)}

    def inputs(self) -> bytes:
        boxes = self.boxes()
        for name in self.there(2):
            codes = self.codes[name]
            sent = self.asked.contribute(self.sites[name], name, boxes[name], codes)
            self.server.receive_input(name, sent)
        return self.server.survivors()

    def signatures(self) -> bytes:
        survivors = self.inputs()
        for name in self.there(3):
            self.server.receive_signature(name, self.sites[name].sign(survivors))
        return self.server.quorum()

    def answers(self) -> bool:
        quorum = self.signatures()
        done = False
        for name in self.there(4):
            done = self.server.receive_answer(name, self.sites[name].answer(quorum))
        return done

    def plain_sums(self) -> list[list[int]]:
        """Return the sums of the codes of those whose vectors came."""
        there = [self.codes[name] for name in self.there(2)]
        return [
            np.sum([codes[uplink].astype(np.int64) for codes in there], axis=0).tolist()
            for uplink in range(self.asked.attempt.uplinks)
        ]
