"""The keys and the roster by which sites trust each other, and not the operator.

trust.key     in a site's folder: its own Ed25519 key, in OpenSSH's format; it never leaves the site
trust.pub     the public key, for the operator, who writes the roster
roster.toml   federation id, version, and the names and public keys of all sites

A site uses a roster only if its digest is the one in [trust] of its own site.toml. Its owner
compares the digest with the owners of other sites, by telephone or in person, and pins it with
'sottovoce deploy trust'. A roster that arrives over the network is never read.
"""

import base64
import binascii
import json
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)
from pydantic import Field

from sottovoce.core import files
from sottovoce.core.errors import DeploymentError, ParameterError, SottovoceError
from sottovoce.core.files import explain_os_errors
from sottovoce.deployment.machines import certificates
from sottovoce.deployment.machines.federation import Federation, check_name, read_section
from sottovoce.deployment.site import Trust
from sottovoce.protocol.secure.roster import FEDERATION_ID_BYTES, Roster, TrustKey
from sottovoce.runs.sections import Section

KEY_NAME, PUBLIC_NAME, ROSTER_NAME = "trust.key", "trust.pub", "roster.toml"
_TABLE = re.compile(r'^\[trust\]\nroster_digest = "[^"\n]*"\n', re.MULTILINE)


class _RosterTable(Section):
    federation: str
    version: Annotated[int, Field(ge=1)]
    keys: dict[str, str]


# -- keys ------------------------------------------------------------------------------------


def create_trust_key(folder: Path, *, name: str) -> None:
    """Create trust.key and trust.pub in a site's folder; raise DeploymentError if one exists."""
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    certificates.write_secret(folder / KEY_NAME, secret)
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    certificates.write_new(folder / PUBLIC_NAME, line + f" {name}\n".encode())


def read_trust_key(path: Path) -> TrustKey:
    """Return the key in trust.key.

    Raises DeploymentError if other users can read the file, or if it is not an Ed25519 key.
    """
    with explain_os_errors("read", path):
        content, mode = path.read_bytes(), path.stat().st_mode
    if mode & 0o077:
        raise DeploymentError(f"{path} can be read by other users; protect it: chmod 600 {path}")
    try:
        key = load_ssh_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise DeploymentError(
            f"{path} is not an Ed25519 key without a password; restore it, or move it away, run "
            "'sottovoce deploy trust' again, and give the new trust.pub to the operator"
        )
    return TrustKey(key.private_bytes_raw())


def read_trust_public_key(path: Path) -> tuple[str, bytes]:
    """Return the site's name and the 32 bytes of its public key in a file such as trust.pub.

    Raises DeploymentError if it is not an Ed25519 public key.
    """
    with explain_os_errors("read", path):
        content = path.read_bytes()
    try:
        key = load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise DeploymentError(
            f"{path} is not a site's trust.pub (Ed25519 in OpenSSH's format); ask the site for "
            "the file that 'sottovoce deploy join' or 'sottovoce deploy trust' made"
        )
    *_, name = content.decode(errors="replace").split()
    return check_name(name, what=f"{path}: the name after the key"), key.public_bytes_raw()


# -- rosters ---------------------------------------------------------------------------------


def read_roster(path: Path) -> Roster:
    """Return the roster in a file; raise ConfigError or DeploymentError if it is not valid."""
    table = read_section(path, _RosterTable)
    try:
        keys = {
            check_name(name, what=f"{path}: a site's name"): _from_base64(text)
            for name, text in table.keys.items()
        }
        return Roster(federation=bytes.fromhex(table.federation), version=table.version, keys=keys)
    except (ValueError, ParameterError) as error:
        raise DeploymentError(
            f"{path} is not a roster: {error}; restore the file that 'sottovoce deploy roster' made"
        ) from None


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("a key is not in base64") from None


def write_roster(path: Path, roster: Roster) -> None:
    """Write a roster atomically, over an existing one."""
    lines = [
        "# The sites of a federation and their keys for secure sums. Compare the digest with the",
        f"# owners of the sites before you pin it: {roster.digest.hex()}",
        f'federation = "{roster.federation.hex()}"',
        f"version = {roster.version}",
        "",
        "[keys]",
        *(
            f"{json.dumps(name)} = {json.dumps(base64.b64encode(key).decode())}"
            for name, key in roster.keys.items()
        ),
    ]
    files.write_atomic(path, ("\n".join(lines) + "\n").encode())


def update_roster(federation: Federation, added: Iterable[Path]) -> Roster:
    """Add public keys of sites to an operator's roster, write it, and return it.

    A first roster gets a random federation id. A changed one gets the next version, and every site
    must compare and pin its digest.

    Args:
        federation: The operator's folder.
        added: The file trust.pub of each site to add.

    Raises:
        DeploymentError: A site is not in federation.toml, two sites have the same key, or there is
            no key at all.
    """
    path = federation.folder / ROSTER_NAME
    old = read_roster(path) if path.exists() else None
    keys = dict(old.keys) if old else {}
    for file in added:
        name, key = read_trust_public_key(file)
        if name not in federation.sites:
            raise DeploymentError(
                f"'{name}' is not a site of {federation.folder}; add it with 'sottovoce deploy "
                f"certificates {federation.folder} --add {name} node.pub' first"
            )
        keys[name] = key
    if not keys:
        raise DeploymentError(
            "the roster has no site yet; add their keys: sottovoce deploy roster "
            f"{federation.folder} --key trust.pub"
        )
    if old is not None and old.keys == keys:
        return old
    try:
        roster = Roster(
            federation=old.federation if old else secrets.token_bytes(FEDERATION_ID_BYTES),
            version=old.version + 1 if old else 1,
            keys=keys,
        )
    except ParameterError as error:
        raise DeploymentError(f"{error}; ask each site for its own trust.pub") from None
    write_roster(path, roster)
    return roster


# -- a site's side ---------------------------------------------------------------------------


def pin_roster(folder: Path, name: str, roster: Path, digest: str) -> Roster:
    """Copy a roster into a site's folder and pin its digest in site.toml, if it is as expected.

    Args:
        folder: The site's folder.
        name: The site's name.
        roster: The roster's file, from the operator.
        digest: The digest that the site's owner has compared with other owners, in hexadecimal.

    Returns:
        The roster.

    Raises:
        DeploymentError: The roster has another digest, lacks this site, has another key of it, or
            is older than the one in the folder; or [trust] was edited by hand. Nothing is changed
            then.
    """
    found = read_roster(roster)
    if found.digest.hex() != digest.strip().lower():
        raise DeploymentError(
            f"{roster} has the digest {found.digest.hex()}, not the one that you gave; do not use "
            "it, and ask the owners of other sites which digest they have"
        )
    if found.keys.get(name) != read_trust_key(folder / KEY_NAME).public:
        raise DeploymentError(
            f"{roster} does not have this site's key under the name '{name}'; give "
            f"{folder / PUBLIC_NAME} to the operator and ask for a new roster"
        )
    _check_not_older(found, folder / ROSTER_NAME)
    path = folder / "site.toml"
    text = path.read_text(encoding="utf-8")
    table = f'[trust]\nroster_digest = "{found.digest.hex()}"\n'
    rest = _TABLE.sub("", text)
    if re.search(r"^\s*\[trust\]", rest, re.MULTILINE):
        raise DeploymentError(
            f"{path} has a table [trust] that was edited by hand; write this in its place:\n{table}"
        )
    write_roster(folder / ROSTER_NAME, found)
    files.write_atomic(path, f"{rest.rstrip()}\n\n{table}".encode(), mode=files.PRIVATE)
    return found


def _check_not_older(found: Roster, path: Path) -> None:
    """Raise DeploymentError if a newer roster of the federation is at `path`.

    The digest of an older one was confirmed once, too, but a key in it may have been replaced
    because it was stolen.
    """
    try:
        present = read_roster(path)
    except SottovoceError:
        return  # missing or damaged; it is replaced
    if found.federation == present.federation and found.version < present.version:
        raise DeploymentError(
            f"the roster has version {found.version}, but this site has version {present.version} "
            "already; ask the operator for the newest one"
        )


def load_trust(trust: Trust | None) -> tuple[TrustKey, Roster]:
    """Return a site's key and its roster, whose digest is checked against the pinned one.

    Raises DeploymentError or ConfigError if the site has none, or a file is missing or wrong.
    """
    if trust is None:
        raise DeploymentError(
            "this site has no pinned roster, so it takes part in no secure sum; run 'sottovoce "
            "deploy trust' with the roster and the digest that other sites have confirmed"
        )
    roster = read_roster(trust.roster)
    if roster.digest.hex() != trust.digest:
        raise DeploymentError(
            f"{trust.roster} is not the roster that [trust] of site.toml pins; compare the new "
            "digest with the owners of other sites and pin it with 'sottovoce deploy trust'"
        )
    return read_trust_key(trust.key), roster
