"""A site and its witness: what it states about its ledger, and when it refuses to go on.

witness.json   beside the ledger: the newest receipt that the site has been given
"""

import json
from collections.abc import Mapping
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from sottovoce.core import files, printable_text
from sottovoce.core.errors import DeploymentError, WireError
from sottovoce.deployment.machines.certificates import read_node_key
from sottovoce.deployment.orders import STATEMENT
from sottovoce.deployment.site import Keys, Site
from sottovoce.deployment.witness import (
    WITNESS_NAME,
    LedgerState,
    Receipt,
    Statement,
    authority_digest,
    key_digest,
    read_kept,
    rolled_back,
    to_text,
)
from sottovoce.ledger.ledger import Ledger

_LOG = printable_text.logger()


def check_witnessed(site: Site, given: Mapping[str, Any] | None) -> None:
    """Refuse to go on from a ledger that a receipt shows to be older, or another: RolledBackError.

    `given` comes from the server or the link, and counts only with this site's own signature and
    the link's. One that the ledger does not match is kept: the site stays stopped, link or no link.
    """
    kept, told = read_kept(site.ledger.parent), None if given is None else _own(site, given)
    with site.open_ledger() as ledger:  # which is held against what is kept
        problem = told and told.statement.state.problem_in(ledger)
    if told is not None and (
        problem or kept is None or told.statement.state.exceeds(kept.statement.state)
    ):
        path = site.ledger.parent / WITNESS_NAME
        files.write_json(path, told.to_plain(), mode=files.PRIVATE)
    if problem:
        raise rolled_back(problem)


def statement_part(site: Site) -> dict[str, bytes]:
    """Return the part of a reply that states how far the ledger has come; none without a key.

    An answer that is paid for does not fail because of it.
    """
    if site.keys is None or not site.ledger.is_file():
        return {}
    try:
        key, authority = _loaded(site.keys)
        with Ledger(site.ledger) as ledger:  # whatever is wrong with it
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


def _loaded(keys: Keys) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    with files.explained("read", keys.authority):
        certificate = keys.authority.read_bytes()
    try:
        authority = x509.load_pem_x509_certificate(certificate)
    except ValueError:
        raise DeploymentError(
            f"{keys.authority} is not a certificate; ask the operator for the federation's ca.crt"
        ) from None
    return read_node_key(keys.private_key), authority
