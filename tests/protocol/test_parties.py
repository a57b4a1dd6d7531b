"""`Client` and `Server`: a loop of one's own, and every way to leave it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce import (
    Adjacency,
    Budget,
    Client,
    GaussHermite,
    L2Ball,
    Ledger,
    NoPrivacy,
    Server,
    calibrate,
    spend,
)
from sottovoce.core.errors import (
    BudgetExhaustedError,
    DomainError,
    LedgerError,
    ParameterError,
    UnknownNameError,
    WireError,
)

# Four levels and more than a dozen coordinates: the Bellman accountant takes seconds for fewer.
TARGET: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-5, "rounds": 3, "dimension": 16}
MECHANISM = calibrate("gauss_hermite", levels=4, **TARGET)
BUDGET = Budget(epsilon=2.0, delta=1e-5)
UPDATE = np.full((2, 8), 0.1)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "books.sqlite", create=True)


def test_a_calibrated_loop_spends_its_budget_and_no_more(ledger: Ledger) -> None:
    ada = Client("ada", MECHANISM, ledger=ledger, budget=BUDGET)
    bob = Client("bob", MECHANISM, ledger=ledger, budget=BUDGET)
    server = Server(MECHANISM, clients=["ada", "bob"])
    for number in (1, 2, 3):
        server.open_round(number)
        assert server.round == number
        for client in (ada, bob):
            server.receive(client.name, client.send(UPDATE, round=number))
        assert server.received == 2
        assert server.mean().shape == (16,)
    spent = ledger.spent("ada", 1e-5)
    assert spent is not None
    assert spent.epsilon == spend(MECHANISM, rounds=3, delta=1e-5).epsilon <= 2.0
    with pytest.raises(BudgetExhaustedError, match="above the budget of 2"):
        ada.send(UPDATE, round=4)
    assert ledger.num_charges == 6


def test_a_round_that_was_sent_is_sent_again_and_charged_once(ledger: Ledger) -> None:
    first = Client("ada", MECHANISM, ledger=ledger, budget=BUDGET).send(UPDATE, round=1)
    again = Client("ada", MECHANISM, ledger=ledger)  # after a crash: the budget is in the ledger
    assert again.send(-UPDATE, round=1) == first
    assert again.send(UPDATE, round=2) != first
    assert ledger.num_charges == 2
    other = calibrate("gauss_hermite", levels=2, **TARGET)
    with pytest.raises(LedgerError, match="sent under other parameters"):
        Client("ada", other, ledger=ledger).send(UPDATE, round=1)


@pytest.mark.parametrize("update", [np.full(16, np.nan), np.zeros(17), [1] * 16, 0.5])
def test_an_update_that_is_refused_costs_nothing(ledger: Ledger, update: object) -> None:
    with pytest.raises(DomainError):
        Client("ada", MECHANISM, ledger=ledger).send(update, round=1)
    with pytest.raises(ParameterError, match="round must be"):
        Client("ada", MECHANISM, ledger=ledger).send(UPDATE, round=0)
    assert ledger.num_charges == 0


def test_the_mean_is_weighted_rotated_back_and_clipped(ledger: Ledger) -> None:
    mechanism = NoPrivacy(input_domain=L2Ball(dimension=8, radius=1.0))
    server = Server(mechanism, clients={"ada": 3.0, "bob": 1.0}, rotation="on")
    unit = np.eye(8)[0]
    for name, update in (("ada", unit * 0.5), ("bob", unit * 9.0)):
        client = Client(name, mechanism, ledger=ledger, rotation="on")
        server.receive(name, client.send(update, round=1))
    np.testing.assert_allclose(server.mean(), unit * (3 * 0.5 + 1.0) / 4, atol=1e-5)


def test_the_server_takes_one_message_of_the_open_round_from_each_client(ledger: Ledger) -> None:
    client = Client("ada", MECHANISM, ledger=ledger)
    server = Server(MECHANISM, clients=["ada", "bob"])
    with pytest.raises(WireError, match="no message has arrived in round 1"):
        server.mean()
    message = client.send(UPDATE, round=1)
    for name, sent in (("eve", message), ("bob", message), ("ada", message[:-1])):
        with pytest.raises(WireError):
            server.receive(name, sent)
    with pytest.raises(WireError, match="a message must be bytes, got str"):
        server.receive("ada", "bits")  # type: ignore[arg-type]
    server.receive("ada", message)
    with pytest.raises(WireError, match="has answered round 1 already"):
        server.receive("ada", message)
    server.open_round(2)
    with pytest.raises(WireError):
        server.receive("ada", message)
    with pytest.raises(ParameterError, match="round 1 is over, round 2 is open"):
        server.open_round(1)
    for run, rotation in (("another", "auto"), ("own-loop", "off")):
        elsewhere = Server(MECHANISM, clients=["ada"], run=run, rotation=rotation)  # type: ignore[arg-type]
        with pytest.raises(WireError):
            elsewhere.receive("ada", message)


@pytest.mark.parametrize("clients", ["ada", [], {}, ["ada", "ada"], [""], {"ada": -1.0}])
def test_clients_are_several_names(clients: Any) -> None:
    with pytest.raises(ParameterError):
        Server(MECHANISM, clients=clients)


def test_a_budget_says_what_is_charged(ledger: Ledger) -> None:
    budget = Budget(epsilon=9.0, delta=1e-5, adjacency="replace_one")  # type: ignore[arg-type]
    assert budget.adjacency is Adjacency.REPLACE_ONE
    client = Client("ada", MECHANISM, ledger=ledger, budget=budget)
    client.send(UPDATE, round=1)
    ((event, _),) = ledger.history("ada")
    assert event.adjacency is Adjacency.REPLACE_ONE
    with pytest.raises(ParameterError, match="adjacency is 'zero-out', but the client's budget"):
        Client("ada", MECHANISM, ledger=ledger, adjacency="zero-out")
    with pytest.raises(UnknownNameError, match="did you mean 'zero-out'"):
        Client("bob", MECHANISM, ledger=ledger, adjacency="zero out")
    with pytest.raises(UnknownNameError, match="unknown unit 'person'"):
        Budget(epsilon=1.0, delta=1e-5, unit="person")  # type: ignore[arg-type]


def test_one_record_s_privacy_is_not_charged_to_a_whole_client(ledger: Ledger) -> None:
    per_record = calibrate("gauss_hermite", levels=2, records=10, **TARGET)
    with pytest.raises(ParameterError, match="hides only one of 10 records"):
        Client("ada", per_record, ledger=ledger, budget=BUDGET)
    Client("ada", per_record, ledger=ledger).send(UPDATE, round=1)
    assert [row["unit"] for row in ledger.rows()] == ["sample"]


def test_a_whole_update_is_not_charged_as_one_sample_s_under_zero_out(ledger: Ledger) -> None:
    """One sample may turn the update around: twice the clipping norm, which zero-out halves."""
    budget = Budget(epsilon=2.0, delta=1e-5, unit="sample")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="one sample can move it from one side"):
        Client("ada", MECHANISM, ledger=ledger, budget=budget)
    assert ledger.num_charges == 0
    kept = Budget(epsilon=9.0, delta=1e-5, unit="sample", adjacency="replace-one")  # type: ignore[arg-type]
    Client("ada", MECHANISM, ledger=ledger, budget=kept).send(UPDATE, round=1)


def test_a_domain_of_others_is_named_where_the_cost_rests_on_it() -> None:
    class Small(L2Ball):
        __slots__ = ()

    domain = Small(dimension=16, radius=1.0)
    mechanism = GaussHermite(input_domain=domain, levels=2, noise_multiplier=5.0)
    assert "plug-in domain Small" in (spend(mechanism, delta=1e-5).assumes or "")


@pytest.mark.parametrize(
    ("what", "given"), [("mechanism", "gauss_hermite"), ("ledger", "a.sqlite"), ("budget", 2.0)]
)
def test_what_a_client_needs_is_said_by_name(ledger: Ledger, what: str, given: Any) -> None:
    parts: dict[str, Any] = {"mechanism": MECHANISM, "ledger": ledger, "budget": BUDGET}
    with pytest.raises(ParameterError, match=f"{what} must be a "):
        Client("ada", **parts | {what: given})
    if what == "mechanism":
        with pytest.raises(ParameterError, match="mechanism must be a "):
            Server(given, clients=["ada"])
