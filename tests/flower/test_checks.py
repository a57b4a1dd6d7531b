"""`sottovoce deploy check` where parts are missing: each fails by itself, with a remedy."""

import base64
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import call
from ledger_files import make_version_2

from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.machines import readiness
from sottovoce.deployment.machines.address import Address, free_port
from sottovoce.deployment.machines.federation import Federation, create_federation
from sottovoce.deployment.machines.readiness import ReadinessCheck
from sottovoce.deployment.machines.site_folder import (
    SiteFolder,
    create_rehearsal_sites,
    move_ledger,
)
from sottovoce.deployment.site import Keys, warnings_of
from sottovoce.deployment.site_witness import key_name
from sottovoce.flower import checks, control
from sottovoce.flower.checks import check_federation, check_site
from sottovoce.flower.control import link_verdict
from sottovoce.flower.node import keep_node
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Release
from sottovoce.ledger.seal import create
from sottovoce.privacy.events import PureDp

pytest.importorskip("flwr")


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    """A rehearsal whose link is down."""
    address = Address(host="127.0.0.1", port=free_port())
    federation = create_federation(tmp_path / "fed", address=address, sites=["a"])
    create_rehearsal_sites(federation)
    return federation


@pytest.fixture
def site(federation: Federation) -> SiteFolder:
    return SiteFolder.read(federation.folder / "sites" / "a")


def by_name(found: list[ReadinessCheck]) -> dict[str, ReadinessCheck]:
    assert all(check.remedy for check in found if check.state == "FAILS")
    return {check.name: check for check in found}


def failing(found: list[ReadinessCheck]) -> set[str]:
    return {check.name for check in by_name(found).values() if check.state == "FAILS"}


def test_without_a_link_the_site_is_sound_and_the_rest_is_not_checked(site: SiteFolder) -> None:
    found = by_name(check_site(site))
    assert failing(list(found.values())) == {"port"}
    assert found["ledger"].detail == "0 charges, counted as epsilon 0.0000 of 10"
    assert found["host name"].state == "ok"
    for name in ("link's certificate", "gate", "clock", "key at the link"):
        assert (found[name].state, found[name].detail) == ("not checked", "needs 'port'")


def _alter(site: SiteFolder) -> None:
    with sqlite3.connect(site.folder / "ledger.sqlite") as database:
        database.execute("DROP TABLE charges")


def _add(text: str) -> Callable[[SiteFolder], None]:
    def add(site: SiteFolder) -> None:
        site.file.write_text(site.file.read_text() + text)

    return add


@pytest.mark.parametrize(
    ("harm", "name"),
    [
        (lambda site: (site.folder / "node.key").chmod(0o644), "key"),
        (lambda site: (site.folder / "node.key").unlink(), "key"),
        (lambda site: shutil.copy(site.folder / "node.key", site.folder / "node.pub"), "key"),
        (lambda site: (site.folder / "ledger.sqlite").unlink(), "ledger"),
        (_alter, "ledger"),
        (lambda site: (site.folder / "ca.crt").write_text("none"), "ca.crt"),
        (_add('[data]\ndataset = "csv:records.csv"\n'), "data"),
        (_add('[columns.age]\ncsv = "people.csv"\ncolumn = "age"\n'), "data"),
    ],
)
def test_what_is_missing_fails_alone(
    site: SiteFolder, harm: Callable[[SiteFolder], None], name: str
) -> None:
    harm(site)
    assert failing(check_site(site)) == {name, "port"}


def test_a_ledger_of_an_earlier_version_is_checked_and_left_without_a_seal(
    site: SiteFolder,
) -> None:
    path, seal = site.folder / "ledger.sqlite", site.folder / "ledger.seal"
    make_version_2(path)
    seal.unlink()
    before = path.read_bytes()
    found = by_name(check_site(site))["ledger"]
    assert found.state == "ok"
    assert found.detail.endswith("sealed at the node's next start")
    assert path.read_bytes() == before
    assert not seal.exists()
    assert site.ledger_problem() is None  # which is asked at the start
    assert seal.exists()


@pytest.mark.parametrize(
    ("key", "was", "now"), [("adjacency", "zero-out", "replace-one"), ("level", "sample", "client")]
)
def test_a_policy_of_another_kind_than_the_ledgers_charges_fails(
    site: SiteFolder, key: str, was: str, now: str
) -> None:
    release = Release(unit=Unit.SAMPLE, run="run", client="a", round=1, uplink=0)
    with Ledger(site.folder / "ledger.sqlite") as ledger:
        ledger.charge(release, 0, PureDp(epsilon=0.5, adjacency=Adjacency.ZERO_OUT))
    assert failing(check_site(site)) == {"port"}
    assert site.ledger_problem() is None
    text = site.file.read_text().replace(f'{key} = "{was}"', f'{key} = "{now}"')
    site.file.write_text(text.replace("epsilon_per_round = 2.0", "epsilon_per_round = 20.0"))
    found = by_name(check_site(site))["ledger"]
    assert found.state == "FAILS"
    assert f'{key} = "{was}" again' in found.detail
    with pytest.raises(DeploymentError, match=f'{key} = "{was}" again'):
        keep_node(site, on_ready=lambda _: None)
    assert any("which is smaller" in warning for warning in warnings_of(site.file))


def test_a_folder_whose_account_was_moved_says_where_it_is(
    site: SiteFolder, tmp_path: Path
) -> None:
    new = tmp_path / "new"
    new.mkdir()
    shutil.copy(site.file, new)
    create(new)
    move_ledger(site.folder, new)
    found = by_name(check_site(site))["ledger"]
    assert found.remedy.startswith(f"use {new}")
    for command in ("total", "log", "show"):
        shown = call("ledger", command, str(site.folder))
        assert shown.code == 2
        assert f"was moved to {new}" in shown.text
    (new / "ledger.sqlite").unlink()
    assert "'sottovoce ledger log' shows" in call("ledger", "total", str(new)).text


def test_a_key_with_a_password_is_refused_with_the_way_to_remove_it(site: SiteFolder) -> None:
    key, authority = site.folder / "node.key", site.folder / "ca.crt"
    header, *body, end = key.read_text().splitlines()
    content, plain = base64.b64decode("".join(body)), _openssh(b"none", b"none", b"")
    assert content.startswith(plain)
    public = content[len(plain) + 8 :][: int.from_bytes(content[len(plain) + 4 :][:4], "big")]
    one = b"\0\0\0\1"
    locked = _openssh(b"aes256-ctr", b"bcrypt", _texts(bytes(16)) + one) + one
    locked += _texts(public, bytes(160))
    key.write_text(f"{header}\n{base64.b64encode(locked).decode()}\n{end}\n")
    found = by_name(check_site(site))["key"]
    remove = "is protected by a password.*remove the password: ssh-keygen -p"
    assert found.state == "FAILS"
    assert re.search(remove, found.detail)
    for use in (
        lambda: key_name(Keys(private_key=key, authority=authority)),
        lambda: link_verdict(site.address, authority, key),
    ):
        with pytest.raises(DeploymentError, match=remove):
            use()


def _openssh(*texts: bytes) -> bytes:
    return b"openssh-key-v1\0" + _texts(*texts)


def _texts(*texts: bytes) -> bytes:
    return b"".join(len(text).to_bytes(4, "big") + text for text in texts)


def test_a_policy_that_is_not_filled_in_and_a_full_disk_fail(
    site: SiteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "_LEAST_FREE_BYTES", 2**80)
    site.file.write_text(site.file.read_text().replace("epsilon_total", "epsilon_totl"))
    found = by_name(check_site(site))
    assert "lacks epsilon_total and has the unknown key 'epsilon_totl'" in found["policy"].detail
    assert found["free disk"].state == "FAILS"


def test_an_operator_sees_keys_that_are_missing_or_open_and_what_a_killed_link_has_left(
    federation: Federation,
) -> None:
    assert failing(check_federation(federation)) == set()
    federation.public_key_path("a").unlink()
    federation.authority_key.chmod(0o644)
    records = federation.link_folder / "processes"
    records.mkdir()
    (records / "gate.json").write_text(json.dumps([[os.getpid(), "long ago", "another"]]))
    assert failing(check_federation(federation)) == {"private keys", "sites' keys"}


def test_a_clock_that_is_right_is_no_minus_zero(
    site: SiteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "clock_offset_seconds", lambda *_: -0.3)
    assert checks._clock(site.address, site.folder) == "+0 s from the link's"
