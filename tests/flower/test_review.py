"""Defects that a reviewer found: each test failed once."""

import asyncio
import dataclasses
import math
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from signed_calls import signed_headers
from starlette.requests import Request

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import AdjacencyMismatchError, DeploymentError, PolicyError
from sottovoce.core.randomness import SystemRandomness
from sottovoce.deployment.machines.address import Address
from sottovoce.deployment.machines.federation import create_federation
from sottovoce.deployment.machines.limited_server import Connections
from sottovoce.deployment.machines.site_folder import SiteFolder, create_rehearsal_sites
from sottovoce.deployment.machines.site_signatures import SiteKeys
from sottovoce.deployment.policy import Policy, Terms
from sottovoce.deployment.site import RoundRequest, Site
from sottovoce.flower.gate import GateLimits, GateState, SiteCalls, Traffic, _forward, gate
from sottovoce.flower.node import keep_node
from sottovoce.ledger.ledger import LEDGER_NAME, Ledger
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.privacy.accounting import privacy_spent
from sottovoce.privacy.events import Repeated
from sottovoce.protocol.channels.channel import Direct
from sottovoce.protocol.plan import ClientPlan, RoundPlan

BALL = L2Ball(dimension=16, radius=1.0)
ONE_BIT = GaussHermite(input_domain=BALL, levels=2, noise_multiplier=5.0)
EVENT = ONE_BIT.privacy(Adjacency.ZERO_OUT)
POLICY = Policy(
    mechanisms=("gauss_hermite",),
    level=Unit.CLIENT,
    adjacency=Adjacency.ZERO_OUT,
    epsilon_per_round=10.0,
    epsilon_total=privacy_spent(Repeated(event=EVENT, count=2), 1e-6).epsilon,
    delta=1e-6,
    smallest_cohort=3,
)


def a_site(folder: Path, name: str, **changes: Any) -> Site:
    return Site(
        name=name, policy=dataclasses.replace(POLICY, **changes), ledger=folder / LEDGER_NAME
    )


def answer(site: Site, number: int, unit: Unit = Unit.CLIENT) -> list[bytes]:
    part = ClientPlan(client=site.name, mechanism=ONE_BIT, weight=1.0)
    plan = RoundPlan(
        run="run", round=number, unit=unit, adjacency=Adjacency.ZERO_OUT, clients=(part,)
    )
    asked = RoundRequest(plan=plan, part=part, cohort=3, uplinks=1, rounds=2)
    return site.answer(asked, SystemRandomness(), lambda: [np.zeros(16)], keep_from=number)


# -- one account, whatever the site is called ----------------------------------------------------


def test_a_site_under_another_name_has_the_same_account(tmp_path: Path) -> None:
    for number in (1, 2):
        answer(a_site(tmp_path, "ada"), number)
    with pytest.raises(PolicyError, match="'epsilon_total' is"):
        answer(a_site(tmp_path, "clinic-3"), 3)
    with Ledger(tmp_path / LEDGER_NAME) as ledger:
        assert ledger.num_charges == 2


def test_charges_of_another_unit_under_another_name_do_not_add_up(tmp_path: Path) -> None:
    answer(a_site(tmp_path, "ada"), 1)
    renamed = a_site(tmp_path, "clinic-3", level=Unit.SAMPLE)
    with pytest.raises(AdjacencyMismatchError, match="accounted per client"):
        answer(renamed, 2, Unit.SAMPLE)


def test_a_ledger_that_is_gone_is_not_begun_anew(tmp_path: Path) -> None:
    address = Address.parse("127.0.0.1:9")
    federation = create_federation(tmp_path / "fed", address=address, sites=["ada"])
    create_rehearsal_sites(federation)
    site = SiteFolder.read(tmp_path / "fed" / "sites" / "ada")
    assert site.ledger_problem() is None
    (site.folder / LEDGER_NAME).unlink()
    with pytest.raises(DeploymentError, match=r"ledger\.sqlite, with 0 charges, is missing"):
        keep_node(site, on_ready=lambda _: None)
    assert not (site.folder / LEDGER_NAME).exists()


# -- what a server claims ------------------------------------------------------------------------


def test_a_cohort_that_is_no_number_is_too_small() -> None:
    terms = Terms(
        mechanism="gauss_hermite",
        level=Unit.CLIENT,
        adjacency=Adjacency.ZERO_OUT,
        channel=Direct(),
        cohort=math.nan,  # type: ignore[arg-type]  # JSON, as Python reads it, has NaN
        grade="system",
    )
    with pytest.raises(PolicyError, match="'smallest_cohort' is 3"):
        POLICY.check_terms(terms)


# -- the gate ------------------------------------------------------------------------------------


def test_a_call_that_is_cut_off_is_no_error_of_the_gates(tmp_path: Path) -> None:
    address, folder = Address(host="127.0.0.1", port=9443), tmp_path / "federation"
    federation = create_federation(folder, address=address, sites=["a"])
    create_rehearsal_sites(federation)
    keys, limits = SiteKeys(folder), GateLimits()
    door = GateState(
        keys=keys,
        calls=SiteCalls(federation.replies_due_folder, keys, limits),
        connections=Connections(limits),
        traffic=Traffic(),
    )
    application = gate("localhost:1", str(federation.authority), door)
    signed = signed_headers(folder / "sites" / "a" / "node.key") | {"content-length": "1000"}
    headers = [(name.encode(), value.encode()) for name, value in signed.items()]

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def forwarded() -> int:
        link = httpx.MockTransport(lambda _: httpx.Response(200))
        async with httpx.AsyncClient(transport=link, base_url="https://link") as client:
            path = "/v1/fleet/pull-messages"
            scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
            request = Request({**scope, "app": application, "state": {"client": client}}, gone)
            return (await _forward(request)).status_code

    assert asyncio.run(forwarded()) == 400
