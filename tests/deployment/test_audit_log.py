"""A site's audit log: complete before anything leaves, and found out where it was altered."""

import dataclasses
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from command_line import call, printed_json
from one_site import KEYS, VALUES, Reached, a_site, answered, asked, charges, never

from sottovoce.core.domains import Vector
from sottovoce.core.errors import OutputError, PolicyError
from sottovoce.deployment import audit_file, audit_log
from sottovoce.deployment.audit_log import LOG_NAME, OrderName
from sottovoce.deployment.site import Site
from sottovoce.ledger import seal
from sottovoce.ledger.ledger import Ledger

DAY = audit_file.DAY_SECONDS


def logged(folder: Path, **changes: Any) -> Site:
    return dataclasses.replace(a_site(folder, **changes), log=folder / LOG_NAME)


def entries(site: Site) -> list[dict[str, Any]]:
    assert site.log is not None
    found, problems = audit_file.verify_lines(site.log)
    assert problems == []
    return found


def whats(site: Site) -> list[str]:
    return [entry["what"] for entry in entries(site)]


def restart() -> None:
    """Forget what this process knows of any log, as a new one would."""
    audit_log._OPEN.clear()
    audit_log._THROTTLES.clear()


@pytest.fixture(autouse=True)
def _a_new_process() -> None:
    restart()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_800_000_000.0]
    monkeypatch.setattr(audit_file, "wall_clock", lambda: now[0])
    return now


def test_every_answer_has_its_line_with_what_it_cost_and_what_is_left(tmp_path: Path) -> None:
    site = logged(tmp_path)
    answered(site, asked(1))
    answered(site, asked(2))
    answered(site, asked(2))
    assert whats(site) == ["policy changed", "charged", "charged", "answered again"]
    _, one, two, again = entries(site)
    assert (one["run"], one["round"], one["mechanism"]) == ("run", 1, "gauss_hermite")
    assert one["epsilon"] == two["epsilon"] > 0.0
    assert two["total"] > one["total"] > 0.0
    assert two["left"] == 500.0 - two["total"]
    assert [one["charges"], two["charges"]] == [1, 2]
    assert again["times"] == 1
    assert "epsilon" not in again
    assert site.log is not None
    assert site.log.stat().st_mode & 0o777 == 0o600


def test_where_the_log_cannot_be_written_nothing_leaves_and_the_charge_serves_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = logged(tmp_path)
    answered(site, asked(1))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OutputError, match="No space left"):
            answered(site, asked(2))
    assert [row["message_stored"] for row in charges(site)] == [False, True]
    with Ledger(site.ledger) as ledger:
        charge = ledger.latest(asked(2).plan.release("ada", 0))
    assert charge is not None
    restart()
    assert site.answer(asked(2), KEYS, lambda: [-VALUES], keep_from=2) == [charge.message]
    assert len(charges(site)) == 2
    assert "charged" in whats(site)[2:]


def test_a_log_that_cannot_be_opened_stops_the_order_before_training(tmp_path: Path) -> None:
    site = logged(tmp_path)
    (tmp_path / LOG_NAME).mkdir()
    with pytest.raises(OutputError, match="cannot write"):
        site.answer(asked(), KEYS, never, keep_from=1)
    assert charges(site) == []


def test_it_goes_on_after_a_restart_and_over_half_a_line(tmp_path: Path) -> None:
    site = logged(tmp_path)
    answered(site, asked(1))
    path = tmp_path / LOG_NAME
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(b'{"time": "2026-')  # the power failed
    restart()
    answered(site, asked(2))
    assert path.read_bytes().startswith(whole)
    assert whats(site) == ["policy changed", "charged", "charged"]
    with path.open("ab") as file:
        file.write(b'{"half')
    assert len(entries(site)) == 3
    # A whole line that lacks nothing but its end is a line.
    path.write_bytes(whole.rstrip(b"\n"))
    restart()
    site.note_refusal("no", OrderName())
    assert whats(site) == ["policy changed", "charged", "refused"]


@pytest.mark.parametrize("damage", ["edited", "removed", "moved", "inserted", "respaced"])
def test_an_altered_log_is_found(tmp_path: Path, damage: str) -> None:
    site = logged(tmp_path)
    for number in range(1, 5):
        answered(site, asked(number))
    path = tmp_path / LOG_NAME
    lines = path.read_bytes().splitlines(keepends=True)
    match damage:
        case "edited":
            lines[2] = lines[2].replace(b'"round": 2', b'"round": 7')
        case "removed":
            del lines[2]
        case "moved":
            lines[2], lines[3] = lines[3], lines[2]
        case "inserted":
            lines.insert(2, lines[1])
        case _:
            lines[2] = lines[2].replace(b": ", b":")
    path.write_bytes(b"".join(lines))
    _, problems = audit_file.verify_lines(path)
    assert problems
    restart()
    assert site.audit_log is not None
    assert any("was altered" in text for text in site.audit_log.warnings(site.ledger))


STRANGE = {
    "overflows": b"1e999",
    "overflows below": b"-1e999",
    "constant": b"NaN",
    "infinity": b"Infinity",
    "long": b"1" + b"0" * 5000,
    "larger than a count": b"1" + b"0" * 299,
    "negative": b"-3",
    "nested": b"[" * 500 + b"]" * 500,
    "nested deeper": b"[" * 100_000 + b"]" * 100_000,
    "surrogate": rb'"\ud800"',
    "twice": b'1, "charges": 2, "charges": 2',
    "not UTF-8": b'"\xff"',
    "year 10000": b'2, "time": "9999-12-31T23:59:59-23:59"',
    "object": b'{"a": 1}',
}


def test_a_line_with_anything_in_it_is_an_altered_line(tmp_path: Path) -> None:
    """It is told, and it stops no command, no start and no answer."""
    site = logged(tmp_path, rounds_per_day=1000)
    for number in (1, 2):
        answered(site, asked(number))
    path = tmp_path / LOG_NAME
    whole = path.read_bytes().rstrip(b"\n").split(b"\n")
    assert site.audit_log is not None
    for number, (name, value) in enumerate(STRANGE.items(), start=3):
        place = number % 3  # the last one has no end, too
        lines = list(whole)
        keys = (b"charges", b"records", b"time", b"epsilon", b"changes")
        added = b"".join(b', "%s": %s' % (key, value) for key in keys)
        lines[place] = lines[place].replace(b', "chain"', added + b', "chain"')
        path.write_bytes(b"\n".join(lines))
        expected = f"line {place + 1}, or one before it, was altered"
        assert audit_file.verify_lines(path)[1] == [expected], name
        for option in ([], ["--json"]):
            shown = call("ledger", "log", str(tmp_path), *option)
            assert (shown.code, expected in shown.text) == (1, True), name
            shown.text.encode()
        restart()
        assert any("was altered" in text for text in site.audit_log.warnings(site.ledger)), name
        site.note_start()
        restart()
        answered(site, asked(number))
        found, problems = audit_file.verify_lines(path)
        assert (found[-1]["what"], found[-1]["round"], problems) == ("charged", number, [expected])


def test_charges_without_a_line_get_one_at_the_next_start(tmp_path: Path) -> None:
    site = a_site(tmp_path)  # which keeps no log
    for number in (1, 2):
        answered(site, asked(number))
    logged(tmp_path).note_start()
    found = entries(logged(tmp_path))
    assert [one["what"] for one in found] == ["policy changed", "started", "charged", "charged"]
    assert [one.get("late") for one in found[2:]] == [True, True]
    assert "total" in found[3]
    logged(tmp_path).note_stop()
    assert whats(logged(tmp_path))[-1] == "stopped"


@pytest.mark.parametrize("later", [1, 2, 3])
def test_a_ledger_that_has_forgotten_charges_is_noticed(tmp_path: Path, later: int) -> None:
    site = logged(tmp_path)
    for number in (1, 2):
        answered(site, asked(number))
    for name in list(tmp_path.glob("ledger.sqlite*")):
        name.unlink()
    for number in range(1, later):
        answered(a_site(tmp_path), asked(10 + number))
    answered(site, asked(2))
    *_, warning, charged = entries(site)
    assert "an older copy" in warning["reason"]
    assert (charged["what"], charged["round"], charged["charges"]) == ("charged", 2, later)


def test_a_change_of_the_policy_is_logged_at_the_next_order(tmp_path: Path) -> None:
    answered(logged(tmp_path), asked(1))
    restart()
    answered(logged(tmp_path, epsilon_total=400.0, rounds_per_day=5), asked(2))
    changed = logged(tmp_path, smallest_cohort=99)
    with pytest.raises(PolicyError) as refusal:
        changed.answer(asked(3), KEYS, never, keep_from=1)
    changed.note_refusal(str(refusal.value), OrderName(run="run", round=3))
    found = [entry["changes"] for entry in entries(changed) if entry["what"] == "policy changed"]
    assert found[0]["epsilon_total"] == [None, 500.0]
    assert found[1] == {"epsilon_total": [500.0, 400.0], "rounds_per_day": [None, 5]}
    assert found[2]["rounds_per_day"] == [5, None]
    assert found[2]["smallest_cohort"] == [1, 99]
    assert entries(changed)[-1]["reason"] == (
        "10 clients are asked, but the site's 'smallest_cohort' is 99; ask more clients"
    )


# -- rounds a day ------------------------------------------------------------------------------


def test_rounds_a_day_are_counted_over_runs_and_restarts(
    tmp_path: Path, clock: list[float]
) -> None:
    site = logged(tmp_path, rounds_per_day=2)
    answered(site, asked(1, uplinks=2))
    clock[0] += 3600.0
    answered(site, asked(1, run="another"))
    for _ in range(2):
        with pytest.raises(PolicyError, match="2 rounds were charged within 24 hours"):
            site.answer(asked(2), KEYS, never, keep_from=0)
        restart()
    assert answered(site, asked(1, uplinks=2))  # stored bytes cost nothing
    clock[0] += DAY - 3599.0
    answered(site, asked(2))  # the first is a day ago
    with pytest.raises(PolicyError, match="rounds_per_day"):
        answered(site, asked(3))


@pytest.mark.parametrize("new_process", [False, True])
def test_a_clock_that_is_set_back_makes_no_round_forgotten(
    tmp_path: Path, clock: list[float], new_process: bool
) -> None:
    site = logged(tmp_path, rounds_per_day=1)
    start = clock[0]
    answered(site, asked(1))
    for jump in (-30 * DAY, -60 * DAY, -1.0, DAY - 1.0):
        clock[0] = start + jump
        if new_process:
            restart()
        with pytest.raises(PolicyError, match="rounds_per_day"):
            answered(site, asked(2))
    clock[0] = start + DAY + 1.0
    with pytest.raises(Reached):
        site.answer(asked(2), KEYS, never, keep_from=1)
    clock[0] = start
    with pytest.raises(PolicyError, match="rounds_per_day"):
        answered(site, asked(2))
    clock[0] = start + DAY + 1.0
    answered(site, asked(2))


def test_a_round_that_was_charged_while_the_clock_was_back_counts_too(
    tmp_path: Path, clock: list[float]
) -> None:
    site = logged(tmp_path, rounds_per_day=2)
    answered(site, asked(1))
    clock[0] -= 3 * DAY
    answered(site, asked(2))
    clock[0] += 3 * DAY
    with pytest.raises(PolicyError, match="2 rounds were charged"):
        answered(site, asked(3))


def test_a_clock_that_was_far_ahead_is_named_and_a_new_log_is_the_way_out(
    tmp_path: Path, clock: list[float]
) -> None:
    site = logged(tmp_path, rounds_per_day=2)
    start = clock[0]
    clock[0] = start + 3 * 365 * DAY
    ahead = audit_file.time_text(clock[0])
    answered(site, asked(1))
    clock[0] = start
    answered(site, asked(2))
    for later in (0.0, 30 * DAY):
        clock[0] = start + later
        with pytest.raises(PolicyError, match=f"in the log is of {ahead}, which is in the future"):
            answered(site, asked(3))
    (tmp_path / LOG_NAME).rename(tmp_path / "old.jsonl")
    restart()
    site.note_start()
    for later in (0.0, 1.0, DAY - 1.0):  # no round is forgotten before a day has passed
        clock[0] = start + 30 * DAY + later
        with pytest.raises(PolicyError, match=r"2 rounds were charged .*; ask again later"):
            answered(site, asked(3))
    clock[0] = start + 31 * DAY + 1.0
    answered(site, asked(3))
    assert [one.get("late") for one in entries(site)[2:]] == [True, True, None]


def test_a_charge_without_a_line_counts_as_a_round_of_today(tmp_path: Path) -> None:
    answered(a_site(tmp_path), asked(1))
    with pytest.raises(PolicyError, match="1 rounds were charged"):
        answered(logged(tmp_path, rounds_per_day=1), asked(2))


def test_many_at_once_cannot_have_more_rounds_than_a_day_allows(tmp_path: Path) -> None:
    site = logged(tmp_path, rounds_per_day=3)
    Ledger(site.ledger, create=True).close()
    together = threading.Barrier(6, timeout=60.0)

    def one(number: int) -> bool:
        def train() -> list[Vector]:
            together.wait()  # all six have passed the first check by now
            return [VALUES]

        try:
            return bool(site.answer(asked(number), KEYS, train, keep_from=0))
        except PolicyError:
            return False

    with ThreadPoolExecutor(max_workers=6) as pool:
        assert sum(pool.map(one, range(6))) == 3
    assert whats(site).count("charged") == len(charges(site)) == 3


def test_rounds_a_day_need_a_log(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="needs an audit log"):
        answered(a_site(tmp_path, rounds_per_day=1), asked(1))


# -- refusals and warnings ---------------------------------------------------------------------


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock by which refusals are counted; a test sets it."""
    now = [0.0]
    monkeypatch.setattr(audit_file, "steady_clock", lambda: now[0])
    return now


def test_a_flood_of_refusals_is_counted_and_not_listed(
    tmp_path: Path, seconds: list[float]
) -> None:
    site = logged(tmp_path)
    for number in range(5000):
        site.note_refusal(f"reason {number}", OrderName(run=f"run {number}"))
    for _ in range(5000):
        site.note_refusal("the same", OrderName())
    refused = [entry for entry in entries(site) if entry["what"] == "refused"]
    assert len(refused) == 20
    seconds[0] = 61.0
    assert site.note_refusal("later", OrderName())
    listed = sum(entry["times"] for entry in entries(site) if entry["what"] == "refused")
    assert listed == 10_001
    assert not site.note_refusal("later", OrderName())
    site.note_stop()
    assert entries(site)[-1]["unlisted"] == 1


def test_rounds_refused_at_once_for_one_reason_have_one_line_until_a_minute_has_passed(
    tmp_path: Path, seconds: list[float]
) -> None:
    """As docs/how-to/site-ledger.md says."""
    site = logged(tmp_path)
    for number, second in enumerate((0.0, 1.0, 2.0, 61.0)):
        seconds[0] = second
        site.note_refusal("too much", OrderName(run="run", round=number))
    refused = [entry for entry in entries(site) if entry["what"] == "refused"]
    assert [(one["round"], one["times"]) for one in refused] == [(0, 1), (3, 3)]


def test_asking_again_without_end_does_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_file, "steady_clock", lambda: 0.0)
    site = logged(tmp_path)
    for _ in range(4):
        answered(site, asked(1))
    assert whats(site) == ["policy changed", "charged", "answered again"]


def test_a_long_reason_with_line_ends_is_one_short_line(tmp_path: Path) -> None:
    site = logged(tmp_path)
    site.note_refusal("a\nb" * 10_000, OrderName(run="r\n" * 10_000))
    assert len((tmp_path / LOG_NAME).read_bytes().splitlines()[-1]) < 2500


def test_the_budget_is_warned_of_once_and_at_every_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spent = [entry for entry in _three_rounds(tmp_path / "a") if entry["what"] == "charged"]
    total = spent[2]["total"] * 1.01
    changes = {"epsilon_total": total, "epsilon_per_round": total, "warn_at": 0.6}
    found = _three_rounds(tmp_path / "b", **changes)
    (warning,) = [entry for entry in found if entry["what"] == "warning"]
    assert warning["about"] == "budget"
    assert "of the site's budget is used" in warning["reason"]
    assert warning["reason"] in caplog.text
    site = logged(tmp_path / "b", **changes)
    restart()
    site.note_start()
    assert [one["what"] for one in entries(site)].count("warning") == 2
    higher = logged(tmp_path / "b", epsilon_total=500.0)
    higher.note_start()
    assert [one["what"] for one in entries(higher)].count("warning") == 2


def _three_rounds(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    folder.mkdir()
    site = logged(folder, **changes)
    for number in (1, 2, 3):
        answered(site, asked(number, rounds=3))
    return entries(site)


def test_a_delta_of_one_in_so_many_is_warned_of(tmp_path: Path) -> None:
    site = logged(tmp_path, delta=0.1, warn_at=1.0)
    answered(site, dataclasses.replace(asked(1), records=9))
    assert "warning" not in whats(site)
    answered(site, dataclasses.replace(asked(2), records=10))
    answered(site, dataclasses.replace(asked(3), records=10))
    (warning,) = [entry for entry in entries(site) if entry["what"] == "warning"]
    assert "there are 10 records" in warning["reason"]
    assert site.audit_log is not None
    (text,) = site.audit_log.warnings(site.ledger)
    assert text == warning["reason"]


# -- the command -------------------------------------------------------------------------------

SITE = """
name = "ada"
[policy]
mechanisms = ["gauss_hermite", "mvu"]
level = "sample"
adjacency = "zero-out"
epsilon_per_round = 2.0
epsilon_total = 10.0
delta = 0.4
smallest_cohort = 1
smallest_noise_multiplier = 0.5
[columns.age]
csv = "people.csv"
column = "age"
"""


def test_the_commands_show_log_and_warnings(tmp_path: Path) -> None:
    answered(logged(tmp_path), asked(1))
    logged(tmp_path).note_refusal("not that", OrderName(run="evil", round=3))
    shown = call("ledger", "log", str(tmp_path))
    assert shown.code == 0
    assert "gauss_hermite" in shown.text
    assert "\n3 lines; the chain is whole" in shown.text
    assert max(map(len, shown.text.splitlines())) <= 140
    for options, count in (
        (["--refused"], 1),
        (["--run-name", "ru"], 1),
        (["--since", "2020-01-01"], 3),
        (["--since", "2999-01-01T00:00"], 0),
    ):
        found = printed_json("ledger", "log", str(tmp_path), *options)
        assert found["ok"]
        assert len(found["entries"]) == count
    shown = call("ledger", "log", str(tmp_path), "--run-name", "evil")
    assert "1 of 3 lines; the chain is whole" in shown.text
    assert "no run has" not in shown.text
    shown = call("ledger", "log", str(tmp_path), "--run-name", "second")
    assert "0 of 3 lines" in shown.text
    assert "begins with 'second'" in shown.text
    assert "evil, run" in shown.text
    path = tmp_path / LOG_NAME
    path.write_bytes(path.read_bytes().replace(b'"round": 1', b'"round": 2'))
    broken = call("ledger", "log", str(tmp_path))
    assert broken.code == 1
    assert "was altered" in broken.text


def test_a_site_is_told_at_once_what_its_file_leaves_open(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(SITE)
    (tmp_path / "people.csv").write_text("age\n1\n2\n3\n")
    seal.create(tmp_path)
    shown = call("ledger", "show", str(tmp_path))
    assert "does not apply to mvu" in shown.text
    assert "counts everything again at the first event of another kind" in shown.text
    assert "there are 3 records" in shown.text


def _charged_on(day: float, number: int) -> dict[str, Any]:
    time = audit_file.time_text(1.8e9 + day * DAY)
    return {"time": time, "what": "charged", "run": "run", "round": number}


def test_a_round_that_is_charged_again_after_a_day_counts_again() -> None:
    state = audit_file.LogState()
    for entry in (_charged_on(0.0, 1), _charged_on(1.5, 1), _charged_on(1.5, 2)):
        state.take_entry(entry)
    assert state.rounds_within_a_day(1.8e9 + 1.5 * DAY) == {("run", 1), ("run", 2)}


def test_a_start_by_a_wrong_clock_keeps_no_later_round_for_years() -> None:
    state = audit_file.LogState()
    state.take_entry({"time": audit_file.time_text(1.8e9 + 3650 * DAY), "what": "started"})
    for number in range(10):
        state.take_entry(_charged_on(float(number), number))
    assert state.rounds_within_a_day(1.8e9 + 9.0 * DAY) == {("run", 9)}
