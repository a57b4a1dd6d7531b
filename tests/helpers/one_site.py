"""A site for whole clients, and what it is asked: one vector by one mechanism."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball, Vector
from sottovoce.core.randomness import Randomness, SystemRandomness
from sottovoce.deployment.policy import Policy
from sottovoce.deployment.site import RoundRequest, Site
from sottovoce.ledger.ledger import Ledger
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.protocol.plan import ClientPlan, RoundPlan

BALL = L2Ball(dimension=32, radius=1.0)
FOUR = GaussHermite(input_domain=BALL, levels=4, noise_multiplier=8.0)
VALUES = np.linspace(-0.1, 0.1, 32)
KEYS = SystemRandomness()
POLICY = Policy(
    mechanisms=("gauss_hermite",),
    level=Unit.CLIENT,
    adjacency=Adjacency.ZERO_OUT,
    epsilon_per_round=100.0,
    epsilon_total=500.0,
    delta=1e-6,
    smallest_cohort=1,
)
TABLE = {  # [policy] of a site's file
    "mechanisms": ["gauss_hermite"],
    "level": "client",
    "adjacency": "zero-out",
    "epsilon_per_round": 1.0,
    "epsilon_total": 10.0,
    "delta": 1e-6,
    "smallest_cohort": 5,
}


def a_site(folder: Path, **changes: Any) -> Site:
    policy = dataclasses.replace(POLICY, **changes)
    return Site(name="ada", policy=policy, ledger=folder / "ledger.sqlite")


def asked(
    number: int = 1,
    *,
    run: str = "run",
    client: str = "ada",
    mechanism: Mechanism = FOUR,
    uplinks: int = 1,
    cohort: int = 10,
    rounds: int = 1,
    **plan: Any,
) -> RoundRequest:
    part = ClientPlan(client=client, mechanism=mechanism, weight=1.0)
    terms = {"unit": Unit.CLIENT, "adjacency": Adjacency.ZERO_OUT, **plan}
    whole = RoundPlan(run=run, round=number, clients=(part,), **terms)
    return RoundRequest(plan=whole, part=part, cohort=cohort, uplinks=uplinks, rounds=rounds)


def answered(
    site: Site, request: RoundRequest, keys: Randomness = KEYS, **more: Any
) -> list[bytes]:
    vectors = [VALUES] * request.uplinks
    return site.answer(request, keys, lambda: vectors, **{"keep_from": request.plan.round, **more})


class Reached(Exception):
    """The site trained."""


def never() -> Sequence[Vector]:
    raise Reached


def charges(site: Site) -> list[dict[str, object]]:
    with Ledger(site.ledger) as ledger:
        assert ledger.verify() == []
        return list(ledger.rows())
