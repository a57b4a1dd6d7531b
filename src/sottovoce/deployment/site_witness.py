"""A site's side of the witness: statements about its ledger, and refusal of an older ledger.

The file witness.json in the ledger's folder is the newest receipt that the site has been given.
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
    read_receipt,
    rollback_error,
    to_text,
)
from sottovoce.ledger.ledger import Ledger

_LOG = printable_text.logger()


def check_witnessed(site: Site, given: Mapping[str, Any] | None) -> None:
    """Raise RolledBackError if a receipt shows that the ledger is older, or is another one.

    `given` is a receipt from the server or the link, the server program that the site calls; None
    if none came. It counts only with this site's own signature and the link's. It is kept if it is
    newer than the one in the site's folder, which is checked, too. A receipt that the ledger does
    not match is always kept, so the site stays stopped, whether or not the link sends it again.
    """
    kept, told = read_receipt(site.ledger.parent), None if given is None else _own(site, given)
    with site.open_ledger() as ledger:  # compares it with the kept receipt as well
        problem = told and told.statement.state.problem_in(ledger)
    if told is not None and (
        problem or kept is None or told.statement.state.exceeds(kept.statement.state)
    ):
        path = site.ledger.parent / WITNESS_NAME
        files.write_json(path, told.to_plain(), mode=files.PRIVATE)
    if problem:
        raise rollback_error(problem)


def statement_part(site: Site) -> dict[str, bytes]:
    """Return the signed part of a reply that states the position of the ledger.

    Empty for a site without keys or without a ledger, and after an error, which is logged and not
    raised, because the answer is already charged.
    """
    if site.keys is None or not site.ledger.is_file():
        return {}
    try:
        key, authority = _loaded(site.keys)
        with Ledger(site.ledger) as ledger:  # without checks: the statement is about what is there
            state = LedgerState.of(ledger)
        statement = Statement(
            federation=authority_digest(authority),
            site=site.name,
            key=key_digest(key.public_key()),
            state=state,
        )
        plain = {**state.to_plain(), "signature": to_text(statement.sign(key))}
    except Exception as error:
        _LOG.warning("the server gets no statement about the ledger: %s", error)
        return {}
    return {STATEMENT: json.dumps(plain, separators=(",", ":")).encode()}


def key_name(keys: Keys) -> str:
    """Return the SHA-256 of a site's public key, under which the federation keeps its receipt."""
    return key_digest(_loaded(keys)[0].public_key())


def _own(site: Site, given: Mapping[str, Any]) -> Receipt | None:
    """Return a receipt if it is for this site's own statement, else None.

    A receipt without this site's signature is ignored, so no one else can stop a site.
    """
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
    """Return the site's private key and the federation's certificate."""
    with files.explain_os_errors("read", keys.authority):
        certificate = keys.authority.read_bytes()
    try:
        authority = x509.load_pem_x509_certificate(certificate)
    except ValueError:
        raise DeploymentError(
            f"{keys.authority} is not a certificate; ask the operator for the federation's ca.crt"
        ) from None
    return read_node_key(keys.private_key), authority
