"""Authentication of a call by its headers: a registered key, a fresh time, and a signature.

Flower's node signs the time of each call, and Flower's link checks the signature after it has read
the whole body. The gate in front of the link checks the same before it reads the body, with the
same window of time.
"""

import binascii
import datetime
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from sottovoce.core import printable_text
from sottovoce.core.errors import SottovoceError
from sottovoce.deployment.machines import certificates
from sottovoce.deployment.machines.federation import FILE_NAME, Federation

PUBLIC_KEY_HEADER, SIGNATURE_HEADER = "flwr-public-key", "flwr-signature"
TIMESTAMP_HEADER = "flwr-timestamp"
# As in Flower: how far ahead of this machine's clock, and how long ago, a call may be signed.
MOST_AHEAD_SECONDS, MOST_AGE_SECONDS = 5.0, 305.0

_LOG = printable_text.logger()


class UnknownKeyError(Exception):
    """The key belongs to no site of this federation."""


class SignatureError(Exception):
    """The signature or its time is not valid."""


class SiteKeys:
    """The public keys of a federation's sites, read again whenever the operator changes them.

    `folder` is the operator's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state: tuple[int, ...] = ()
        self._keys: dict[bytes, tuple[str, ec.EllipticCurvePublicKey]] = {}
        self.largest_reply_bytes = 0
        self.refresh()

    def refresh(self) -> None:
        """Read the keys again if the operator has changed them.

        If a file cannot be read, a warning is logged and the keys stay as they are.
        """
        parts = (self._folder / FILE_NAME, self._folder / "keys")
        try:
            state = tuple(part.stat().st_mtime_ns for part in parts)
            if state == self._state:
                return
            federation = Federation.read(self._folder)
            keys = federation.public_keys()
        except (OSError, SottovoceError) as error:
            if self._state != (0,):  # warn once, not at every call
                _LOG.warning("the keys of the sites cannot be read and are not updated: %s", error)
            self._state = (0,)
            return
        self._state = state
        self.largest_reply_bytes = federation.largest_reply_bytes
        self._keys = {certificates.to_flower_key(key): (site, key) for site, key in keys.items()}

    def site_of(self, headers: Mapping[str, str], now: datetime.datetime | None = None) -> str:
        """Return the site that signed a call.

        Args:
            headers: Headers of the call.
            now: The current time, for tests.

        Returns:
            Name of the site.

        Raises:
            UnknownKeyError: The key is not registered.
            SignatureError: A header is missing or malformed, the time is more than 305 seconds ago
                or 5 ahead, or the signature is not the key's.
        """
        self.refresh()
        try:
            public_key = b64decode(headers[PUBLIC_KEY_HEADER], validate=True)
            signature = b64decode(headers[SIGNATURE_HEADER], validate=True)
            timestamp = headers[TIMESTAMP_HEADER]
            signed_at = datetime.datetime.fromisoformat(timestamp)
            age = ((now or datetime.datetime.now(datetime.UTC)) - signed_at).total_seconds()
            signed = timestamp.encode("ascii")
        except (KeyError, ValueError, TypeError, binascii.Error):
            raise SignatureError from None
        if public_key not in self._keys:
            raise UnknownKeyError
        if not -MOST_AHEAD_SECONDS < age < MOST_AGE_SECONDS:
            raise SignatureError
        site, key = self._keys[public_key]
        try:
            key.verify(signature, signed, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise SignatureError from None
        return site
