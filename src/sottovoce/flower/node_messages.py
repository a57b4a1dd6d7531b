"""What passes between a relay's bridge and the sites of a link, as bytes by name.

`ReportRequest` hands out an announcement with its content; a site answers with its report, which it
has sealed to the relay, and its certificate. `ConfirmationRequest` hands out the digests of a whole
list, so it does not tell which message is whose; a site answers with its confirmation. Instead of
an answer a site may send a refusal. Receipts and statements about ledgers come along as with any
other request of a link.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from sottovoce.core import bounded_json
from sottovoce.core.errors import WireError
from sottovoce.deployment.orders import OPTIONAL_PARTS, REFUSED, Blobs

ACTION = "relay"  # Flower names the handler after it.
ANNOUNCED = "announced"  # the part of a message that contains the announcement
_CONTENT, _LEAVES, _RECEIPT = "content", "leaves", "receipt"
_REPORT, _CERTIFICATE, _CONFIRMATION = "report", "certificate", "confirmation"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A request about an announcement.

    Attributes:
        announced: The announcement, as the relay handed it out.
        receipt: The newest receipt for the site's ledger, if there is one.
    """

    message_type: ClassVar[str] = f"query.{ACTION}"
    part: ClassVar[str]  # the part of a message that contains what comes with the announcement

    announced: bytes
    receipt: Mapping[str, Any] | None = None

    @property
    def round(self) -> int:
        """0: announcements name their rounds themselves."""
        return 0

    def with_receipt(self, receipt: Mapping[str, Any] | None) -> Self:
        """Return a copy with this receipt for the site's ledger, or without one."""
        return dataclasses.replace(self, receipt=receipt)

    def _blobs(self, content: bytes) -> dict[str, bytes]:
        found = {ANNOUNCED: self.announced, self.part: content}
        if self.receipt is not None:
            found[_RECEIPT] = json.dumps(self.receipt).encode()
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest(_Request):
    """The request for a report.

    Attributes:
        content: What the announcement is about: an order or a question.
    """

    part: ClassVar[str] = _CONTENT

    content: bytes

    def blobs(self) -> dict[str, bytes]:
        """Return the request as it is sent."""
        return self._blobs(self.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmationRequest(_Request):
    """The request for a confirmation.

    Attributes:
        leaves: Root and digests of the list, from the relay.
    """

    part: ClassVar[str] = _LEAVES

    leaves: bytes

    def blobs(self) -> dict[str, bytes]:
        """Return the request as it is sent."""
        return self._blobs(self.leaves)


def read_request(blobs: Blobs) -> ReportRequest | ConfirmationRequest:
    """Return the request in a message; WireError if there is none."""
    given = set(blobs) - {_RECEIPT}
    receipt = _receipt(blobs[_RECEIPT]) if _RECEIPT in blobs else None
    if given == {ANNOUNCED, _CONTENT}:
        return ReportRequest(announced=blobs[ANNOUNCED], content=blobs[_CONTENT], receipt=receipt)
    if given == {ANNOUNCED, _LEAVES}:
        return ConfirmationRequest(
            announced=blobs[ANNOUNCED], leaves=blobs[_LEAVES], receipt=receipt
        )
    raise WireError("expected a relay's announcement, got other parts")


def _receipt(text: bytes) -> Mapping[str, Any]:
    try:
        found = bounded_json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise WireError("expected a receipt for a ledger, got other bytes")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteReport:
    """A site's report.

    Attributes:
        sealed: The report, sealed to the relay.
        certificate: The site's certificate, for a relay that does not know it.
    """

    sealed: bytes
    certificate: bytes

    def blobs(self) -> dict[str, bytes]:
        """Return the answer as it is sent."""
        return {_REPORT: self.sealed, _CERTIFICATE: self.certificate}


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteConfirmation:
    """A site's confirmation that its message is in the list."""

    confirmation: bytes

    def blobs(self) -> dict[str, bytes]:
        """Return the answer as it is sent."""
        return {_CONFIRMATION: self.confirmation}


class RefusedBySiteError(WireError):
    """A site has refused a request; the text is its reason."""


def read_answer(blobs: Blobs) -> SiteReport | SiteConfirmation:
    """Return a site's answer, which is not trusted.

    Raises:
        RefusedBySiteError: The site refuses.
        WireError: It is no answer.
    """
    if REFUSED in blobs:
        raise RefusedBySiteError(blobs[REFUSED].decode(errors="replace"))
    given = set(blobs) - OPTIONAL_PARTS
    if given == {_REPORT, _CERTIFICATE}:
        return SiteReport(sealed=blobs[_REPORT], certificate=blobs[_CERTIFICATE])
    if given == {_CONFIRMATION}:
        return SiteConfirmation(confirmation=blobs[_CONFIRMATION])
    raise WireError("expected a report or a confirmation, got other parts")
