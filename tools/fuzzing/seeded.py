"""Messages that are seeds: what a client may send, and how the server decodes it."""

from pathlib import Path
from random import Random

import numpy as np

from fuzzing.harness import Case, Entrance, check
from fuzzing.mutation import bytes_mutated
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.registry import parameter_hash
from sottovoce.protocol.message import HEADER_BYTES, Envelope, _checksum, open_sealed, seal


def _messages(_: Path) -> Case:
    examples = []
    for kind in ("seeded_sign", "seeded_step"):
        found = registry.find(kind)
        mechanism = found.build(found.example_domain, found.examples[0])
        dimension = mechanism.input_domain.dimension
        codes = mechanism.encode(np.zeros(dimension), SeededRandomness(1).stream(kind, 0))
        envelope = Envelope(
            parameter_hash=parameter_hash(mechanism),
            round=1,
            uplink=0,
            dimension=dimension,
            code_format=mechanism.code_format(),
        )
        examples.append((mechanism, envelope, seal(codes, envelope)))

    def case(random: Random) -> None:
        mechanism, envelope, message = random.choice(examples)
        body = message[HEADER_BYTES:]
        body = random.randbytes(len(body)) if random.random() < 0.5 else bytes_mutated(random, body)
        fields = message[: HEADER_BYTES - 8]
        changed = fields + _checksum(fields, body) + body
        codes = open_sealed(changed, envelope)
        check(seal(codes, envelope) == changed, "an opened message seals to other bytes")
        decoded = mechanism.decode(codes)
        check(decoded.shape == (envelope.dimension,), "a message decodes to another shape")
        check(bool(np.isfinite(decoded).all()), "a message decodes to what is not finite")

    return case


ENTRANCES = (Entrance(name="seeded-messages", share=30_000, prepare=_messages),)
