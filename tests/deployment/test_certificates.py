"""Certificates and keys: what real TLS makes of them, and what is said about bad ones."""

import datetime
import os
import socket
import stat
import sys
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from tls import made_in_the_past, serving

from sottovoce.core.errors import DeploymentError, SottovoceError
from sottovoce.deployment.machines.address import Address
from sottovoce.deployment.machines.certificates import (
    create_authority,
    create_node_key,
    date_problem,
    expires_at,
    handshake_problem,
    hosts_in,
    issue_certificate,
    key_problem,
    link_problem,
    read_public_key,
)


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    create_authority(tmp_path / "ca.crt", tmp_path / "ca.key", name="test", days=10)
    return tmp_path / "ca.crt"


def _issue(folder: Path, *hosts: str, days: int = 5) -> tuple[Path, Path]:
    certificate, key = folder / "link.crt", folder / "link.key"
    issue_certificate(
        certificate,
        key,
        authority=folder / "ca.crt",
        authority_key=folder / "ca.key",
        hosts=hosts,
        days=days,
    )
    return certificate, key


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_site_trusts_the_link_under_this_machines_own_names(
    authority: Path, tmp_path: Path, host: str
) -> None:
    certificate, key = _issue(tmp_path, "link.example.org")
    assert hosts_in(certificate) == ["link.example.org", "localhost", "127.0.0.1"]
    with serving(certificate, key) as port:
        assert handshake_problem(Address(host=host, port=port), authority) is None
    assert link_problem(certificate, key, authority=authority, host="link.example.org") is None


def test_a_link_of_another_authority_is_refused(authority: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    create_authority(other / "ca.crt", other / "ca.key", name="other", days=10)
    certificate, key = _issue(other, "127.0.0.1")
    with serving(certificate, key) as port:
        problem = handshake_problem(Address(host="127.0.0.1", port=port), authority)
    assert problem is not None
    assert "is refused" in problem
    problem = link_problem(certificate, key, authority=authority, host="127.0.0.1")
    assert problem == f"{certificate} was not signed by {authority}"


def test_a_wrong_host_is_named(authority: Path, tmp_path: Path) -> None:
    certificate, key = _issue(tmp_path)
    problem = link_problem(certificate, key, authority=authority, host="10.0.0.7")
    assert problem == f"{certificate} is valid for localhost, 127.0.0.1, not for '10.0.0.7'"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere 127.0.0.2 is nobody")
def test_a_wrong_host_is_refused(authority: Path, tmp_path: Path) -> None:
    certificate, key = _issue(tmp_path)
    with serving(certificate, key, host="127.0.0.2") as port:
        problem = handshake_problem(Address(host="127.0.0.2", port=port), authority)
    assert problem is not None
    assert "IP address mismatch" in problem


def test_an_expired_certificate_is_said_with_its_date(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as past:
        made_in_the_past(past, days=20)
        certificate, key = _issue(tmp_path, days=5)
    day = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=15)
    assert expires_at(certificate).date() == day.date()
    assert date_problem(certificate) == f"{certificate} expired on {day:%Y-%m-%d}"
    problem = link_problem(certificate, key, authority=authority, host="localhost")
    assert problem == f"{certificate} expired on {day:%Y-%m-%d}"
    with serving(certificate, key) as port:
        refused = handshake_problem(Address(host="127.0.0.1", port=port), authority)
    assert refused is not None
    assert "certificate has expired" in refused


def test_a_certificate_of_tomorrow_asks_about_the_clock(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as future:
        made_in_the_past(future, days=-2)
        certificate, _ = _issue(tmp_path)
    problem = date_problem(certificate)
    assert problem is not None
    assert "is not valid before" in problem
    assert "clock" in problem


def test_a_key_that_belongs_elsewhere_is_found(authority: Path, tmp_path: Path) -> None:
    certificate, _ = _issue(tmp_path)
    problem = link_problem(certificate, tmp_path / "ca.key", authority=authority, host="localhost")
    assert problem == f"{tmp_path / 'ca.key'} is not the key of {certificate}"


def test_what_speaks_no_tls_is_said(authority: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        problem = handshake_problem(
            Address(host="127.0.0.1", port=server.getsockname()[1]), authority
        )
        thread.join()
    assert problem is not None
    assert "does not use TLS" in problem


def test_no_one_there_is_no_problem_of_certificates(authority: Path) -> None:
    assert handshake_problem(Address(host="127.0.0.1", port=1), authority) is None


def test_private_keys_are_their_owners_alone_from_the_start(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = {}
    real = os.open

    def spying(path: Path, flags: int, mode: int = 0o777, **more: int) -> int:
        handle = real(path, flags, mode, **more)
        modes[Path(path).name] = stat.S_IMODE(os.fstat(handle).st_mode)
        return handle

    monkeypatch.setattr(os, "open", spying)
    before = os.umask(0)
    try:
        create_authority(tmp_path / "a.crt", tmp_path / "a.key", name="a", days=1)
        _issue(tmp_path)
        create_node_key(tmp_path / "node.key", tmp_path / "node.pub", comment="a")
    finally:
        os.umask(before)
    assert {name: mode for name, mode in modes.items() if name.endswith(".key")} == {
        "a.key": 0o600,
        "link.key": 0o600,
        "node.key": 0o600,
    }
    for name in ("a.key", "link.key", "node.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_nothing_is_overwritten(authority: Path, tmp_path: Path) -> None:
    before = (tmp_path / "ca.key").read_bytes()
    with pytest.raises(DeploymentError, match=r"ca\.key exists"):
        create_authority(authority, tmp_path / "ca.key", name="test", days=1)
    assert (tmp_path / "ca.key").read_bytes() == before
    create_node_key(tmp_path / "node.key", tmp_path / "node.pub", comment="a")
    with pytest.raises(DeploymentError, match=r"node\.key exists"):
        create_node_key(tmp_path / "node.key", tmp_path / "other.pub", comment="a")


def test_a_node_key_is_what_flower_reads(tmp_path: Path) -> None:
    create_node_key(tmp_path / "node.key", tmp_path / "node.pub", comment="hospital-a")
    key = load_ssh_private_key((tmp_path / "node.key").read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP384R1)
    assert read_public_key(tmp_path / "node.pub") == key.public_key()
    assert (tmp_path / "node.pub").read_text().endswith(" hospital-a\n")
    assert key_problem(tmp_path / "node.key") is None
    (tmp_path / "node.key").chmod(0o640)
    problem = key_problem(tmp_path / "node.key")
    assert problem is not None
    assert problem.endswith(f"chmod 600 {tmp_path / 'node.key'}")


def test_a_private_key_handed_in_for_a_public_one_is_named_as_such(tmp_path: Path) -> None:
    create_node_key(tmp_path / "node.key", tmp_path / "node.pub", comment="a")
    with pytest.raises(DeploymentError, match="looks like a private key"):
        read_public_key(tmp_path / "node.key")


@pytest.mark.parametrize("content", [b"", b"ssh-ed25519 AAAA x\n", b"\xff\xfe nonsense"])
def test_files_that_are_no_keys_or_certificates(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    (tmp_path / "file").chmod(0o600)
    with pytest.raises(DeploymentError, match="is not a site's public key"):
        read_public_key(tmp_path / "file")
    with pytest.raises(DeploymentError, match="is not a certificate"):
        date_problem(tmp_path / "file")
    problem = key_problem(tmp_path / "file")
    assert problem is not None
    assert "is not a node's private key" in problem
    with pytest.raises(SottovoceError, match="cannot read"):
        date_problem(tmp_path / "absent")
