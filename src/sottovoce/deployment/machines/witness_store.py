"""The operator's side of the witness: countersigned statements of sites about their ledgers.

For each site's public key, the file link/witness/KEY.json, where KEY is the key's SHA-256, has the
newest receipt and warnings about statements for the operator.
"""

import contextlib
import dataclasses
import fcntl
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from sottovoce.core import files, printable_text
from sottovoce.core.errors import DeploymentError, WireError
from sottovoce.deployment.machines import certificates
from sottovoce.deployment.machines.federation import Federation
from sottovoce.deployment.orders import strict_json
from sottovoce.deployment.witness import (
    MOST_BYTES,
    STATE_KEYS,
    LedgerState,
    Receipt,
    Statement,
    authority_digest,
    from_text,
    key_digest,
)

_LOG = printable_text.logger()
FOLDER_NAME = "witness"  # in the link's folder


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessEntry:
    """What an operator keeps for one site's public key: its newest receipt, and warnings.

    Attributes:
        receipt: The newest receipt: a statement of the site about its ledger, countersigned.
        warning: What is wrong with the last statement; None if nothing is.
        first_warning: What is wrong with the first statement under this key, or None; later ones do
            not clear it.
    """

    receipt: Receipt
    warning: str | None = None
    first_warning: str | None = None

    def to_plain(self) -> dict[str, Any]:
        """Return the entry as JSON data."""
        return {
            "receipt": self.receipt.to_plain(),
            "warning": self.warning,
            "first_warning": self.first_warning,
        }

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        """Return the entry in JSON data; raise WireError if it is not one."""
        if not isinstance(plain, dict) or set(plain) != set(cls.__slots__):
            raise WireError("an entry must have a receipt and two warnings")
        warnings = {name: plain[name] for name in ("warning", "first_warning")}
        if not all(isinstance(text, str | None) for text in warnings.values()):
            raise WireError("a warning must be text or null")
        return cls(receipt=Receipt.from_plain(plain["receipt"]), **warnings)


class WitnessStore:
    """The receipts of a federation for its sites' ledgers; several runs may share them.

    A receipt is a site's signed statement about its ledger, countersigned with the link's key.
    """

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._keys = federation.public_keys()
        self.folder = federation.link_folder / FOLDER_NAME

    def receipt(self, site: str) -> Receipt | None:
        """Return the newest receipt for a site under its present key; None if there is none."""
        entry = self.entry(site)
        return entry.receipt if entry else None

    def entry(self, site: str) -> WitnessEntry | None:
        """Return what is kept for a site's present key; None if nothing, or without a key.

        Raises DeploymentError if the file is damaged.
        """
        key = self._keys.get(site)
        return None if key is None else read_entry(self.folder, key_digest(key))

    def take(self, site: str, statement: bytes, *, answered: Receipt | None) -> None:
        """Check a site's statement; keep and countersign it if it is newer than what is kept.

        A statement of fewer rows than before, of other rows or of another ledger is not kept, and
        the operator is warned. It is compared with the receipt that was sent with the request
        (`answered`; None without one), because with several runs at a time replies may arrive out
        of order. The first statement under a key is always kept, with a warning if it contradicts
        one under another key. Raises WireError if the statement is malformed or its signature is
        not valid, and DeploymentError if what is kept is damaged.
        """
        said, signature = self._read(site, statement)
        with self._locked():
            kept = read_entry(self.folder, said.key)
            problem = (
                self._contradiction_under_other_keys(said)
                if kept is None
                else _going_back(said.state, answered, kept.receipt)
            )
            if problem:
                _LOG.warning(
                    "the ledger of '%s' contradicts its earlier statements: %s", site, problem
                )
            if kept is None:
                entry = WitnessEntry(
                    receipt=self._countersigned(said, signature), first_warning=problem
                )
            elif problem or not said.state.exceeds(kept.receipt.statement.state):
                entry = dataclasses.replace(kept, warning=problem)
            else:
                receipt = self._countersigned(said, signature)
                entry = dataclasses.replace(kept, receipt=receipt, warning=None)
            if entry != kept:
                path = self.folder / f"{said.key}.json"
                files.write_json(path, entry.to_plain(), mode=files.PRIVATE)

    def _read(self, site: str, text: bytes) -> tuple[Statement, bytes]:
        if len(text) > MOST_BYTES:
            raise WireError(f"a statement must have at most {MOST_BYTES} bytes, got {len(text)}")
        plain = strict_json("the statement", text)
        keys = {*STATE_KEYS, "signature"}
        if not isinstance(plain, dict) or set(plain) != keys:
            raise WireError(f"a statement must have exactly the keys {', '.join(sorted(keys))}")
        key = self._keys.get(site)
        if key is None:
            raise WireError(f"'{site}' has no registered key")
        statement = Statement(
            federation=self._name,
            site=site,
            key=key_digest(key),
            state=LedgerState.from_plain(plain),
        )
        signature = from_text(plain["signature"])
        if not statement.is_signed(signature, key):
            raise WireError("the statement does not have a valid signature of the site's key")
        return statement, signature

    def _countersigned(self, statement: Statement, signature: bytes) -> Receipt:
        federation = self._federation
        return Receipt.countersigned(
            statement,
            signature,
            key=certificates.read_private_key(federation.certificate_key),
            certificate=certificates.read_certificate(federation.certificate),
        )

    def _contradiction_under_other_keys(self, said: Statement) -> str | None:
        """Return how the first statement under a key contradicts statements under other keys."""
        for path in self.folder.glob("*.json"):
            with contextlib.suppress(DeploymentError):
                entry = read_entry(self.folder, path.stem)
                before = entry and entry.receipt.statement
                if before and before.state.identity == said.state.identity:
                    problem = _contradiction(said.state, before.state)
                    if problem:
                        return f"{problem} (under another key, as '{before.site}')"
        return None

    @cached_property
    def _name(self) -> str:
        return authority_digest(certificates.read_certificate(self._federation.authority))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the store; wait for other runs."""
        with files.explain_os_errors("write", self.folder):
            self.folder.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
            lock = files.open_private(self.folder / "lock", append=True)
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def read_entry(folder: Path, key: str) -> WitnessEntry | None:
    """Return what is kept for a key; None if nothing is.

    `key` is the SHA-256 of a site's public key. Raises DeploymentError if it cannot be read.
    """
    path = folder / f"{key}.json"
    try:
        return WitnessEntry.from_plain(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DeploymentError(
            f"cannot read {path}: {error.strerror or error}; check the file's permissions"
        ) from None
    except (ValueError, RecursionError):  # WireError is a ValueError
        raise DeploymentError(
            f"{path} is damaged; restore it from a backup, or remove it. Without it the site's "
            "next statement is accepted unchecked"
        ) from None


def warnings_of(federation: Federation) -> dict[str, str]:
    """Return the warning about each site's ledger, without sites that have none."""
    store, found = WitnessStore(federation), {}
    for site in federation.sites:
        try:
            entry = store.entry(site)
        except DeploymentError as error:
            found[site] = str(error)
            continue
        warning = entry and (entry.warning or entry.first_warning)
        if warning:
            found[site] = warning
    return found


def _going_back(said: LedgerState, answered: Receipt | None, kept: Receipt) -> str | None:
    """Return why a statement cannot follow what is kept under the same key; None if it can."""
    newest = kept.statement.state
    if said.identity != newest.identity:
        return f"it is another ledger ({said.identity}, not {newest.identity}) under the same key"
    if answered is not None:
        problem = _contradiction(said, answered.statement.state)
        if problem:
            return problem
    return _fork(said, newest)


def _contradiction(said: LedgerState, before: LedgerState) -> str | None:
    """Return why a state cannot come after an earlier one; None if it can."""
    if said.charges < before.charges or said.messages < before.messages:
        return (
            f"it states {said.charges} charges and {said.messages} messages, but stated "
            f"{before.charges} and {before.messages} before"
        )
    return _fork(said, before)


def _fork(said: LedgerState, before: LedgerState) -> str | None:
    """Return whether two states with equal counts have different rows, as a text."""
    for name in ("charges", "messages"):
        count, head = getattr(said, name), getattr(said, f"{name}_head")
        if count == getattr(before, name) and head != getattr(before, f"{name}_head"):
            return f"it states {count} {name} as before, but different ones"
    return None
