"""Whether a mechanism that packs its codes itself gives the bytes of its `encode`."""

import numpy as np

from sottovoce.core.domains import L1Ball, Vector
from sottovoce.core.randomness import Keystream, SeededRandomness
from sottovoce.mechanisms.encoding import EncodesPacked, encode_packed, pack_codes, prepare
from sottovoce.mechanisms.mechanism import Mechanism


def packs_alike(mechanism: Mechanism, values: Vector) -> bool:
    """Return whether packed rows are packed codes, for `values` and for what must be clipped."""
    if not isinstance(mechanism, EncodesPacked):
        return True
    domain = mechanism.input_domain
    longer = 0.5 if isinstance(domain, L1Ball) else 3.0  # a mean of records is not projected in L1
    rows = np.stack([values, longer * values])

    def streams() -> list[Keystream]:
        return [SeededRandomness(3).stream("packed", number) for number in range(len(rows))]

    expected = [
        pack_codes(mechanism.encode(domain.project(row), stream), mechanism.code_format())
        for row, stream in zip(rows, streams(), strict=True)
    ]
    found = encode_packed(prepare(mechanism, rows), streams()).on_cpu()
    return [row.tobytes() for row in found] == expected
