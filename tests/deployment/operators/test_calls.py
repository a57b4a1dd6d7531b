"""Requests to a relay: whom they trust, and what happens without an answer."""

from pathlib import Path

import pytest
from tls import serving
from two_operators import create_operators

from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.machines.address import Address, free_port
from sottovoce.deployment.operators.calls import RelayCalls
from sottovoce.deployment.operators.routes import Route


def test_a_server_with_another_certificate_is_not_the_relay(tmp_path: Path) -> None:
    pinned = create_operators(tmp_path / "one").relay
    other = create_operators(tmp_path / "two").relay
    with serving(other.certificate, other.certificate_key) as port:
        address = Address(host="localhost", port=port)
        with (
            RelayCalls(address, pinned.card.certificate) as calls,
            pytest.raises(DeploymentError, match="not the relay whose certificate is pinned"),
        ):
            calls.ask(Route.HEALTH)


def test_a_relay_that_does_not_answer_is_named_with_what_to_do(tmp_path: Path) -> None:
    address = Address(host="localhost", port=free_port())
    with (
        RelayCalls(address, create_operators(tmp_path).relay.card.certificate) as calls,
        pytest.raises(DeploymentError, match=f"{address} does not answer.*try again"),
    ):
        calls.ask(Route.HEALTH)
