"""The link's certificate and its authority, and the key pairs of sites.

The operator's authority signs one certificate, the link's. A site trusts that authority, so it can
authenticate the link; the link authenticates a site by its public key. A private key is readable
only by its owner from the moment its file exists, and no function here overwrites one. A site's
private key, `node.key`, signs the calls of its node and the statements of the site.
"""

import datetime
import os
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sottovoce.core.errors import DeploymentError
from sottovoce.core.files import explain_os_errors
from sottovoce.deployment.machines.address import Address, ip_address


def read_node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a site's private key from a file in OpenSSH's format.

    Raises DeploymentError if it has a password or is not an ECDSA key, OutputError if the file
    cannot be read.
    """
    with explain_os_errors("read", path):
        content = path.read_bytes()
    try:
        key = load_ssh_private_key(content, password=None)
    except TypeError:  # the only sign of a password
        raise DeploymentError(
            f"{path} is protected by a password, which a node cannot enter; remove the password: "
            f"ssh-keygen -p -N '' -f {path}"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DeploymentError(
            f"{path} is not a node's private key (ECDSA, OpenSSH, without a password); restore the "
            "file that 'sottovoce deploy join' made"
        )
    return key


AUTHORITY_DAYS = 3650
LINK_DAYS = 365
_ALWAYS = ("localhost", "127.0.0.1")
# A machine whose clock is a little behind must accept a new certificate.
_EARLIER = datetime.timedelta(hours=1)
_TLS_TIMEOUT_SECONDS = 10.0


# -- creating -------------------------------------------------------------------------------


def create_authority(certificate: Path, key: Path, *, name: str, days: int) -> None:
    """Create a certificate authority in two new files: its certificate and its private key.

    It signs only the certificate of the link, the server program to which sites connect. Raises
    DeploymentError if a file exists.
    """
    private_key = ec.generate_private_key(ec.SECP384R1())
    subject = _subject(f"{name} authority")
    builder = (
        _builder(subject, subject, private_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(private_key.public_key()), critical=False
        )
    )
    write_secret(key, _pem(private_key))
    write_new(certificate, builder.sign(private_key, hashes.SHA384()).public_bytes(Encoding.PEM))


def issue_certificate(
    certificate: Path,
    key: Path,
    *,
    authority: Path,
    authority_key: Path,
    hosts: Sequence[str],
    days: int,
) -> None:
    """Create the certificate and private key of the link, the server program of a federation.

    The authority signs the certificate, which is valid for `hosts`, localhost and 127.0.0.1. Raises
    DeploymentError if the new file `certificate` or `key` exists.
    """
    issuer, issuer_key = read_certificate(authority), read_private_key(authority_key)
    private_key = ec.generate_private_key(ec.SECP384R1())
    names = list(dict.fromkeys([*hosts, *_ALWAYS]))
    builder = (
        _builder(_subject(names[0]), issuer.subject, private_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general(n) for n in names]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
    )
    write_secret(key, _pem(private_key))
    write_new(certificate, builder.sign(issuer_key, hashes.SHA384()).public_bytes(Encoding.PEM))


def create_pinned_certificate(
    certificate: Path, key: Path, *, hosts: Sequence[str], days: int
) -> None:
    """Create the certificate and private key of a server whose clients pin this very certificate.

    No authority signs it, so it is short: P-256, without further extensions. Raises
    DeploymentError if a file exists.
    """
    private_key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject("relay")
    builder = (
        _builder(subject, subject, private_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general(n) for n in hosts]), critical=False)
    )
    write_secret(key, _pem(private_key))
    write_new(certificate, builder.sign(private_key, hashes.SHA256()).public_bytes(Encoding.PEM))


def create_node_key(private: Path, public: Path, *, comment: str) -> None:
    """Create a site's key pair as Flower reads it: ECDSA on P-384, in OpenSSH's format.

    Raises DeploymentError if a file exists.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    write_public_key(public, key.public_key(), comment=comment)


def write_public_key(path: Path, key: ec.EllipticCurvePublicKey, *, comment: str) -> None:
    """Write a public key to a new file in OpenSSH's format; raise DeploymentError if it exists."""
    line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_new(path, line + b" " + comment.encode() + b"\n")


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that no other user can read; raise DeploymentError if it exists."""
    write_new(path, content, mode=0o600)


def write_new(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a new file; raise DeploymentError if it exists, OutputError if writing fails."""
    with explain_os_errors("write", path):
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            raise DeploymentError(
                f"{path} exists and is not replaced; move it away first"
            ) from None
        with os.fdopen(handle, "wb") as file:
            file.write(content)


# -- reading --------------------------------------------------------------------------------


def read_certificate(path: Path) -> x509.Certificate:
    """Return the certificate in a PEM file; raise DeploymentError if it has none."""
    with explain_os_errors("read", path):
        content = path.read_bytes()
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError:
        raise DeploymentError(
            f"{path} is not a certificate in PEM; restore it from a backup. A site can also get "
            "ca.crt from the operator; the operator can replace link.crt with 'sottovoce deploy "
            "certificates FOLDER --renew'"
        ) from None


def read_public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """Return a site's public key from a file in OpenSSH's format.

    Raises DeploymentError if it is not an ECDSA key on P-384.
    """
    with explain_os_errors("read", path):
        content = path.read_bytes()
    try:
        key = load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        secret = " (it looks like a private key, which should never leave its site)"  # noqa: S105  (a text, not a password)
        raise DeploymentError(
            f"{path} is not a site's public key{secret if b'PRIVATE KEY' in content else ''}; "
            "ask the site for the file node.pub that 'deploy join' made"
        )
    return key


def to_flower_key(key: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public key in the form in which Flower stores it: SubjectPublicKeyInfo in PEM."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def expires_at(path: Path) -> datetime.datetime:
    """Return when a certificate expires, in UTC."""
    return read_certificate(path).not_valid_after_utc


def hosts_in(path: Path) -> list[str]:
    """Return the DNS names and IP addresses for which a certificate is valid; may be empty."""
    try:
        found = read_certificate(path).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in found.value]


# -- checking -----------------------------------------------------------------------------------


def date_problem(path: Path) -> str | None:
    """Return a sentence if a certificate has expired or is not valid yet; else None."""
    certificate = read_certificate(path)
    now = datetime.datetime.now(datetime.UTC)
    if now > certificate.not_valid_after_utc:
        return f"{path} expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if now < certificate.not_valid_before_utc:
        return (
            f"{path} is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; "
            "check this machine's clock"
        )
    return None


def link_problem(certificate: Path, key: Path, *, authority: Path, host: str) -> str | None:
    """Return why sites would refuse the link's TLS certificate at `host`; None if they accept."""
    problem = date_problem(authority) or date_problem(certificate)
    if problem:
        return problem
    found = read_certificate(certificate)
    try:
        found.verify_directly_issued_by(read_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        return f"{certificate} was not signed by {authority}"
    if read_private_key(key).public_key() != found.public_key():
        return f"{key} is not the key of {certificate}"
    if host not in hosts_in(certificate):
        return f"{certificate} is valid for {', '.join(hosts_in(certificate))}, not for '{host}'"
    return None


def key_problem(path: Path) -> str | None:
    """Return why a site's private key cannot be used; None if it can.

    On systems other than Windows, no other user may be able to read it.
    """
    with explain_os_errors("read", path):
        mode = path.stat().st_mode
    if os.name != "nt" and mode & 0o077:
        return f"{path} can be read by other users; protect it: chmod 600 {path}"
    try:
        read_node_key(path)
    except DeploymentError as error:
        return str(error)
    return None


def handshake_problem(address: Address, authority: Path) -> str | None:
    """Return why this machine would not trust the link; None if it does, or there is no answer.

    Opens a TLS connection to the link, the server program of a federation, and waits at most 10
    seconds for it. Flower repeats a refused handshake forever, as if the link were away.
    """
    context = ssl.create_default_context(cafile=str(authority))
    try:
        with (
            socket.create_connection(
                (address.host, address.port), timeout=_TLS_TIMEOUT_SECONDS
            ) as connection,
            context.wrap_socket(connection, server_hostname=address.host),
        ):
            return None
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of the link at {address} is refused: {error.verify_message}"
    except ssl.SSLError as error:
        return f"the program that answers at {address} does not use TLS: {error.reason or error}"
    except OSError:
        return None


# -- helpers --------------------------------------------------------------------------------------


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _subject(name: str) -> x509.Name:
    # A common name has at most 64 characters, and no program reads this one.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _general(host: str) -> x509.GeneralName:
    ip = ip_address(host)
    return x509.DNSName(host) if ip is None else x509.IPAddress(ip)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def read_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key of the authority or the link from a PEM file.

    Raises DeploymentError if it is not an elliptic-curve key without a password.
    """
    with explain_os_errors("read", path):
        content = path.read_bytes()
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DeploymentError(
            f"{path} is not a private key in PEM (elliptic curve); restore it from a backup"
        )
    return key
