"""The client and server sides of a round, without torch: messages, plans, channels and sums.

    message = Client("clinic-3", mechanism, ledger=ledger).send(update, round=1)
    server.receive("clinic-3", message)

A client clips its update, charges its ledger, encodes, seals and stores the message, in this order.
A server checks every field of a message against its own plan of the round and trusts none of them.
This package imports `mechanisms`, `ledger`, `privacy` and `core`.
"""

from typing import TYPE_CHECKING

from sottovoce.core.faces import export_lazily

if TYPE_CHECKING:
    from sottovoce.protocol.broadcast import pack as pack
    from sottovoce.protocol.broadcast import unpack as unpack
    from sottovoce.protocol.channels.central import Central as Central
    from sottovoce.protocol.channels.channel import Channel as Channel
    from sottovoce.protocol.channels.channel import ChannelContext as ChannelContext
    from sottovoce.protocol.channels.channel import Direct as Direct
    from sottovoce.protocol.channels.channel import RuntimeFacts as RuntimeFacts
    from sottovoce.protocol.channels.channel import SamplingFacts as SamplingFacts
    from sottovoce.protocol.channels.channel import register_channel as register_channel
    from sottovoce.protocol.channels.secret_order import SecretOrder as SecretOrder
    from sottovoce.protocol.channels.secure_sum import SecureSum as SecureSum
    from sottovoce.protocol.channels.shuffler import Shuffler as Shuffler
    from sottovoce.protocol.message import Envelope as Envelope
    from sottovoce.protocol.message import open_sealed as open_sealed
    from sottovoce.protocol.message import seal as seal
    from sottovoce.protocol.message import seal_packed as seal_packed
    from sottovoce.protocol.parties import Client as Client
    from sottovoce.protocol.parties import Server as Server
    from sottovoce.protocol.plan import ClientPlan as ClientPlan
    from sottovoce.protocol.plan import RoundPlan as RoundPlan
    from sottovoce.protocol.server import RoundServer as RoundServer

export_lazily(
    __name__,
    {
        "broadcast": ["pack", "unpack"],
        "channels.central": ["Central"],
        "channels.channel": [
            "Channel",
            "ChannelContext",
            "Direct",
            "RuntimeFacts",
            "SamplingFacts",
            "register_channel",
        ],
        "channels.secret_order": ["SecretOrder"],
        "channels.secure_sum": ["SecureSum"],
        "channels.shuffler": ["Shuffler"],
        "message": ["Envelope", "open_sealed", "seal", "seal_packed"],
        "parties": ["Client", "Server"],
        "plan": ["ClientPlan", "RoundPlan"],
        "server": ["RoundServer"],
    },
)
