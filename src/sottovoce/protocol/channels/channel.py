"""The closed set of channels, and the terms on which messages are released through one.

A channel says what is seen of the messages (`visibility`), which cohorts it can serve, whether the
server may know who sent what, and how it adds up what arrives. What a message costs follows from
the visibility (`mechanisms.release`); a channel cannot say it. Where noise is `Central` there are
no messages to speak of.
"""

from typing import Protocol, assert_never

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Vector
from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.release import (
    EveryMessage,
    NoisySums,
    NoSenders,
    OnlySums,
    ReleaseTerms,
    SecretSample,
)
from sottovoce.privacy.events import HiddenBy
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


def terms_of(
    channel: Channel, adjacency: Adjacency, *, record_sampling_rate: float = 1.0
) -> ReleaseTerms:
    """Return what a message costs if each record takes part in it with this probability."""
    sample = None
    if record_sampling_rate < 1.0:
        hidden_by = _records_hidden_by(channel)
        sample = SecretSample(rate=record_sampling_rate, scheme="poisson", hidden_by=hidden_by)
    return ReleaseTerms(adjacency=adjacency, visibility=channel.visibility, sample=sample)


def _records_hidden_by(channel: Channel) -> HiddenBy:
    """Return what keeps secret which records a client sampled."""
    match channel.visibility:
        case EveryMessage():
            return "own-records"
        case NoisySums():
            return "central-noise"
        case OnlySums() | NoSenders():
            raise ParameterError(
                "samples of records are accounted on the channels 'direct' and 'central' only, not "
                f"on {channel.describe()}; set the record sampling rate to 1"
            )
        case _:
            assert_never(channel.visibility)
