"""A site that is killed at any moment, with a real ledger: it never answers an attempt twice."""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pairwise_rounds import Federation, Round, federation, random_codes

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import LedgerError, WireError
from sottovoce.ledger.database import Database
from sottovoce.ledger.journal import CLOSED, Place
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import PendingCharge, Release
from sottovoce.mechanisms.packing import pack
from sottovoce.privacy.events import PureDp
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.pairwise_messages import Input
from sottovoce.protocol.secure.pairwise_shares import OwnSecrets
from sottovoce.protocol.secure.pairwise_site import ANSWERED, BEGUN, CHARGED, SIGNED, PairwiseSite

ME = "site-000"
EVENT = PureDp(epsilon=0.1, adjacency=Adjacency.ZERO_OUT)


def charge_of(ledger: Ledger, attempt: Attempt) -> Callable[[], None]:
    def charge() -> None:
        release = Release(
            unit=Unit.CLIENT, run=attempt.run, client=ME, round=attempt.round, uplink=0
        )
        ledger.charge_all([PendingCharge(release=release, attempt=attempt.attempt, event=EVENT)])

    return charge


def charges(ledger: Ledger) -> int:
    return sum(count for _, count in ledger.history(ME))


def place_of(attempt: Attempt) -> Place:
    run, number, count = attempt.place
    return Place(federation=attempt.federation, run=run, round=number, attempt=count)


class RoundWithLedger(Round):
    """A round in which one site has a real ledger; all others have journals in memory."""

    def __init__(self, asked: Federation, ledger: Ledger) -> None:
        super().__init__(asked, random_codes(asked))
        self.ledger = ledger
        self.sites[ME] = asked.site(ME, journal=ledger.journal())
        self.asked.contribute = self.contribute  # type: ignore[method-assign]

    def contribute(self, site: PairwiseSite, name: str, box: bytes, codes: Any) -> bytes:
        chosen = self.codes[name]
        if name != ME:
            return Federation.contribute(self.asked, site, name, box, chosen)
        charge = charge_of(self.ledger, self.asked.attempt)
        return site.contribute(box, charge, lambda: chosen, self.ledger.transaction)


@pytest.fixture
def asked() -> Federation:
    return federation(5, 4, dimension=512)


@dataclasses.dataclass
class Moment:
    """A copy of a ledger's files, as a kill would leave them, and how many inputs were sent."""

    folder: Path
    sent: int


@pytest.fixture
def moments(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Moment]:
    """Copies of the ledger after each of its durable writes."""
    found: list[Moment] = []
    transaction = Database.transaction

    @contextlib.contextmanager
    def copied(self: Database) -> Iterator[None]:
        with transaction(self):
            yield
        if self.path == path:
            found.append(copy(path, tmp_path / f"moment-{len(found)}", 0))

    monkeypatch.setattr(Database, "transaction", copied)
    return found


def copy(path: Path, folder: Path, sent: int) -> Moment:
    folder.mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        if file.is_file() and not file.name.endswith("-shm"):
            shutil.copy(file, folder / file.name)
    return Moment(folder, sent)


def test_a_round_with_a_real_ledger_charges_once(asked: Federation, ledger: Ledger) -> None:
    begun = RoundWithLedger(asked, ledger)
    assert begun.answers()
    assert [vector.tolist() for vector in begun.server.result().vectors] == begun.plain_sums()
    assert charges(ledger) == 1
    assert ledger.journal().state(place_of(asked.attempt)) == CLOSED


def test_a_site_that_was_killed_after_any_write_takes_no_further_part_in_the_attempt(
    asked: Federation, ledger: Ledger, moments: list[Moment], path: Path
) -> None:
    begun = RoundWithLedger(asked, ledger)
    assert begun.answers()
    messages = (begun.server.list_message(), begun.server.box(ME), begun.server.survivors())
    states = []
    for moment in moments[1:]:  # the first write makes the journal's table
        with Ledger(moment.folder / path.name) as restored:
            states.append(restored.journal().state(place_of(asked.attempt)))
            restored.journal().close_all()
            site = asked.site(ME, journal=restored.journal())
            with pytest.raises(WireError, match="begun before"):
                site.begin()
            for step, message in zip((site.share, site.sign, site.answer), messages, strict=True):
                with pytest.raises(WireError, match="expected the message 'open'"):
                    step(message)
            before = charges(restored)
            assert before == (states[-1] != BEGUN)
            # The next attempt has a charge of its own, whatever became of this one.
            assert RoundWithLedger(next_attempt(asked), restored).answers()
            assert charges(restored) == before + 1
    assert states == [BEGUN, CHARGED, SIGNED, ANSWERED, CLOSED]


def next_attempt(asked: Federation) -> Federation:
    """Return the same federation at its next attempt, with journals of their own."""
    return dataclasses.replace(asked, attempt=dataclasses.replace(asked.attempt, attempt=2))


@pytest.mark.parametrize("step", range(5))
def test_what_was_sent_was_charged_before(
    asked: Federation, ledger: Ledger, path: Path, tmp_path: Path, step: int
) -> None:
    """The disk, as it is just before each message leaves."""
    begun = RoundWithLedger(asked, ledger)
    run = (begun.keys, begun.shares, begun.inputs, begun.signatures, begun.answers)[step]
    run()
    moment = copy(path, tmp_path / "killed", step >= 2)
    with Ledger(moment.folder / path.name) as restored:
        assert charges(restored) == moment.sent


def test_a_failure_before_the_keys_are_drawn_closes_the_attempt(
    asked: Federation, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = asked.site(ME, journal=ledger.journal())
    with monkeypatch.context() as patch:
        patch.setattr(OwnSecrets, "draw", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            site.begin()
    with pytest.raises(WireError, match="begun before"):
        site.begin()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_failure_after_the_charge_keeps_the_charge_and_sends_nothing(
    asked: Federation, ledger: Ledger, error: type[BaseException]
) -> None:
    begun = RoundWithLedger(asked, ledger)
    box = begun.boxes()[ME]

    def fail() -> Any:
        raise error

    charge = charge_of(ledger, asked.attempt)
    with pytest.raises(error):
        begun.sites[ME].contribute(box, charge, fail, ledger.transaction)
    assert charges(ledger) == 1
    assert ledger.journal().state(place_of(asked.attempt)) == CLOSED
    with pytest.raises(WireError, match="no more messages"):
        begun.contribute(begun.sites[ME], ME, box, None)


def test_a_charge_that_cannot_be_committed_is_undone_and_nothing_is_drawn(
    asked: Federation, ledger: Ledger
) -> None:
    begun = RoundWithLedger(asked, ledger)
    box = begun.boxes()[ME]

    @contextlib.contextmanager
    def full_disk() -> Iterator[None]:
        with ledger.transaction():
            yield
            raise LedgerError("the disk is full; free some space")

    def not_drawn() -> Any:
        pytest.fail("codes were drawn")

    charge = charge_of(ledger, asked.attempt)
    with pytest.raises(LedgerError, match="full"):
        begun.sites[ME].contribute(box, charge, not_drawn, full_disk)
    assert charges(ledger) == 0
    assert ledger.journal().state(place_of(asked.attempt)) == CLOSED


def test_two_objects_of_one_ledger_cannot_both_answer(asked: Federation, ledger: Ledger) -> None:
    """A second process with the same ledger begins a later attempt while the first one waits."""
    begun = RoundWithLedger(asked, ledger)
    survivors = begun.inputs()
    later = dataclasses.replace(asked.attempt, attempt=2)
    asked.site(ME, attempt=later, journal=ledger.journal()).begin()
    with pytest.raises(LedgerError, match="'closed', not 'charged'"):
        begun.sites[ME].sign(survivors)


def secrets_of(site: PairwiseSite) -> Iterator[bytes]:
    memory = site._memory
    if memory.secrets is not None:
        yield from (memory.secrets.seed, memory.secrets.mask_secret)
        yield memory.secrets.channel.private_bytes_raw()
    if memory.listed is not None:
        yield from memory.listed.exchanges.channels.values()
        yield from memory.listed.exchanges.masks.values()
    if memory.boxed is not None:
        for pair in memory.boxed.held.values():
            yield from (pair.seed, pair.mask_secret)


def test_no_secret_of_a_round_is_ever_on_disk(
    asked: Federation, ledger: Ledger, moments: list[Moment], path: Path
) -> None:
    begun = RoundWithLedger(asked, ledger)
    site = begun.sites[ME]
    found: set[bytes] = set()
    sent: list[bytes] = []
    contribute = begun.contribute

    def watched(one: PairwiseSite, name: str, box: bytes, codes: Any) -> bytes:
        found.update(secrets_of(site))
        reply = contribute(one, name, box, codes)
        if name == ME:
            sent.append(Input.read(reply).vectors[0])
        found.update(secrets_of(site))
        return reply

    asked.contribute = watched  # type: ignore[method-assign, assignment]
    assert begun.answers()
    (codes,) = begun.codes[ME]
    found |= {pack(codes.astype(np.uint8), 1), codes.tobytes(), codes.astype(np.uint8).tobytes()}
    found |= {sent[0], pack(codes.astype(np.uint8), asked.attempt.bits)}
    assert len(found) > 3 + 2 * 4 + 2 * 5
    found |= {secret[:16] for secret in found} | {secret.hex().encode() for secret in found}
    ledger.close()
    files = [file for file in path.parent.rglob("*") if file.is_file()]
    content = b"".join(file.read_bytes() for file in files)
    assert len(files) > len(moments)
    assert b"run" in content
    assert not [secret for secret in found if secret in content]
