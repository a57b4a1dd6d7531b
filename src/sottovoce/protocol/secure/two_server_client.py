"""A client of a secure sum with two servers: one message to the relay, and nothing after it.

The client adds a mask to its codes and sends the sum to the relay, with the seed of the mask
encrypted to the collector. The relay adds up masked vectors without knowing masks; the collector
subtracts masks without ever seeing a vector of one client.
"""

import secrets
from collections.abc import Sequence

from sottovoce.core.errors import ParameterError
from sottovoce.mechanisms.packing import UnsignedCodes
from sottovoce.protocol.secure import hpke, two_server_messages
from sottovoce.protocol.secure.announcement import SEED_BYTES, Announcement
from sottovoce.protocol.secure.encoding import Protocol, derive_key
from sottovoce.protocol.secure.masks import MaskedSum
from sottovoce.protocol.secure.reporting_client import ReportingClient
from sottovoce.protocol.secure.two_server_messages import SumReport

SUM = Protocol.TWO_SERVER_SUM


def mask_key(seed: bytes, ann: bytes, client: str, uplink: int) -> bytes:
    """Return the key of a client's mask for one uplink."""
    return derive_key(seed, SUM, "mask", ann, client, uplink)


class TwoServerClient(ReportingClient[Sequence[UnsignedCodes]]):
    """A client of sums; `draw` returns one vector of codes below `levels` for each uplink."""

    protocol = SUM

    def _encode(self, announcement: Announcement, drawn: Sequence[UnsignedCodes]) -> bytes:
        asked, ann = announcement.attempt, announcement.ann
        beyond = any(
            codes.max(initial=0) >= asked.levels or codes.min(initial=0) < 0 for codes in drawn
        )
        if len(drawn) != asked.uplinks or beyond:
            raise ParameterError(
                f"expected {asked.uplinks} vectors of codes below {asked.levels}; draw them from "
                "the mechanism that was announced"
            )
        seed = secrets.token_bytes(SEED_BYTES)
        vectors = []
        for uplink, codes in enumerate(drawn):
            masked = MaskedSum(asked.dimension, asked.bits)
            masked.add_codes(codes)
            masked.add_mask(mask_key(seed, ann, self.name, uplink))
            vectors.append(masked.packed())
        return self._signed(announcement, seed, b"".join(vectors))

    def _signed(self, announcement: Announcement, seed: bytes, vectors: bytes) -> bytes:
        ann = announcement.ann
        info = two_server_messages.seed_info(ann, self.name)
        ciphertext = hpke.seal(announcement.hpke_key, seed, info)
        for_collector = two_server_messages.collector_statement(ann, self.name, ciphertext)
        for_relay = two_server_messages.relay_statement(ann, self.name, vectors, ciphertext)
        return SumReport(
            name=self.name,
            ciphertext=ciphertext,
            for_collector=self._key.sign(SUM, "for the collector", *for_collector),
            for_relay=self._key.sign(SUM, "for the relay", *for_relay),
            vectors=vectors,
        ).to_bytes()
