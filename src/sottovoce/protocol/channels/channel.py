"""The closed set of channels.

A channel says what is charged for a message, which cohorts it can serve, whether the server may
know who sent what, and how it adds up what arrives. Where noise is `Central` there are no messages
to speak of: it only says what is charged.
"""

from typing import Protocol

from sottovoce.core.domains import Vector
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.protocol.channels.central import Central as Central
from sottovoce.protocol.channels.direct import Direct as Direct
from sottovoce.protocol.channels.secret_order import SecretOrder as SecretOrder
from sottovoce.protocol.channels.secure_sum import SecureSum as SecureSum
from sottovoce.protocol.channels.shuffler import Shuffler as Shuffler
from sottovoce.protocol.message import Opened

MessageChannel = Direct | SecureSum | Shuffler | SecretOrder  # clients encode, and messages travel
Channel = MessageChannel | Central


class Collector(Protocol):
    """Adds up the messages of one round in O(d) memory; codes stay packed where they can."""

    def add(self, mechanism: Mechanism, weight: float, opened: Opened) -> None: ...

    def result(self) -> Vector | None:
        """The mean, or None where nothing may be, or can be, said."""
        ...
