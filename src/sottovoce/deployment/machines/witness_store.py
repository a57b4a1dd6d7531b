"""The operator's side of the witness: what each site has stated about its ledger, countersigned.

link/witness/KEY.json   for each site's public key, by its SHA-256: the newest receipt, and what
                        the operator should know about the last statement, if anything
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
class Entry:
    """What is kept for one key.

    `warning` is what is wrong with the last statement, `first_warning` with the first one under
    this key, which no later one puts right.
    """

    receipt: Receipt
    warning: str | None = None
    first_warning: str | None = None

    def to_plain(self) -> dict[str, Any]:
        return {
            "receipt": self.receipt.to_plain(),
            "warning": self.warning,
            "first_warning": self.first_warning,
        }

    @classmethod
    def from_plain(cls, plain: Any) -> Self:
        if not isinstance(plain, dict) or set(plain) != set(cls.__slots__):
            raise WireError("an entry has a receipt and two warnings")
        warnings = {name: plain[name] for name in ("warning", "first_warning")}
        if not all(isinstance(text, str | None) for text in warnings.values()):
            raise WireError("a warning is text")
        return cls(receipt=Receipt.from_plain(plain["receipt"]), **warnings)


class WitnessStore:
    """A federation's witness; several runs may share it."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._keys = federation.public_keys()
        self.folder = federation.link_folder / FOLDER_NAME

    def receipt(self, site: str) -> Receipt | None:
        """Return the newest receipt for a site under its present key."""
        entry = self.entry(site)
        return entry.receipt if entry else None

    def entry(self, site: str) -> Entry | None:
        key = self._keys.get(site)
        return None if key is None else read_entry(self.folder, key_digest(key))

    def take(self, site: str, statement: bytes, *, answered: Receipt | None) -> None:
        """Check a site's statement, and keep and countersign it if it is newer than what is kept.

        A statement that goes back is told to the operator and kept out. What counts is the receipt
        to which it `answered`: with several runs at a time replies may come out of order.
        """
        said, signature = self._read(site, statement)
        with self._locked():
            kept = read_entry(self.folder, said.key)
            problem = (
                self._elsewhere(said)
                if kept is None
                else _going_back(said.state, answered, kept.receipt)
            )
            if problem:
                _LOG.warning("the ledger of '%s' is not what it was: %s", site, problem)
            if kept is None:
                entry = Entry(receipt=self._countersigned(said, signature), first_warning=problem)
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
            raise WireError(f"a statement has at most {MOST_BYTES} bytes")
        plain = strict_json("the statement", text)
        keys = {*STATE_KEYS, "signature"}
        if not isinstance(plain, dict) or set(plain) != keys:
            raise WireError(f"a statement has {', '.join(sorted(keys))}")
        key = self._keys.get(site)
        if key is None:
            raise WireError(f"'{site}' has no key here")
        statement = Statement(
            federation=self._name,
            site=site,
            key=key_digest(key),
            state=LedgerState.from_plain(plain),
        )
        signature = from_text(plain["signature"])
        if not statement.is_signed(signature, key):
            raise WireError("it does not bear the signature of the site's key")
        return statement, signature

    def _countersigned(self, statement: Statement, signature: bytes) -> Receipt:
        federation = self._federation
        return Receipt.countersigned(
            statement,
            signature,
            key=certificates.read_private_key(federation.certificate_key),
            certificate=certificates.read_certificate(federation.certificate),
        )

    def _elsewhere(self, said: Statement) -> str | None:
        """What the first statement under a key contradicts, of what was said under earlier ones."""
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
        """One run at a time; unlike a run's folder this one is waited for."""
        with files.explained("write", self.folder):
            self.folder.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
            lock = files.open_private(self.folder / "lock", append=True)
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def read_entry(folder: Path, key: str) -> Entry | None:
    """Return what is kept for a key; DeploymentError if it cannot be read."""
    path = folder / f"{key}.json"
    try:
        return Entry.from_plain(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DeploymentError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):  # WireError is a ValueError
        raise DeploymentError(
            f"{path} is damaged; restore it from a backup, or remove it: the site is then believed "
            "once, whatever its ledger says"
        ) from None


def warnings_of(federation: Federation) -> dict[str, str]:
    """Return what the operator should know of the sites' ledgers, by site."""
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
    """Why a statement cannot come after what is kept under the same key; None if it can."""
    newest = kept.statement.state
    if said.identity != newest.identity:
        return f"it is another ledger ({said.identity}, not {newest.identity}) under the same key"
    if answered is not None:
        problem = _contradiction(said, answered.statement.state)
        if problem:
            return problem
    return _fork(said, newest)


def _contradiction(said: LedgerState, before: LedgerState) -> str | None:
    if said.charges < before.charges or said.messages < before.messages:
        return (
            f"it states {said.charges} charges and {said.messages} messages, where it had stated "
            f"{before.charges} and {before.messages}"
        )
    return _fork(said, before)


def _fork(said: LedgerState, before: LedgerState) -> str | None:
    for name in ("charges", "messages"):
        count, head = getattr(said, name), getattr(said, f"{name}_head")
        if count == getattr(before, name) and head != getattr(before, f"{name}_head"):
            return f"it states other {name} than before, though as many ({count})"
    return None
