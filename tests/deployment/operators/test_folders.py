"""The operators' folders: cards, digests and admissions."""

import dataclasses
import time
from pathlib import Path

import pytest
from command_line import call
from two_operators import Operators, create_operators

from sottovoce.core import files
from sottovoce.core.errors import ConfigError, DeploymentError, OutputError
from sottovoce.deployment.operators.admission_file import AdmissionFile, admit
from sottovoce.deployment.operators.cards import PinnedOperators
from sottovoce.deployment.operators.device import DeviceFolder, RelayLink, create_device
from sottovoce.deployment.operators.folders import (
    CollectorFolder,
    RelayFolder,
    create_collector,
    create_relay,
)


@pytest.fixture
def operators(tmp_path: Path) -> Operators:
    return create_operators(tmp_path)


def test_both_operators_pin_the_same_keys(operators: Operators) -> None:
    assert operators.relay.operators == operators.collector.operators == operators.pinned
    assert operators.relay.signing_key.public == operators.pinned.keys.relay
    assert operators.relay.encryption_key.public == operators.pinned.keys.relay_hpke
    assert operators.collector.admission_key.public == operators.pinned.keys.collector_admission


def test_private_keys_are_readable_by_their_owner_only(operators: Operators) -> None:
    keys = [*operators.relay.folder.glob("*.key"), *operators.collector.folder.glob("*.key")]
    assert len(keys) == 6
    assert all(path.stat().st_mode & 0o077 == 0 for path in keys)


def test_a_key_more_or_less_changes_the_digest(operators: Operators, tmp_path: Path) -> None:
    other = create_operators(tmp_path / "other").pinned
    changes = [
        dataclasses.replace(operators.pinned.relay, certificate=other.relay.certificate),
        dataclasses.replace(operators.pinned.relay, signing_key=other.relay.signing_key),
    ]
    digests = {
        PinnedOperators(relay=card, collector=operators.pinned.collector).digest
        for card in (operators.pinned.relay, *changes)
    }
    assert len(digests) == 3


def test_a_relay_serves_one_collector(operators: Operators, tmp_path: Path) -> None:
    card = operators.relay.folder / "relay.pub"
    other = create_collector(tmp_path / "second", relay=card)
    with pytest.raises(DeploymentError, match="has pinned another collector"):
        operators.relay.pin(other.folder / "collector.pub")
    stranger = create_operators(tmp_path / "other").collector.folder / "collector.pub"
    with pytest.raises(ConfigError, match="different federations"):
        create_relay(tmp_path / "third", address=operators.relay.address).pin(stranger)


def test_a_card_of_the_other_operator_is_named_as_such(
    operators: Operators, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"relay\.pub is a relay's card; give the collector's"):
        operators.relay.pin(operators.relay.folder / "relay.pub")
    with pytest.raises(
        ConfigError, match=r"collector\.pub is a collector's card; give the relay's"
    ):
        create_collector(tmp_path / "second", relay=operators.collector.folder / "collector.pub")


def test_a_folder_may_be_given_as_text(operators: Operators) -> None:
    (device,) = operators.devices(1)
    assert DeviceFolder.read(str(device.folder)) == device
    assert RelayFolder.read(str(operators.relay.folder)) == operators.relay
    assert CollectorFolder.read(str(operators.collector.folder)) == operators.collector


def test_the_status_of_a_client_s_folder_is_that_of_check(operators: Operators) -> None:
    (device,) = operators.devices(1)
    shown = call("deploy", "status", str(device.folder))
    assert shown.code == 2
    assert "is the folder of a client of a relay" in shown.text.replace("\n", " ")
    assert "sottovoce deploy check" in shown.text


def test_folders_say_which_they_are(operators: Operators) -> None:
    with pytest.raises(ConfigError, match="deploy init-relay"):
        RelayFolder.read(operators.collector.folder)
    with pytest.raises(ConfigError, match="deploy init-collector"):
        CollectorFolder.read(operators.relay.folder)
    with pytest.raises(ConfigError, match="deploy enroll"):
        DeviceFolder.read(operators.relay.folder)


def test_an_operator_needs_two_honest_clients_and_counts_on_one_colluder(
    operators: Operators,
) -> None:
    path = operators.collector.folder / "collector.toml"
    for text in ("minimum_clients = 1\n", "colluders = 0\n"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="must be at least"):
            CollectorFolder.read(operators.collector.folder)


def test_a_client_needs_the_signatures_of_both_operators(operators: Operators) -> None:
    device = create_device(
        operators.folder / "phone",
        name="phone",
        operators=operators.relay.folder / "operators.toml",
        digest=operators.pinned.digest.replace(" ", ""),
    )
    request = device.admission_path
    for operator, missing in ((operators.relay, "relay"), (operators.collector, "collector")):
        with pytest.raises(DeploymentError, match=f"not signed by the {missing}"):
            RelayLink(device)
        admit(operator, [request])
    RelayLink(device).close()
    found = AdmissionFile.read(request)
    AdmissionFile(
        name="other",
        key=found.key,
        valid_until=found.valid_until,
        by_relay=found.by_relay,
        by_collector=found.by_collector,
    ).write(request)
    with pytest.raises(DeploymentError, match="does not hold"):
        RelayLink(device)


def test_a_name_and_a_key_are_admitted_once(operators: Operators, tmp_path: Path) -> None:
    (device,) = operators.devices(1)
    known = AdmissionFile.read(device.admission_path)
    request = tmp_path / "request.toml"
    AdmissionFile(name="another", key=known.key).write(request)
    with pytest.raises(DeploymentError, match="admitted before"):
        admit(operators.relay, [request])
    AdmissionFile(name=known.name, key=bytes(32)).write(request)
    with pytest.raises(DeploymentError, match="admitted before"):
        admit(operators.relay, [request])
    assert AdmissionFile.read(request).by_relay == b""
    admit(operators.relay, [device.admission_path])  # again is the same
    assert operators.relay.clients() == {known.name: known.key}


def test_a_client_that_was_removed_can_be_admitted_again_with_another_key(
    operators: Operators, tmp_path: Path
) -> None:
    first, second = operators.devices(2)
    folder = str(operators.relay.folder)
    unknown = call("deploy", "revoke", folder, first.name, "phone-99")
    assert unknown.code == 2
    assert "has not admitted a client 'phone-99', so nothing was changed" in unknown.text.replace(
        "\n", " "
    )
    assert call("deploy", "revoke", folder, first.name).code == 0
    assert list(operators.relay.clients()) == [second.name]
    request = tmp_path / "request.toml"
    AdmissionFile(name=first.name, key=bytes(32)).write(request)
    admit(operators.relay, [request])
    assert operators.relay.clients()[first.name] == bytes(32)


def test_no_removal_is_lost_to_another_one_at_the_same_time(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = operators.devices(2)
    relay, write = operators.relay, files.write_atomic

    def write_later(path: Path, content: bytes, *, mode: int) -> None:
        monkeypatch.setattr(files, "write_atomic", write)
        with pytest.raises(OutputError, match="another part of this program is running"):
            relay.remove_clients([second.name])
        write(path, content, mode=mode)

    monkeypatch.setattr(files, "write_atomic", write_later)
    relay.remove_clients([first.name])
    relay.remove_clients([second.name])
    assert relay.clients() == {}


def test_no_operator_signs_for_longer_than_it_allows(operators: Operators, tmp_path: Path) -> None:
    request = tmp_path / "request.toml"
    until = int(time.time()) + 400 * 86400
    AdmissionFile(name="phone", key=bytes(32), valid_until=until).write(request)
    with pytest.raises(DeploymentError, match="more than 365 days"):
        admit(operators.collector, [request])


def test_replaced_keys_of_the_operators_are_noticed(operators: Operators, tmp_path: Path) -> None:
    (device,) = operators.devices(1)
    create_operators(tmp_path / "other").pinned.write(device.folder / "operators.toml")
    with pytest.raises(ConfigError, match="by telephone"):
        DeviceFolder.read(device.folder)
