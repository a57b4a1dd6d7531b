"""What a person's answer goes through, and what a question that has one such channel says of it."""

from typing import Protocol

from sottovoce.mechanisms.mechanism import CodeFormat, Sampling
from sottovoce.privacy.events import PrivacyEvent


class Channel(Protocol):
    """A value in, one private code out."""

    @property
    def kind(self) -> str:
        """The registered mechanism whose law the codes follow; a site's policy names it."""
        ...

    @property
    def event(self) -> PrivacyEvent: ...

    @property
    def sampling(self) -> Sampling: ...

    @property
    def code_format(self) -> CodeFormat: ...

    @property
    def digest(self) -> str:
        """Stands for all that both sides must hold alike, tables included."""
        ...


class ThroughChannel:
    """Base of questions whose every answer goes through one channel, whoever is asked what."""

    __slots__ = ()

    @property
    def channel(self) -> Channel:
        raise NotImplementedError

    @property
    def mechanism_kind(self) -> str:
        return self.channel.kind

    @property
    def event(self) -> PrivacyEvent:
        return self.channel.event

    @property
    def sampling(self) -> Sampling:
        return self.channel.sampling

    @property
    def code_format(self) -> CodeFormat:
        return self.channel.code_format

    @property
    def digest(self) -> str:
        return self.channel.digest
