"""Announcements of small sums and shuffles that clients of a test can answer."""

import hashlib
from typing import Any

from sottovoce import L2Ball
from sottovoce.core.adjacency import Adjacency
from sottovoce.mechanisms.clamped_sign import ClampedSign
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.mechanisms.seeded_step import SeededStep
from sottovoce.protocol.relayed import canonical_parameters, level_codes
from sottovoce.protocol.secure.attempt import Attempt
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.operators import Operators

SUM, SHUFFLER = Protocol.TWO_SERVER_SUM, Protocol.SHUFFLER
DIMENSION, THRESHOLD, MOST = 64, 3, 6
PAYLOAD_BYTES = 16
CONTENT = b"a model"
_BALL = L2Ball(radius=1.0, dimension=DIMENSION)
MECHANISMS: dict[Protocol, Mechanism] = {
    SUM: ClampedSign(input_domain=_BALL, noise_multiplier=0.5, logit_bound=1.0),
    SHUFFLER: SeededStep(
        input_domain=_BALL,
        epsilon=2.0,
        length="kept",
        generator="chacha20-1",
        timing="constant",
    ),
}
ADJACENCY = {SUM: Adjacency.ZERO_OUT, SHUFFLER: Adjacency.REPLACE_ONE}


def attempt_of(operators: Operators, protocol: Protocol, **changed: Any) -> Attempt:
    """Return an attempt that needs three clients, with other fields if wanted."""
    mechanism = MECHANISMS[protocol]
    fields: dict[str, Any] = {
        "protocol": protocol,
        "parties": operators.digest,
        "federation": operators.federation,
        "run": "run",
        "round": 1,
        "attempt": 1,
        "dimension": DIMENSION,
        "uplinks": 1,
        "levels": level_codes(mechanism, protocol).levels,
        "bits": 8 if protocol is SUM else 32,
        "most_clients": MOST,
        "threshold": THRESHOLD,
        "mechanism": canonical_parameters(mechanism),
        "adjacency": str(ADJACENCY[protocol]),
        "unit": "client",
        "model_digest": hashlib.sha256(CONTENT).digest(),
        **changed,
    }
    rotation = Rotation.of_round(fields["run"], fields["round"], DIMENSION)
    return Attempt(**{"rotation_seed": rotation.seed, **fields})
