"""A site's only way out: checked, trained, checked again, charged, encoded, stored, in that order.

Each test is an attack on that order, or on the account that the site keeps.
"""

import contextlib
import dataclasses
import json
import math
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import one_site
import pytest
from one_site import BALL, FOUR, KEYS, POLICY, VALUES, Reached, answered, asked, charges, never

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import Box, L2Ball, Vector
from sottovoce.core.errors import (
    DomainError,
    LedgerError,
    LedgerLostError,
    PolicyError,
    SottovoceError,
)
from sottovoce.core.randomness import Randomness, SeededRandomness
from sottovoce.deployment.site import RoundRequest, Site
from sottovoce.ledger import database, seal
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import FIRST_EVENT_ACCOUNT
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.compositions import compose_repeated
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.protocol.channels.shuffler import Shuffler
from sottovoce.protocol.message import open_sealed
from sottovoce.protocol.server import RoundServer

DIMENSION = BALL.dimension
DELTA = POLICY.delta
ONE_BIT = GaussHermite(input_domain=BALL, levels=2, noise_multiplier=5.0)


def a_site(folder: Path, **changes: Any) -> Site:
    """A site whose ledger is bound to its folder, as that of a deployed one is."""
    sealed = folder / seal.SEAL_NAME
    if not sealed.exists():
        folder.mkdir(exist_ok=True)
        seal.create(folder)
    return dataclasses.replace(one_site.a_site(folder, **changes), seal=sealed)


def trained(*vectors: Vector) -> Callable[[], Sequence[Vector]]:
    return lambda: list(vectors or (VALUES,))


def history(site: Site) -> list[tuple[PrivacyEvent, int]]:
    with Ledger(site.ledger) as ledger:
        return ledger.history("ada")


# -- order -------------------------------------------------------------------------------------

REFUSED = [
    (asked(client="bob"), {}, KEYS, "this site is 'ada', but the request is for 'bob'"),
    (asked(), {"mechanisms": ("mvu",)}, KEYS, "'gauss_hermite' is not allowed"),
    (asked(unit=Unit.SAMPLE), {}, KEYS, "level 'sample' is not allowed"),
    (asked(adjacency=Adjacency.REPLACE_ONE), {}, KEYS, "adjacency replace-one is not allowed"),
    (asked(cohort=9), {"smallest_cohort": 10}, KEYS, "'smallest_cohort' is 10"),
    (asked(), {}, SeededRandomness(1), "'seeded_randomness' is false"),
    (asked(), {"epsilon_per_round": 1e-3}, KEYS, "'epsilon_per_round' is"),
    (asked(), {"epsilon_total": 1e-3}, KEYS, "'epsilon_total' is"),
]


def fail_while_encoding(
    site: Site, broken: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(GaussHermite, "encode_packed", broken)
        with pytest.raises(RuntimeError, match="power"):
            answered(site, asked())


@pytest.mark.parametrize(("request_", "changes", "keys", "reason"), REFUSED)
def test_what_is_refused_is_refused_before_anyone_trains_and_charged_nothing(
    tmp_path: Path, request_: RoundRequest, changes: dict[str, Any], keys: Randomness, reason: str
) -> None:
    site = a_site(tmp_path, **changes)
    with pytest.raises(PolicyError, match=reason):
        site.answer(request_, keys, never, keep_from=1)
    assert charges(site) == []


@pytest.mark.parametrize(
    "statement",
    ["UPDATE spending SET count = 1", "UPDATE messages SET charge = 9 WHERE charge = 2"],
)
def test_no_one_trains_or_is_charged_on_an_altered_ledger(tmp_path: Path, statement: str) -> None:
    site = a_site(tmp_path)
    for number in range(1, 4):
        answered(site, asked(number))
    db = sqlite3.connect(site.ledger)
    db.execute(statement)
    db.commit()
    for number in (2, 4):  # asked again, and asked anew
        with pytest.raises(LedgerError, match="was altered"):
            site.answer(asked(number), KEYS, never, keep_from=1)
    assert db.execute("SELECT COUNT(*) FROM charges").fetchone() == (3,)
    db.close()


def test_a_request_that_passes_reaches_the_training(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    with pytest.raises(Reached):
        site.answer(asked(), KEYS, never, keep_from=1)
    assert charges(site) == []


def test_a_round_asked_for_in_parts_costs_no_more_than_a_round_may(tmp_path: Path) -> None:
    one = privacy_spent(FOUR.privacy(Adjacency.ZERO_OUT), DELTA).epsilon
    site = a_site(tmp_path, epsilon_per_round=one, epsilon_total=100.0)
    answered(site, asked(1))
    with pytest.raises(PolicyError, match="'epsilon_per_round' is"):
        answered(site, asked(1, uplinks=2))  # the first uplink is charged: one more is due
    answered(site, asked(2))
    assert len(charges(site)) == 2


def test_what_others_spend_meanwhile_counts(tmp_path: Path) -> None:
    one = privacy_spent(FOUR.privacy(Adjacency.ZERO_OUT), DELTA).epsilon
    site = a_site(tmp_path, epsilon_total=one * 1.2)

    def slow() -> Sequence[Vector]:
        answered(site, asked(run="quicker"))
        return [VALUES]

    with pytest.raises(PolicyError, match="'epsilon_total' is"):
        site.answer(asked(), KEYS, slow, keep_from=1)
    assert [row["run"] for row in charges(site)] == ["quicker"]


def test_the_charge_is_on_disk_before_a_code_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = a_site(tmp_path)
    seen: list[int] = []

    def broken(self: GaussHermite, values: object, keystream: object) -> None:
        seen.append(len(charges(site)))
        raise RuntimeError("the power fails")

    fail_while_encoding(site, broken, monkeypatch)
    assert seen == [1]
    assert [row["message_stored"] for row in charges(site)] == [False]
    # Nothing had left, so the same charge serves when it is asked again.
    assert len(answered(site, asked())) == 1
    assert [row["message_stored"] for row in charges(site)] == [True]


def test_the_message_is_on_disk_before_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = a_site(tmp_path)

    def full(*_: object) -> None:
        raise LedgerError("the disk is full")

    monkeypatch.setattr(Ledger, "store_messages", full)
    with pytest.raises(LedgerError, match="disk is full"):
        answered(site, asked())
    assert [row["message_stored"] for row in charges(site)] == [False]


def test_a_charge_that_was_never_used_pays_for_nothing_dearer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crash after the charge of a cheap mechanism, then ask for an expensive one on its account."""
    site = a_site(tmp_path)

    def broken(*_: object) -> None:
        raise RuntimeError("the power fails")

    fail_while_encoding(site, broken, monkeypatch)
    dearer = dataclasses.replace(FOUR, noise_multiplier=1.0)
    with pytest.raises(PolicyError, match="was charged before"):
        answered(site, asked(mechanism=dearer))
    assert history(site) == [(FOUR.privacy(Adjacency.ZERO_OUT), 1)]


# -- retries -----------------------------------------------------------------------------------


def test_asked_again_it_sends_the_same_bytes_and_is_not_charged(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    first = answered(site, asked())
    for other in (VALUES, -VALUES, np.zeros(DIMENSION)):  # also if the server sent another model
        assert site.answer(asked(), KEYS, trained(other), keep_from=1) == first
    assert len(charges(site)) == 1


def test_asked_again_it_needs_no_budget(tmp_path: Path) -> None:
    first = answered(a_site(tmp_path), asked())
    site = a_site(tmp_path, epsilon_per_round=1e-9, epsilon_total=1e-9)
    assert answered(site, asked()) == first


@pytest.mark.parametrize(
    "change",
    [
        {"mechanism": ONE_BIT},
        {"mechanism": dataclasses.replace(FOUR, noise_multiplier=8.0000001)},
        {"mechanism": dataclasses.replace(FOUR, noise_multiplier=0.01)},
        {"mechanism": dataclasses.replace(FOUR, input_domain=L2Ball(dimension=32, radius=9.0))},
    ],
)
def test_asked_again_with_another_mechanism_it_sends_nothing(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    site = a_site(tmp_path)
    answered(site, asked())
    with pytest.raises(LedgerError, match="other parameters"):
        answered(site, asked(**change))
    assert len(charges(site)) == 1


def test_asked_again_as_another_level_it_sends_nothing(tmp_path: Path) -> None:
    answered(a_site(tmp_path), asked())
    site = a_site(tmp_path, level=Unit.SAMPLE)
    with pytest.raises(SottovoceError, match="accounted per client"):
        answered(site, asked(unit=Unit.SAMPLE))
    assert len(charges(site)) == 1


def test_asked_again_through_a_shuffler_it_sends_nothing(tmp_path: Path) -> None:
    replaced = Adjacency.REPLACE_ONE
    site = a_site(tmp_path, mechanisms=("bitwise_rr",), trust_server=True, adjacency=replaced)
    box = Box(dimension=DIMENSION, lower=-1.0, upper=1.0)
    mechanism = registry.find("bitwise_rr").build(box, {"epsilon": 1.0, "bits": 1})
    answered(site, asked(mechanism=mechanism, adjacency=replaced))
    hidden = asked(mechanism=mechanism, adjacency=replaced, channel=Shuffler(minimum_clients=5))
    with pytest.raises(LedgerError, match="other parameters"):
        answered(site, hidden)
    assert len(charges(site)) == 1


@pytest.mark.parametrize("keep_from", [2, 3, 2**32 - 1])
def test_what_was_discarded_cannot_be_asked_again(tmp_path: Path, keep_from: int) -> None:
    """`keep_from` in the future is the server's own loss: no new message for the same round."""
    site = a_site(tmp_path)
    answered(site, asked(1), keep_from=keep_from)
    for _ in range(2):
        with pytest.raises(PolicyError, match=r"was charged before, and .* start a new run"):
            site.answer(asked(1), KEYS, never, keep_from=1)
    assert len(charges(site)) == 1


def test_earlier_rounds_are_dropped_when_a_later_one_is_asked(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    kept = {number: answered(site, asked(number), keep_from=2) for number in (1, 2, 3)}
    with pytest.raises(PolicyError, match="was charged before"):
        answered(site, asked(1), keep_from=0)
    assert answered(site, asked(2), keep_from=0) == kept[2]
    # Another run's rounds are nobody's to discard but its own.
    answered(site, asked(9, run="other"), keep_from=9)
    assert answered(site, asked(2), keep_from=0) == kept[2]


def test_rounds_out_of_order_are_each_charged_once(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    for number in (5, 1, 3, 5, 1, 2**32 - 1, 0):
        answered(site, asked(number), keep_from=0)
    assert sorted(row["round"] for row in charges(site)) == [0, 1, 3, 5, 2**32 - 1]  # type: ignore[type-var]


# -- what training may return ------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_update_that_diverged_is_sent_as_zero_and_charged(tmp_path: Path, bad: float) -> None:
    """An error would tell about the data, and nobody would be charged for it."""
    update = VALUES.copy()
    update[3] = bad
    silent = GaussHermite(input_domain=BALL, levels=256, noise_multiplier=1e-5)
    site = a_site(tmp_path, epsilon_per_round=1e12, epsilon_total=1e12)
    request = asked(mechanism=silent)
    (message,) = site.answer(request, KEYS, trained(update), keep_from=1)
    codes = open_sealed(message, request.plan.envelope(request.part, 0))
    assert np.abs(silent.decode(codes)).max() < 1e-3
    assert len(charges(site)) == 1


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_vectors_than_asked_is_not_sent(tmp_path: Path, count: int) -> None:
    site = a_site(tmp_path)
    with pytest.raises(PolicyError, match=f"return 2 vectors, got {count}"):
        site.answer(asked(uplinks=2), KEYS, lambda: [VALUES] * count, keep_from=1)
    assert charges(site) == []


@pytest.mark.parametrize("shape", [(), (1,), (DIMENSION + 1,), (1, DIMENSION)])
def test_a_vector_of_another_shape_is_not_sent(tmp_path: Path, shape: tuple[int, ...]) -> None:
    site = a_site(tmp_path)
    with pytest.raises(DomainError, match="nothing was sent"):
        site.answer(asked(), KEYS, trained(np.zeros(shape)), keep_from=1)
    assert charges(site) == []


def test_an_update_beyond_the_clip_norm_is_projected(tmp_path: Path) -> None:
    silent = GaussHermite(input_domain=BALL, levels=256, noise_multiplier=0.2)
    site = a_site(tmp_path, epsilon_per_round=1e6, epsilon_total=1e6)
    request = asked(mechanism=silent)
    (message,) = site.answer(request, KEYS, trained(1e6 * VALUES), keep_from=1)
    server = RoundServer(request.plan, dimension=DIMENSION)
    server.receive("ada", message)
    mean = server.result()
    assert mean is not None
    assert np.linalg.norm(mean) < 1.0 + 0.2 * 2.0 * math.sqrt(DIMENSION)


# -- the account -------------------------------------------------------------------------------


def test_the_ledger_holds_exactly_what_was_sent_over_rounds_and_runs(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    sent: list[PrivacyEvent] = []
    for run, mechanism, uplinks in (("first", FOUR, 1), ("second", ONE_BIT, 2)):
        for number in range(1, 8):
            request = asked(number, run=run, mechanism=mechanism, uplinks=uplinks)
            messages = answered(site, request)
            again = answered(site, request)
            assert again == messages
            sent += [mechanism.privacy(Adjacency.ZERO_OUT)] * len(messages)
    expected = privacy_spent(compose_repeated([(event, 1) for event in sent]), DELTA)
    with Ledger(site.ledger) as ledger:
        assert ledger.spent("ada", DELTA) == expected
        assert ledger.num_charges == len(sent) == 21
        assert ledger.verify() == []


def test_runs_of_any_name_share_one_total(tmp_path: Path) -> None:
    """A server that renames its run at every order gains nothing."""
    event = FOUR.privacy(Adjacency.ZERO_OUT)
    total = privacy_spent(compose_repeated([(event, 6)]), DELTA).epsilon
    site = a_site(tmp_path, epsilon_total=total)
    names = ["run", "run ", "Run", "rün", "0", "'; DROP TABLE charges;--"]
    for name in names:
        answered(site, asked(run=name, rounds=6))
    for name in ("seventh", "run\u200b"):
        with pytest.raises(PolicyError, match="'epsilon_total' is"):
            site.answer(asked(run=name), KEYS, never, keep_from=1)
    assert [row["run"] for row in charges(site)] == names


def test_a_cheaper_mechanism_spends_the_same_account(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    answered(site, asked(1))
    answered(site, asked(2, mechanism=ONE_BIT))
    both = [(FOUR.privacy(Adjacency.ZERO_OUT), 1), (ONE_BIT.privacy(Adjacency.ZERO_OUT), 1)]
    with Ledger(site.ledger) as ledger:
        # The first that was charged comes first: the rules of the total depend on it.
        assert ledger.history_of_all(Unit.CLIENT) == both


def test_what_the_first_order_sets_aside_is_kept_and_no_later_order_changes_it(
    tmp_path: Path,
) -> None:
    """Else a server could ask for all of delta for two plans, one after the other."""
    event = FOUR.privacy(Adjacency.ZERO_OUT)
    total = privacy_spent(compose_repeated([(event, 4)]), DELTA).epsilon
    site = a_site(tmp_path, epsilon_total=total)

    def set_aside() -> float | None:
        with Ledger(site.ledger) as ledger:
            budget = ledger.budget(FIRST_EVENT_ACCOUNT)
        return None if budget is None else budget.delta

    with pytest.raises(Reached):
        site.answer(asked(1, rounds=4), KEYS, never, keep_from=1)
    assert set_aside() is None  # nothing was charged, so the next order is the first
    answered(site, asked(1, rounds=1))
    kept = set_aside()
    assert kept is not None
    assert kept < DELTA / 8
    for number in (2, 3):
        answered(site, asked(number, rounds=4, run="another"))
    with pytest.raises(PolicyError, match="'epsilon_total' is"):
        site.answer(asked(4, rounds=4), KEYS, never, keep_from=1)
    assert set_aside() == kept
    # The same four, planned as four, are admitted.
    planned = a_site(tmp_path / "planned", epsilon_total=total)
    for number in range(1, 5):
        answered(planned, asked(number, rounds=4))
    with Ledger(planned.ledger) as ledger:
        assert ledger.budget(FIRST_EVENT_ACCOUNT) == planned.policy.reserve_for_first_event(
            event, 4
        )
        assert ledger.clients() == ["ada"]
        assert ledger.verify() == []


def test_a_tighter_policy_counts_what_was_spent_under_an_easier_one(tmp_path: Path) -> None:
    answered(a_site(tmp_path), asked(1))
    spent = privacy_spent(FOUR.privacy(Adjacency.ZERO_OUT), DELTA).epsilon
    with pytest.raises(PolicyError, match="'epsilon_total' is"):
        answered(a_site(tmp_path, epsilon_total=spent), asked(2))


def test_the_adjacency_of_an_account_cannot_be_changed(tmp_path: Path) -> None:
    answered(a_site(tmp_path), asked(1))
    site = a_site(tmp_path, adjacency=Adjacency.REPLACE_ONE)
    with pytest.raises(SottovoceError, match="replace-one"):
        answered(site, asked(2, adjacency=Adjacency.REPLACE_ONE))
    assert len(charges(site)) == 1


def test_many_at_once_cannot_spend_more_than_the_total(tmp_path: Path) -> None:
    """Each of eight finds room when it is asked; the charge has the last word."""
    event = FOUR.privacy(Adjacency.ZERO_OUT)
    total = privacy_spent(compose_repeated([(event, 3)]), DELTA).epsilon
    site = a_site(tmp_path, epsilon_total=total)
    together = threading.Barrier(8, timeout=60.0)

    def one(number: int) -> str:
        def train() -> Sequence[Vector]:
            together.wait()  # all eight have passed the first check by now
            return [VALUES]

        try:
            site.answer(asked(number, rounds=3), KEYS, train, keep_from=0)
        except PolicyError as error:
            return "refused" if "'epsilon_total' is" in str(error) else str(error)
        return "sent"

    with ThreadPoolExecutor(max_workers=8) as pool:
        outcomes = list(pool.map(one, range(8)))
    assert sorted(outcomes) == ["refused"] * 5 + ["sent"] * 3
    with Ledger(site.ledger) as ledger:
        spent = ledger.spent("ada", DELTA)
        assert spent is not None
        assert spent.epsilon == total
        assert ledger.verify() == []


def test_many_at_once_on_one_round_send_one_message(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    together = threading.Barrier(6, timeout=60.0)
    sent: list[bytes] = []
    refused: list[str] = []

    def one(shift: float) -> None:
        def train() -> Sequence[Vector]:
            together.wait()
            return [VALUES + shift]

        try:
            sent.extend(site.answer(asked(), KEYS, train, keep_from=0))
        except LedgerError as error:
            refused.append(str(error))

    with ThreadPoolExecutor(max_workers=6) as pool:
        list(pool.map(one, np.linspace(0.0, 0.05, 6)))
    assert len(set(sent)) == 1
    assert len(sent) + len(refused) == 6
    assert all("another message is stored" in reason for reason in refused)
    assert len(charges(site)) == 1
    assert answered(site, asked()) == sent[:1]


# -- a ledger that is lost ---------------------------------------------------------------------


def remove(ledger: Path, _: bytes) -> None:
    ledger.unlink()


def truncate(ledger: Path, _: bytes) -> None:
    os.truncate(ledger, 0)


def go_back(ledger: Path, earlier: bytes) -> None:
    for path in ledger.parent.glob(f"{ledger.name}*"):  # a log would be replayed: nothing is lost
        path.unlink()
    ledger.write_bytes(earlier)


@pytest.mark.parametrize("lose", [remove, truncate, go_back])
def test_a_ledger_that_is_lost_while_it_trains_lets_nothing_leave(
    tmp_path: Path, lose: Callable[[Path, bytes], None]
) -> None:
    site = a_site(tmp_path)
    answered(site, asked(1))
    sealed, earlier = (tmp_path / seal.SEAL_NAME).read_bytes(), site.ledger.read_bytes()

    def train() -> Sequence[Vector]:
        lose(site.ledger, earlier)
        return [VALUES]

    with pytest.raises(LedgerError):
        site.answer(asked(2), KEYS, train, keep_from=0)
    # What was charged to a file that is gone is not in the account, so its message stays here.
    assert (tmp_path / seal.SEAL_NAME).read_bytes() == sealed
    if lose is go_back:  # the charges before are all there: the site goes on
        assert len(charges(site)) == 1
        return
    for _ in range(2):
        with pytest.raises(LedgerLostError):
            site.answer(asked(2), KEYS, never, keep_from=0)
    assert not site.ledger.exists() or not site.ledger.stat().st_size


def test_a_message_leaves_after_its_charge_is_in_the_file_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that keeps the charge in the log keeps the message; later the same bytes leave."""
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.05)
    site = a_site(tmp_path)
    answered(site, asked(1))
    with Ledger(site.ledger) as reader, reader.snapshot():
        assert reader.num_charges == 1
        with pytest.raises(LedgerError, match="nothing is lost"):
            answered(site, asked(2))
    with Ledger(site.ledger) as ledger:
        stored = ledger.latest(asked(2).plan.release("ada", 0))
    assert stored is not None
    assert site.answer(asked(2), KEYS, trained(VALUES), keep_from=0) == [stored.message]
    assert len(charges(site)) == 2
    assert json.loads((tmp_path / seal.SEAL_NAME).read_text())["charges"] == 2


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_killed_after_messages_have_left_the_file_alone_has_their_charges(tmp_path: Path) -> None:
    """Somebody looks at the ledger meanwhile, so SQLite keeps its log."""
    site = a_site(tmp_path)
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            reader = Ledger(site.ledger)
            for number in range(1, 8):
                answered(site, asked(number))
                assert reader.num_charges == number
            os.write(writes, b"all have left")
            signal.pause()
        os._exit(1)
    os.close(writes)
    assert os.read(reads, 100) == b"all have left"
    os.close(reads)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes(site.ledger.read_bytes())
    with Ledger(copy) as ledger:
        assert ledger.verify() == []
        assert ledger.num_charges == 7
    with site.open_ledger() as ledger:
        assert ledger.num_charges == 7
