"""The server receives every message and knows whose it is."""

from dataclasses import dataclass

from sottovoce.mechanisms.release import EveryMessage
from sottovoce.protocol.channels.channel import Channel, register_channel


@register_channel("direct", summary="the server sees every message and who sent it")
@dataclass(frozen=True, slots=True, kw_only=True)
class Direct(Channel):
    """Nothing is hidden."""

    @property
    def wire_name(self) -> str:
        """The name in the hash of a plan, whatever the class is called; it never changes."""
        return "Direct()"

    @property
    def visibility(self) -> EveryMessage:
        """Everything is seen."""
        return EveryMessage()

    def serves(self, clients: int) -> bool:  # noqa: ARG002
        """Any cohort will do."""
        return True

    def describe(self) -> str:
        return "direct: the server sees every message"

    def guarantee(self) -> str:
        return "local privacy: the messages hide"

    def seen_by(self, *, private: bool) -> str:
        trust = "It is trusted with all of it."
        if private:
            trust = (
                "Noise is added before anything leaves a client, so the server learns no more than "
                "epsilon allows."
            )
        return f"The server sees every reply and who sent it. {trust}"
