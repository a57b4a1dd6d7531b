"""The relay's paths, and the signatures of the collector's requests.

Devices use the first seven paths, the collector the others. Reports are signed inside and encrypted
to the relay, so a device's requests are not signed again. Those of the collector are signed with
its pinned key: the names of the clients and the ciphertexts are for the collector only.
"""

import hashlib
from base64 import b64decode, b64encode
from enum import StrEnum

from sottovoce.core.errors import WireError
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.roster import TrustKey, check_signature

CLOCK_SECONDS = 120.0
_LABEL = "relay request"


class Route(StrEnum):
    """Method and path of a request."""

    ANNOUNCED = "GET /1/announced"  # the digest of the announcement
    ANNOUNCEMENT = "GET /1/announcement"
    REGISTER = "POST /1/register"
    REPORT = "POST /1/report"
    ROOT_OF = "GET /1/root/"  # followed by the digest of a ciphertext, in hexadecimal digits
    LEAVES = "GET /1/leaves"  # the root with the digests of the whole list
    CONFIRM = "POST /1/confirmation"
    ANNOUNCE = "POST /1/announce"
    FROZEN = "GET /1/frozen"
    ACCEPTED = "POST /1/accepted"
    LIST = "GET /1/list"
    ROOT = "POST /1/root"
    CONFIRMATIONS = "GET /1/confirmations"
    HEALTH = "GET /1/health"


def sign_request(key: TrustKey, federation: bytes, route: Route, body: bytes, now: float) -> str:
    """Return the header 'authorization' of a request of the collector.

    Args:
        key: The collector's signing key.
        federation: The federation's id.
        route: Method and path.
        body: The body; empty without one.
        now: The time, in seconds since 1970.

    Returns:
        The time, the body's digest and the signature.
    """
    digest = hashlib.sha256(body).digest()
    signature = key.sign(
        Protocol.TWO_SERVER_SUM, _LABEL, federation, route.value, int(now), len(body), digest
    )
    return f"{int(now)} {b64encode(digest).decode()} {b64encode(signature).decode()}"


def check_request(
    header: str, key: bytes, federation: bytes, route: Route, length: int, now: float
) -> bytes:
    """Return the SHA-256 digest that the body of a signed request must have.

    Args:
        header: The header 'authorization'.
        key: The collector's pinned public key.
        federation: The federation's id.
        route: Method and path.
        length: The declared length of the body.
        now: The time, in seconds since 1970.

    Returns:
        The digest, 32 bytes.

    Raises:
        WireError: The request was not signed by the collector within the last two minutes.
    """
    try:
        time, digest, signature = header.split(" ")
        seconds, content = int(time), b64decode(digest, validate=True)
        signed = b64decode(signature, validate=True)
    except ValueError:
        raise WireError("only the collector may ask for this; sign the request") from None
    check_signature(
        key,
        signed,
        Protocol.TWO_SERVER_SUM,
        _LABEL,
        federation,
        route.value,
        max(seconds, 0),
        length,
        content,
    )
    if abs(now - seconds) > CLOCK_SECONDS:
        raise WireError(
            f"the request was signed {now - seconds:.0f} seconds ago by the relay's clock, and at "
            f"most {CLOCK_SECONDS:.0f} are allowed; set the clocks of both machines"
        )
    return content
