"""Clients whose certificate was renewed, or who were admitted again with a new key."""

import contextlib
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import numpy as np
import pytest
from two_servers import CLOSES, FOREVER, OPENS, World, codes_of

from sottovoce.core.errors import WireError
from sottovoce.deployment.operators.application import HttpRefusal
from sottovoce.deployment.operators.desk import Desk
from sottovoce.deployment.operators.routes import Route
from sottovoce.protocol.secure.roster import TrustKey

NAME = "client-000"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with contextlib.closing(World(tmp_path)) as made:
        yield made


def sent(world: World, desk: Desk, valid_until: int) -> bytes | HttpRefusal:
    """What a relay answers to a client that sends its certificate when it is asked for it."""
    codes = codes_of(np.random.default_rng(0))
    report = world.sum_report(NAME, world.relay.announcement(), codes)
    (answer,) = desk.reports([report], OPENS)
    if not isinstance(answer, HttpRefusal) or answer.status is not HTTPStatus.UNAUTHORIZED:
        return answer
    certificate = world.admission(NAME, valid_until=valid_until).to_bytes()
    desk.answer(Route.REGISTER, certificate, OPENS)
    return desk.reports([report], OPENS)[0]


def test_a_certificate_that_expires_is_asked_for_again(world: World) -> None:
    world.relay.register(world.admission(NAME, valid_until=CLOSES - 1).to_bytes(), OPENS)
    world.announce()
    assert sent(world, Desk(world.relay), FOREVER) == b""


def test_a_lost_key_does_not_keep_out_a_client_that_was_admitted_again(world: World) -> None:
    lost = world.admission(NAME, valid_until=2 * FOREVER).to_bytes()
    world.relay.register(lost, OPENS)
    world.keys[NAME] = TrustKey.generate()  # Both operators have removed and admitted it.
    world.announce()
    desk = Desk(world.relay)
    assert sent(world, desk, FOREVER) == b""
    with pytest.raises(WireError, match="not the one on the operator's list"):
        world.relay.register(lost, OPENS)


def test_a_client_that_was_removed_stays_out(world: World) -> None:
    world.relay.register(world.admission(NAME).to_bytes(), OPENS)
    world.removed["relay"].add(NAME)
    world.announce()
    refused = sent(world, Desk(world.relay), FOREVER)
    assert isinstance(refused, HttpRefusal)
    assert "is not on the operator's list" in str(refused)
