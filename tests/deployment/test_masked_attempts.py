"""What a server may make sites do by opening, repeating, delaying and mixing up attempts."""

import dataclasses
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from training_sites import NAMES, MaskedPost, again, opening, pin, run_masked, training_sites

from sottovoce.core.errors import DeploymentError, PolicyError, SottovoceError, WireError
from sottovoce.deployment import site_training
from sottovoce.deployment.masked_orders import Step
from sottovoce.deployment.post import OutgoingRequest
from sottovoce.federated.rounds import compute_finite_uplinks
from sottovoce.ledger.ledger import Ledger

ME = NAMES[1]


class Killed(BaseException):
    """The server's process ends."""


def attempts_charged(folder: Path, name: str) -> list[tuple[int, int]]:
    """Return (round, number of the attempt) of a site's charges."""
    with Ledger(folder / name / "ledger.sqlite") as ledger:
        assert ledger.verify() == []
        return [tuple(row) for row in ledger._db.all("SELECT round, attempt FROM charges")]


def trainings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets an entry whenever a site trains."""
    real = compute_finite_uplinks
    found: list[int] = []

    def count(*given: Any, **named: Any) -> Any:
        found.append(1)
        return real(*given, **named)

    monkeypatch.setattr(site_training, "compute_finite_uplinks", count)
    return found


def stopping_at(action: str) -> Any:
    """Return a change of requests that ends the server's process at a step."""

    def change(_name: str, request: OutgoingRequest) -> OutgoingRequest:
        if isinstance(request, Step) and request.action == action:
            raise Killed
        return request

    return change


@pytest.mark.parametrize(("action", "charged"), [("contribute", 1), ("sign", 2)])
def test_a_round_whose_server_died_is_done_again_under_a_charge_of_its_own(
    tmp_path: Path, action: str, charged: int
) -> None:
    roster, sites = training_sites(tmp_path)
    post = MaskedPost(sites, stopping_at(action))
    with pytest.raises(Killed):
        run_masked(tmp_path / "run", post, roster)
    second = MaskedPost(sites, exchanges=post.exchanges)
    run_masked(tmp_path / "run", second, roster, resume=True)
    assert second.refusals == []
    for name in NAMES:
        assert second.of(name, "answer").attempt == 2
        assert attempts_charged(tmp_path, name) == [(1, 0), (1, 1)][2 - charged :]


def test_attempts_beyond_the_planned_rounds_and_retries_are_refused(tmp_path: Path) -> None:
    roster, sites = training_sites(tmp_path, retries=1)
    post = MaskedPost(sites)
    run_masked(tmp_path / "run", post, roster)
    order = opening(post, ME)
    post.ask(ME, again(order, attempt=2))
    with pytest.raises(PolicyError, match="1 'retries'"):
        post.ask(ME, again(order, attempt=3))


def test_an_order_that_is_refused_ends_no_attempt(tmp_path: Path) -> None:
    """A copy of the opening order, or one with other terms, arrives in the middle."""
    roster, sites = training_sites(tmp_path)
    refused: list[str] = []

    def change(name: str, request: OutgoingRequest) -> OutgoingRequest:
        if name == ME and isinstance(request, Step):
            order = opening(post, ME)
            other = again(order, attempt=2, mechanism={**order.mechanism, "noise_multiplier": 0.5})
            for copy in (order, other, again(order, attempt=2, client=NAMES[0])):
                with pytest.raises(SottovoceError) as caught:
                    post.ask(ME, copy)
                refused.append(str(caught.value))
        return request

    post = MaskedPost(sites, change)
    run_masked(tmp_path / "run", post, roster)
    assert len(refused) == 4 * 3
    assert post.refusals == []
    assert attempts_charged(tmp_path, ME) == [(1, 0)]


def test_nothing_is_trained_for_a_box_that_is_wrong_or_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long it takes depends on the data, and it would be free of charge."""
    roster, sites = training_sites(tmp_path)
    trained = trainings(monkeypatch)
    post = MaskedPost(sites, stopping_at("contribute"))
    with pytest.raises(Killed):
        run_masked(tmp_path / "run", post, roster)
    order = opening(post, ME)
    step = Step(
        run=order.run,
        client=ME,
        cohort=3,
        round=1,
        attempt=1,
        action="contribute",
        content=b"no box",
    )
    with pytest.raises(WireError, match="expected a field of"):
        post.ask(ME, step)
    post.ask(ME, again(order, attempt=2))
    with pytest.raises(WireError, match="expected the message 'list', got 'box'"):
        post.ask(ME, dataclasses.replace(step, attempt=2))
    assert trained == []
    assert attempts_charged(tmp_path, ME) == []


def test_the_same_box_again_gets_the_same_bytes_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roster, sites = training_sites(tmp_path)
    post = MaskedPost(sites, stopping_at("sign"))
    with pytest.raises(Killed):
        run_masked(tmp_path / "run", post, roster)
    trained = trainings(monkeypatch)
    box = post.of(ME, "contribute")
    assert post.ask(ME, box) == post.ask(ME, box)
    assert trained == []
    assert attempts_charged(tmp_path, ME) == [(1, 0)]


@pytest.mark.parametrize("action", ["share", "contribute", "sign", "answer"])
@pytest.mark.parametrize("what", ["roster", "colluders"])
def test_what_a_site_decides_about_its_trust_holds_for_attempts_that_are_open(
    tmp_path: Path, action: str, what: str
) -> None:
    """A server may keep an attempt open until long after a key was stolen and replaced."""
    roster, sites = training_sites(tmp_path)

    def change(name: str, request: OutgoingRequest) -> OutgoingRequest:
        if name == ME and isinstance(request, Step) and request.action == action:
            policy, trust = sites[ME].policy, sites[ME].trust
            if what == "roster":
                trust = pin(tmp_path, version=2)[1][ME]
            else:
                policy = dataclasses.replace(policy, colluders=2)  # type: ignore[type-var]
            sites[ME] = dataclasses.replace(sites[ME], policy=policy, trust=trust)
        return request

    post = MaskedPost(sites, change)
    with pytest.raises(DeploymentError, match="none of 1 rounds"):
        run_masked(tmp_path / "run", post, roster)
    assert [name for name, _ in post.refusals][:1] == [ME]
    assert "'colluders'" in post.refusals[0][1]
    assert attempts_charged(tmp_path, ME) == [(1, 0)] * (action in ("sign", "answer"))


def test_a_server_cannot_fill_a_sites_disk_with_terms_of_runs(tmp_path: Path) -> None:
    roster, sites = training_sites(tmp_path)
    post = MaskedPost(sites)
    run_masked(tmp_path / "run", post, roster)
    order = opening(post, ME)
    post.ask(ME, again(order, run="other", spec={**order.spec, "name": "n" * 2**20}))
    with sqlite3.connect(sites[ME].ledger) as file:
        rows = file.execute("SELECT run, length(terms) FROM fixed_terms").fetchall()
    assert sorted(rows) == sorted([(order.run, 64), ("other", 64)])


@pytest.mark.parametrize("content", ["not = a roster", "]", None])
def test_what_is_wrong_with_a_sites_roster_is_only_logged(
    tmp_path: Path, content: str | None
) -> None:
    roster, sites = training_sites(tmp_path)
    file = tmp_path / ME / "roster.toml"
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    post = MaskedPost(sites)
    with pytest.raises(DeploymentError, match="none of 1 rounds"):
        run_masked(tmp_path / "run", post, roster)
    order = opening(post, ME)
    with pytest.raises(SottovoceError) as caught:
        post.ask(ME, again(order, attempt=2))
    assert isinstance(caught.value, PolicyError)
    assert str(tmp_path) not in str(caught.value)
