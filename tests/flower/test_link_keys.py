"""Which sites' keys Flower's link knows, and what becomes of a slip in the list of sites."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from sottovoce.core.errors import ConfigError, DeploymentError
from sottovoce.deployment.machines.address import Address
from sottovoce.deployment.machines.federation import Federation, create_federation
from sottovoce.deployment.machines.site_folder import create_rehearsal_sites
from sottovoce.deployment.machines.submitted_runs import rounds_done
from sottovoce.flower.app_server import serve
from sottovoce.flower.control import Control, NodeStatus
from sottovoce.flower.link import keep_link, register_sites


class _Link(Control):
    """Flower's link as it treats keys: one that was unregistered is never taken again."""

    def __init__(self, *, burned: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self.keys: dict[bytes, str] = {}
        self.burned = burned

    def nodes(self) -> list[NodeStatus]:
        return [
            NodeStatus(name=name, node_id=1, public_key=key, state="online")
            for key, name in self.keys.items()
        ]

    def register(self, name: str, public_key: bytes) -> int:
        if name in self.burned or public_key in self.keys:
            raise DeploymentError("the link refused: Public key already in use.")
        self.keys[public_key] = name
        return 1

    def unregister(self, node_id: int) -> None:
        raise AssertionError("a key that is unregistered is lost")


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    address = Address(host="127.0.0.1", port=9443)
    made = create_federation(tmp_path / "fed", address=address, sites=["a", "b"])
    create_rehearsal_sites(made)
    return made


def test_a_slip_in_the_list_of_sites_costs_no_site_its_key(federation: Federation) -> None:
    link = _Link()
    assert register_sites(federation, link) == []
    assert register_sites(dataclasses.replace(federation, sites=("a", "x")), link) == []
    assert register_sites(federation, link) == []
    assert sorted(link.keys.values()) == ["a", "b"]


def test_one_key_that_is_not_taken_leaves_the_other_sites_in(federation: Federation) -> None:
    link = _Link(burned={"a"})
    [told] = register_sites(federation, link)
    assert "the key of 'a' was not accepted" in told
    assert "the other sites can" in told
    assert "'sottovoce deploy join'" in told
    assert list(link.keys.values()) == ["b"]


def test_a_link_for_no_site_does_not_start(federation: Federation) -> None:
    nobody = dataclasses.replace(federation, sites=())
    with pytest.raises(DeploymentError, match="'sites' is empty, so no site could join; name"):
        keep_link(nobody, on_ready=lambda _: None)
    assert list(federation.link_folder.iterdir()) == []


def test_a_run_of_a_federation_without_keys_believes_no_name(federation: Federation) -> None:
    dataclasses.replace(federation, sites=()).write()
    config: dict[str, Any] = {
        "question": "{}",
        "out": str(federation.folder / "out"),
        "sites": str(federation.folder / "federation.toml"),
    }
    with pytest.raises(ConfigError, match="has a key, so no site can be asked"):
        serve(None, config)  # type: ignore[arg-type]


def test_a_question_that_was_answered_has_one_round_of_one(tmp_path: Path) -> None:
    assert rounds_done(tmp_path) == 0
    (tmp_path / "estimate.json").touch()
    assert rounds_done(tmp_path) == 1
