"""Statements of sites about their ledgers, and the receipts that a server gives for them.

With each reply a site states the position of its ledger and signs that with its own key. The server
keeps the newest statement, countersigns it with the link's key, and returns the receipt. A site
whose folder was restored from an older copy then meets a receipt that it has signed itself and that
its ledger does not match. No one else can make such a receipt, since it needs the site's key. The
check relies on the server to return receipts: without one, a restored older folder is not noticed.

What is signed is a list of fields, each preceded by its length (32 bits, big endian).
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sottovoce.core import files
from sottovoce.core.errors import LedgerError, RolledBackError, WireError
from sottovoce.deployment.orders import printable_name
from sottovoce.ledger.reader import LedgerReader
from sottovoce.ledger.records import LedgerPosition

WITNESS_NAME = "witness.json"  # in the folder of a site's ledger
MOST_BYTES = 16 * 1024  # of a statement or receipt as text, which is far shorter
_STATEMENT_LABEL = b"sottovoce: statement of a site about its ledger, version 1"
_RECEIPT_LABEL = b"sottovoce: receipt of a link for a statement, version 1"
_SIGNATURE = ec.ECDSA(hashes.SHA384())
_MOST_COUNT = 2**63 - 1  # SQLite's largest number of rows
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LINK = re.compile(r"[0-9a-f]{32}")  # a chain link, or a ledger's identity


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerState(LedgerPosition):
    """The position of a ledger as it is stated to others.

    It has the ledger's identity, and the length and last link of two hash chains, of charges and of
    messages. Both only grow.
    """

    @classmethod
    def of(cls, ledger: LedgerReader) -> Self:
        """Return the position of a ledger now."""
        return cls(**asdict(ledger.position()))

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of charges and messages."""
        return self.charges, self.messages

    def exceeds(self, other: "LedgerState") -> bool:
        """Return whether this state has more charges or messages than `other`, and fewer of none.

        Whether both are states of the same ledger is not checked.
        """
        return self.counts != other.counts and all(
            mine >= its for mine, its in zip(self.counts, other.counts, strict=True)
        )

    def problem_in(self, ledger: LedgerReader) -> str | None:
        """Return why a ledger does not have all rows of this state; None if it does."""
        with ledger.snapshot():
            now = ledger.position()
            if now.identity != self.identity:
                return f"it is another ledger ({now.identity}, not {self.identity})"
            heads = {
                "charges": (self.charges, self.charges_head, ledger.head_after(self.charges)),
                "messages": (
                    *(self.messages, self.messages_head),
                    ledger.head_after(self.messages, "messages"),
                ),
            }
        for table, (count, witnessed, found) in heads.items():
            if found is None:
                return f"it has fewer {table} than the {count} that were witnessed"
            if found != witnessed:
                return f"its first {count} {table} are not those that were witnessed"
        return None

    def to_plain(self) -> dict[str, Any]:
        """Return the state as JSON data."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the state in JSON data from elsewhere; raise WireError if a value is not valid.

        The caller checks that all of `STATE_KEYS` are there (else KeyError); others are ignored.
        """
        links = [plain["identity"]]
        for key in ("charges", "messages"):
            if type(plain[key]) is not int or not 0 <= plain[key] <= _MOST_COUNT:
                raise WireError(
                    f"'{key}' of a statement must be an integer from 0 to {_MOST_COUNT}"
                )
            if plain[key] or plain[f"{key}_head"] != "":  # the head is empty before the first row
                links.append(plain[f"{key}_head"])
        if not all(isinstance(text, str) and _LINK.fullmatch(text) for text in links):
            raise WireError("a ledger's identity and heads must be 32 hexadecimal digits")
        return cls(**{key: plain[key] for key in STATE_KEYS})


STATE_KEYS = tuple(field.name for field in fields(LedgerPosition))


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a site states about its ledger, in which federation and under which key.

    A statement counts only in its federation and under its key.

    Attributes:
        federation: SHA-256 of the authority's certificate.
        site: Name of the site.
        key: SHA-256 of the site's public key.
        state: The position of the ledger.
    """

    federation: str
    site: str
    key: str
    state: LedgerState

    def signed(self) -> bytes:
        """Return the bytes that a site signs."""
        state = (str(value) for value in self.state.to_plain().values())
        texts = (self.federation, self.site, self.key, *state)
        return _fields(_STATEMENT_LABEL, *(text.encode() for text in texts))

    def sign(self, key: ec.EllipticCurvePrivateKey) -> bytes:
        """Return the signature of the statement with the site's private key."""
        return key.sign(self.signed(), _SIGNATURE)

    def is_signed(self, signature: bytes, key: ec.EllipticCurvePublicKey) -> bool:
        """Return whether a signature is valid under the key that the statement names."""
        return key_digest(key) == self.key and _verifies(key, signature, self.signed())


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A statement with its site's signature, and the link's signature over both.

    The link's certificate is included, so a receipt outlives the renewal of that certificate.

    Attributes:
        statement: What the site states.
        signature: The site's signature.
        link_signature: The link's signature over statement and signature.
        link_certificate: The link's certificate (DER).
    """

    statement: Statement
    signature: bytes
    link_signature: bytes
    link_certificate: bytes  # DER

    @classmethod
    def countersigned(
        cls,
        statement: Statement,
        signature: bytes,
        *,
        key: ec.EllipticCurvePrivateKey,
        certificate: x509.Certificate,
    ) -> Self:
        """Return a receipt for a statement that a site has signed, signed with the link's key.

        `key` and `certificate` are the link's; the site's `signature` is not checked.
        """
        seen = _fields(_RECEIPT_LABEL, statement.signed(), signature)
        return cls(
            statement=statement,
            signature=signature,
            link_signature=key.sign(seen, _SIGNATURE),
            link_certificate=certificate.public_bytes(Encoding.DER),
        )

    def problem(
        self, *, site: str, key: ec.EllipticCurvePublicKey, authority: x509.Certificate
    ) -> str | None:
        """Return why this is not a valid receipt for a statement of this site; None if it is.

        `key` is the site's public key, and `authority` the certificate that signed the link's.

        Dates are not checked: a certificate that has expired since does not invalidate what was
        signed under it.
        """
        if self.statement.federation != authority_digest(authority):
            return "it is of another federation"
        if self.statement.site != site:
            return f"it is for '{self.statement.site}'"
        if self.statement.key != key_digest(key):
            return "it is for another key"
        if not self.statement.is_signed(self.signature, key):
            return "its statement does not have this site's signature"
        try:
            certificate = x509.load_der_x509_certificate(self.link_certificate)
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            return "its certificate was not issued by this federation's authority"
        link = certificate.public_key()
        seen = _fields(_RECEIPT_LABEL, self.statement.signed(), self.signature)
        if not isinstance(link, ec.EllipticCurvePublicKey) or not _verifies(
            link, self.link_signature, seen
        ):
            return "it does not have the link's signature"
        return None

    def to_plain(self) -> dict[str, Any]:
        """Return the receipt as JSON data."""
        return {
            "federation": self.statement.federation,
            "site": self.statement.site,
            "key": self.statement.key,
            **self.statement.state.to_plain(),
            "signature": to_text(self.signature),
            "link_signature": to_text(self.link_signature),
            "link_certificate": to_text(self.link_certificate),
        }

    @classmethod
    def from_plain(cls, plain: object) -> Self:
        """Return the receipt in JSON data, signatures unchecked; raise WireError if it is none."""
        signed = ("signature", "link_signature", "link_certificate")
        keys = {"federation", "site", "key", *STATE_KEYS, *signed}
        if not isinstance(plain, dict) or set(plain) != keys:
            raise WireError(f"a receipt must have exactly the keys {', '.join(sorted(keys))}")
        printable_name(plain["site"])
        for key in ("federation", "key"):
            if not isinstance(plain[key], str) or not _DIGEST.fullmatch(plain[key]):
                raise WireError(f"'{key}' of a receipt must be a SHA-256 digest in hexadecimal")
        statement = Statement(
            federation=plain["federation"],
            site=plain["site"],
            key=plain["key"],
            state=LedgerState.from_plain(plain),
        )
        return cls(statement=statement, **{key: from_text(plain[key]) for key in signed})


def check_receipt(ledger: LedgerReader, folder: Path) -> None:
    """Raise RolledBackError if a ledger is older than the receipt in its folder, or another one.

    Without a receipt nothing is checked. The receipt's signatures were checked when it arrived; the
    file is trusted like the ledger next to it. Raises LedgerError if the receipt is damaged.
    """
    kept = read_receipt(folder)
    problem = kept and kept.statement.state.problem_in(ledger)
    if problem:
        raise rollback_error(problem)


def read_receipt(folder: Path) -> Receipt | None:
    """Return the receipt in a site's folder; None if there is none.

    Raises LedgerError if it is damaged.
    """
    path = folder / WITNESS_NAME
    try:
        with files.explain_os_errors("read", path):
            return Receipt.from_plain(json.loads(path.read_bytes())) if path.exists() else None
    except (ValueError, RecursionError):  # WireError is a ValueError
        raise LedgerError(
            f"{path} is damaged; restore it, or remove it and start the node while its link is up, "
            "which sends the receipt again"
        ) from None


def rollback_error(problem: str) -> RolledBackError:
    """Return, without raising it, the error for a ledger that does not match its receipt."""
    return RolledBackError(
        f"the site's ledger is not the one that its federation has witnessed: {problem}. The "
        "charges that it lacks were spent, so nothing is answered; restore the newest ledger from "
        "a backup"
    )


def key_digest(key: ec.EllipticCurvePublicKey) -> str:
    """Return the SHA-256, in hexadecimal, of a public key (its SubjectPublicKeyInfo in DER)."""
    content = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(content).hexdigest()


def authority_digest(certificate: x509.Certificate) -> str:
    """Return the SHA-256, in hexadecimal, of an authority's certificate; it names a federation."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


def to_text(content: bytes) -> str:
    """Return bytes in base64."""
    return base64.b64encode(content).decode()


def from_text(text: object) -> bytes:
    """Return the bytes in base64 text; raise WireError if it is anything else."""
    try:
        if isinstance(text, str) and len(text) <= MOST_BYTES:
            return base64.b64decode(text, validate=True)
    except ValueError:
        pass
    raise WireError("a signature or certificate must be text in base64")


def _fields(*parts: bytes) -> bytes:
    """Return the parts, each preceded by its length."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _verifies(key: ec.EllipticCurvePublicKey, signature: bytes, content: bytes) -> bool:
    try:
        key.verify(signature, content, _SIGNATURE)
    except InvalidSignature:
        return False
    return True
