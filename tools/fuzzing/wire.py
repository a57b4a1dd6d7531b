"""Sealed messages of every code format, and what the server sends down."""

import struct
from pathlib import Path
from random import Random

import numpy as np

from fuzzing.harness import Case, Entrance, check
from fuzzing.mutation import bytes_mutated
from sottovoce.mechanisms.mechanism import CodeFormat, Float32Codes, LevelCodes
from sottovoce.protocol import broadcast
from sottovoce.protocol.message import HEADER_BYTES, Envelope, _checksum, open_sealed, seal

_CHECKSUM = slice(HEADER_BYTES - 8, HEADER_BYTES)


def _formats() -> list[CodeFormat]:
    levels = (2, 3, 4, 5, 8, 13, 16, 100, 256, 257, 65536, 2**20, 2**32)
    return [Float32Codes(), *(LevelCodes(levels=number) for number in levels)]


def _sealed(_: Path) -> Case:
    generator = np.random.default_rng(1)
    examples = []
    for code_format in _formats():
        for dimension in (1, 7, 64):
            envelope = Envelope(
                parameter_hash=bytes(range(16)),
                round=3,
                uplink=1,
                dimension=dimension,
                code_format=code_format,
            )
            if isinstance(code_format, LevelCodes):
                drawn = generator.integers(0, code_format.levels, envelope.num_codes)
                codes = drawn.astype(code_format.dtype)
            else:
                codes = generator.normal(size=dimension).astype(np.float32)
            examples.append((envelope, seal(codes, envelope)))

    def case(random: Random) -> None:
        envelope, message = random.choice(examples)
        how = random.randrange(4)
        if how == 0:  # the payload only: what a client that lies would send
            body = bytes_mutated(random, message[HEADER_BYTES:])
            changed = message[:HEADER_BYTES] + body
        elif how == 1:  # opened as what it is not
            envelope, _ = random.choice(examples)
            changed = message
        else:
            changed = bytes_mutated(random, message)
        if len(changed) >= HEADER_BYTES and random.random() < 0.8:
            fields, payload = changed[: _CHECKSUM.start], changed[HEADER_BYTES:]
            changed = fields + _checksum(fields, payload) + payload
        codes = open_sealed(changed, envelope)
        check(seal(codes, envelope) == changed, "an opened message seals to other bytes")

    return case


def _downlink(_: Path) -> Case:
    generator = np.random.default_rng(2)
    examples = [
        (dimension, number_format, broadcast.pack(generator.normal(size=dimension), number_format))
        for dimension in (1, 5, 256, 300)
        for number_format in broadcast.DOWNLINK_FORMATS
    ]

    def case(random: Random) -> None:
        dimension, number_format, payload = random.choice(examples)
        if random.random() < 0.7:  # a number in it
            at = random.randrange(0, len(payload), 2)
            odd = struct.pack("<f", random.choice((0.0, 1e-45, 3e38, 1.0, -1.5, float("nan"))))
            odd = random.choice((odd, odd[2:], random.randbytes(4)))
            payload = (payload[:at] + odd + payload[at + len(odd) :])[: len(payload)]
        else:
            payload = bytes_mutated(random, payload)
        vector = broadcast.unpack(payload, dimension, number_format)
        check(bool(np.isfinite(vector).all()), "a broadcast number is not finite")
        if number_format == "int8":  # blocks may have been sent in larger steps than they need
            check(bool((vector == vector.astype(np.float32)).all()), "a number is no float32")
            return
        again = broadcast.unpack(broadcast.pack(vector, number_format), dimension, number_format)
        check(bool(np.array_equal(vector, again)), "a broadcast changes when it is sent on")

    return case


ENTRANCES = (
    Entrance(name="sealed-messages", share=250_000, prepare=_sealed),
    Entrance(name="downlink", share=150_000, prepare=_downlink),
)
