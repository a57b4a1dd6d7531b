"""What a site pins, and what it refuses to pin whatever the operator sends."""

import dataclasses
from pathlib import Path

import pytest

from sottovoce.core.errors import DeploymentError
from sottovoce.deployment.machines.trust_files import (
    KEY_NAME,
    ROSTER_NAME,
    create_trust_key,
    pin_roster,
    read_roster,
    read_trust_key,
    write_roster,
)
from sottovoce.protocol.secure.roster import Roster, TrustKey


@pytest.fixture
def roster(tmp_path: Path) -> Roster:
    """The second version of a roster, of which a site has its key and has pinned nothing yet."""
    create_trust_key(tmp_path, name="ada")
    (tmp_path / "site.toml").write_text('name = "ada"\n')
    own = read_trust_key(tmp_path / KEY_NAME).public
    keys = {"ada": own, "bob": TrustKey.generate().public}
    return Roster(federation=b"f" * 16, version=2, keys=keys)


def pin(folder: Path, roster: Roster, digest: str | None = None) -> None:
    write_roster(folder / "sent.toml", roster)
    pin_roster(folder, "ada", folder / "sent.toml", digest or roster.digest.hex())


def pinned(folder: Path) -> tuple[str, bytes]:
    return (folder / "site.toml").read_text(), (folder / ROSTER_NAME).read_bytes()


def test_a_roster_is_pinned_and_a_newer_one_replaces_it(tmp_path: Path, roster: Roster) -> None:
    for version in (2, 2, 3):
        newer = dataclasses.replace(roster, version=version)
        pin(tmp_path, newer)
        assert read_roster(tmp_path / ROSTER_NAME) == newer
        assert f'roster_digest = "{newer.digest.hex()}"' in pinned(tmp_path)[0]


def test_an_older_roster_is_refused_although_its_digest_was_confirmed_once(
    tmp_path: Path, roster: Roster
) -> None:
    """A key in it may have been stolen and replaced."""
    pin(tmp_path, roster)
    before = pinned(tmp_path)
    with pytest.raises(DeploymentError, match="version 1, but this site has version 2"):
        pin(tmp_path, dataclasses.replace(roster, version=1))
    assert pinned(tmp_path) == before


def test_another_federation_or_a_damaged_file_keeps_nothing_from_being_pinned(
    tmp_path: Path, roster: Roster
) -> None:
    pin(tmp_path, roster)
    pin(tmp_path, dataclasses.replace(roster, federation=b"g" * 16, version=1))
    (tmp_path / ROSTER_NAME).write_text("damaged")
    pin(tmp_path, roster)
    assert read_roster(tmp_path / ROSTER_NAME) == roster


def test_a_roster_with_another_digest_or_without_the_sites_key_is_refused(
    tmp_path: Path, roster: Roster
) -> None:
    pin(tmp_path, roster)
    before = pinned(tmp_path)
    with pytest.raises(DeploymentError, match="do not use it"):
        pin(tmp_path, dataclasses.replace(roster, version=3), roster.digest.hex())
    stranger = dict(roster.keys) | {"ada": TrustKey.generate().public}
    with pytest.raises(DeploymentError, match="does not have this site's key"):
        pin(tmp_path, dataclasses.replace(roster, version=3, keys=stranger))
    assert pinned(tmp_path) == before


def test_a_table_that_was_edited_by_hand_leaves_all_files_as_they_are(
    tmp_path: Path, roster: Roster
) -> None:
    pin(tmp_path, roster)
    file = tmp_path / "site.toml"
    file.write_text(file.read_text().replace("[trust]", "[trust] # mine"))
    before = pinned(tmp_path)
    with pytest.raises(DeploymentError, match="edited by hand"):
        pin(tmp_path, dataclasses.replace(roster, version=3))
    assert pinned(tmp_path) == before
