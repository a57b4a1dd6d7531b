"""The three sentences about a run that can be quoted are true for every kind of run."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from reported_runs import make_run, make_unfinished
from specs import CLIENT_LEVEL, small_spec

from sottovoce.reporting.report_data import report_of, run_data
from sottovoce.reporting.run_report import render
from sottovoce.reporting.statement import PrivacyStatement, statement_of
from sottovoce.runs.record import RunRecord, read_record


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("statement") / "run", rounds=2)


@pytest.fixture(scope="module")
def record(folder: Path) -> RunRecord:
    return read_record(folder)


def _stated(
    record: RunRecord,
    changes: dict[str, Any],
    clients: list[dict[str, Any]] | None = None,
    **result: Any,
) -> PrivacyStatement:
    """Return the statement of the run, had its spec and its result been others."""
    other = dataclasses.replace(
        record,
        spec=small_spec(rounds=2, **changes),
        result={**(record.result or {}), **result},
    )
    rows = (record.result or {})["clients"] if clients is None else clients
    return statement_of(other, 3.99995, rows)


def test_a_finished_run_names_unit_observer_budget_and_assumptions(folder: Path) -> None:
    protected, spent, assumes = run_data(folder)["statement"]
    assert "one training sample of a client against anyone who sees the messages" in protected
    assert "the server included" in protected
    assert "(sample level, adjacency zero-out)" in protected
    assert "epsilon 4.0000 (simulation only) of a budget of 4 at delta 1e-05 after 2 of 2" in spent
    assert "accountant" in spent
    assert "clips every sample's gradient to norm 1 and adds its noise as specified" in assumes
    assert "the number of samples of each client is public" in assumes
    assert "anyone who has the seed can subtract it" in assumes
    assert "ran on one machine, which has the data, so this covers what it publishes" in assumes
    assert "exact figures of the test data, which is not protected" in assumes


@pytest.mark.parametrize(
    ("channel", "described", "observer", "without"),
    [
        (
            {"kind": "secure_sum", "minimum_clients": 2},
            "secure sum, simulated: the server is trusted to reveal only sums",
            "sees only sums of messages",
            "an observer of every message and its sender has epsilon 9.0000",
        ),
        (
            {"kind": "shuffler", "minimum_clients": 2},
            "shuffler, simulated: the server is trusted to shuffle messages and forget senders",
            "sees the messages without their senders",
            "an observer of every message and its sender has epsilon 9.0000",
        ),
        (
            {"kind": "central"},
            "central noise, simulated: this process is trusted with every update",
            "but not against the server, which sees every update",
            "nothing is protected against the server itself",
        ),
    ],
)
def test_a_channel_names_its_trusted_parties(
    record: RunRecord, channel: dict[str, Any], described: str, observer: str, without: str
) -> None:
    changes = {**CLIENT_LEVEL, "channel": channel}
    found = _stated(record, changes, channel=described, local_epsilon=9.0)
    assert "everything that one client contributes" in found.protected
    assert observer in found.protected
    assert "not against the server" in found.protected
    assert "server included" not in found.protected
    assert "(simulation only)" in found.spent
    assert described in found.assumes
    assert without in found.assumes


@pytest.mark.parametrize(
    ("channel", "observer", "described"),
    [
        (
            {"kind": "secure_sum", "protocol": "pairwise", "minimum_clients": 2},
            "sees only sums of messages, and the models, those who run the servers included",
            "no server is trusted",
        ),
        (
            {"kind": "shuffler", "protocol": "two_server", "minimum_clients": 2},
            "sees only the messages without their senders, and the models, those who run",
            "trusted not to work together",
        ),
    ],
)
def test_a_protocol_between_machines_is_no_simulation(
    record: RunRecord, channel: dict[str, Any], observer: str, described: str
) -> None:
    changes = {**CLIENT_LEVEL, "channel": channel, "runtime": {"backend": "flower"}}
    real = dataclasses.replace(record, header={**record.header, "sampling_grade": "exact"})
    found = _stated(real, changes, channel=described, local_epsilon=9.0)
    assert observer in found.protected
    assert "not against the server" not in found.protected
    assert described in found.assumes
    assert "is simulated, not a protocol" not in found.assumes
    assert "an observer of every message and its sender has epsilon 9.0000" in found.assumes


def test_an_infinite_local_epsilon_is_told(record: RunRecord) -> None:
    changes = {**CLIENT_LEVEL, "channel": {"kind": "shuffler", "minimum_clients": 2}}
    found = _stated(record, changes, local_epsilon=None)
    assert "every message and its sender has no finite epsilon" in found.assumes


def test_budgets_are_told_as_they_are(record: RunRecord) -> None:
    row = {"budget": 4.0, "delta": 1e-5, "epsilon": 3.0, "ran_out": False}
    assert " of a budget of 4 at delta 1e-05" in _stated(record, {}, [row]).spent
    elsewhere = _stated(record, {}, [{**row, "delta": 1e-6}]).spent
    assert "each client's budget is epsilon 4 at delta 1e-06" in elsewhere
    assert " of a budget" not in elsewhere
    several = _stated(record, {}, [row, {**row, "budget": 1.0, "ran_out": True}]).spent
    assert "(epsilon 1 at delta 1e-05, 4 at delta 1e-05), and 1 of 2 have none left" in several
    assert "no budget was set" in _stated(record, {}, [{**row, "budget": None}]).spent
    halted = _stated(record, {}, [row], halted="too few clients").spent
    assert "after 2 of 2 rounds (the run was halted)" in halted


def test_a_large_epsilon_is_called_weak(record: RunRecord) -> None:
    found = statement_of(record, 20.0, [])
    assert "an epsilon of 12 or more guarantees very little" in found.spent


def test_without_a_finite_epsilon_nothing_is_protected(record: RunRecord) -> None:
    bare = dataclasses.replace(record, header={**record.header, "sampling_grade": "none"})
    found = statement_of(bare, None, [])
    assert found.protected.startswith("Nothing is protected by this run: clients' values are sent")
    assert "epsilon 4" not in " ".join(found.sentences())
    infinite = statement_of(record, None, [{"epsilon": None}, {"epsilon": 1.0}])
    assert "no accountant proves a finite epsilon at delta 1e-05 for 1 of 2 clients" in (
        infinite.protected
    )


def test_a_federation_is_told_by_the_servers_count(record: RunRecord) -> None:
    found = _stated(record, {"runtime": {"backend": "flower"}})
    assert "by the server's count" in found.spent
    assert "in the site's own ledger" in found.spent


def test_an_unfinished_run_says_so(folder: Path, tmp_path: Path) -> None:
    protected, spent, assumes = run_data(make_unfinished(tmp_path / "a", folder, rounds=1))[
        "statement"
    ]
    assert "This run protects one training sample" in protected
    assert "(the run has not ended)" in spent
    assert "the number of samples of each client is public" in assumes


def test_the_page_opens_with_the_sentences(folder: Path, tmp_path: Path) -> None:
    alone = report_of([folder])
    page = render(alone)
    assert page.index('class="statement"') < page.index('class="tiles"')
    both = report_of([folder, make_run(tmp_path / "other", name="other", rounds=1)])
    protected, spent, adds_up = both["statement"]
    assert protected.startswith("Runs small, other each protect one training sample")
    assert "Run small: The client" in spent
    assert "Run other: The client" in spent
    assert "adds up" in adds_up
    text = render(both)
    assert text.count('class="statement"') == 3
    assert text.index('class="statement"') < text.index('aria-label="Runs side by side"')


def test_a_run_without_noise_protects_nothing_before_its_first_charge(record: RunRecord) -> None:
    header = {**record.header, "sampling_grade": "none"}
    found = statement_of(dataclasses.replace(record, header=header), 0.0, [])
    assert found.protected.startswith("Nothing is protected")


def test_a_charge_that_costs_next_to_no_epsilon_is_a_charge(record: RunRecord) -> None:
    row = {"budget": 4.0, "delta": 1e-5, "epsilon": 0.0, "ran_out": False, "rounds": 1}
    assert "charged epsilon 0.0000" in statement_of(record, 0.0, [row]).spent
