"""A site and its witness: what it states about its ledger, and when it refuses to go on.

witness.json   beside the ledger: the newest receipt that the site has been given
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from sottovoce import files, printable_text
from sottovoce.deployment.orders import STATEMENT
from sottovoce.deployment.site import Keys, Site
from sottovoce.deployment.witness import (
    LedgerState,
    Receipt,
    Statement,
    authority_digest,
    key_digest,
    to_text,
)
from sottovoce.errors import DeploymentError, LedgerError, WireError
from sottovoce.ledger.ledger import Ledger

_LOG = printable_text.logger()
WITNESS_NAME = "witness.json"


def check_witnessed(site: Site, given: Mapping[str, Any] | None) -> None:
    """Refuse to go on from a ledger that a receipt shows to be older, or another: LedgerError.

    `given` comes from the server or the link, and counts only with this site's own signature and
    the link's. The receipt that is kept beside the ledger counts as the ledger itself does.
    """
    kept, told = _kept(site), None if given is None else _own(site, given)
    receipts = [receipt for receipt in (kept, told) if receipt is not None]
    if not receipts:
        return
    with Ledger(site.ledger, must_exist=True) as ledger:
        for receipt in receipts:
            problem = receipt.statement.state.problem_in(ledger)
            if problem:
                raise LedgerError(
                    f"the ledger of '{site.name}' is not the one that its federation has "
                    f"witnessed: {problem}. It was restored or replaced, and what it has "
                    "forgotten was spent all the same: put the newest ledger back. Nothing is "
                    "answered until then"
                )
    if told is not None and (kept is None or told.statement.state.exceeds(kept.statement.state)):
        files.write_json(_path(site), told.to_plain(), mode=files.PRIVATE)


def statement_part(site: Site) -> dict[str, bytes]:
    """Return the part of a reply that states how far the ledger has come; none without a key.

    An answer that is paid for does not fail because of it.
    """
    if site.keys is None or not site.ledger.is_file():
        return {}
    try:
        key, authority = _loaded(site.keys)
        with Ledger(site.ledger, must_exist=True) as ledger:
            state = LedgerState.of(ledger)
        statement = Statement(
            federation=authority_digest(authority),
            site=site.name,
            key=key_digest(key.public_key()),
            state=state,
        )
        plain = {**state.to_plain(), "signature": to_text(statement.sign(key))}
    except Exception as error:
        _LOG.warning("the server is not told how far the ledger has come: %s", error)
        return {}
    return {STATEMENT: json.dumps(plain, separators=(",", ":")).encode()}


def key_name(keys: Keys) -> str:
    """Return the digest of a site's public key, under which the link keeps its receipt."""
    return key_digest(_loaded(keys)[0].public_key())


def _own(site: Site, given: Mapping[str, Any]) -> Receipt | None:
    """The receipt, if it is for this site's own statement; nobody stops a site with another."""
    if site.keys is None:
        return None
    key, authority = _loaded(site.keys)
    try:
        receipt = Receipt.from_plain(given)
        problem = receipt.problem(site=site.name, key=key.public_key(), authority=authority)
    except WireError as error:
        problem = str(error)
    if problem:
        _LOG.warning("a receipt for this site's ledger is ignored: %s", problem)
        return None
    return receipt


def _kept(site: Site) -> Receipt | None:
    path = _path(site)
    try:
        with files.explained("read", path):
            return Receipt.from_plain(json.loads(path.read_bytes())) if path.exists() else None
    except (ValueError, RecursionError):  # WireError is a ValueError
        raise LedgerError(
            f"{path} is damaged; restore it, or remove it and start the node while its link is up, "
            "which hands it out again"
        ) from None


def _path(site: Site) -> Path:
    return site.ledger.parent / WITNESS_NAME


def _loaded(keys: Keys) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    with files.explained("read", keys.private_key):
        secret = keys.private_key.read_bytes()
    with files.explained("read", keys.authority):
        certificate = keys.authority.read_bytes()
    try:
        key = load_ssh_private_key(secret, password=None)
        authority = x509.load_pem_x509_certificate(certificate)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DeploymentError(
            f"{keys.private_key} or {keys.authority} cannot be read as a key and a certificate"
        )
    return key, authority
