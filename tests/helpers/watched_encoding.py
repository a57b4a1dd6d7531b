"""A look at every vector that is about to be encoded, for tests of what happens when."""

from collections.abc import Callable, Sequence

import pytest

from sottovoce.core.domains import Vector
from sottovoce.core.randomness import Keystream
from sottovoce.mechanisms.encoding import Payloads, Prepared
from sottovoce.mechanisms.gauss_hermite import GaussHermite


def watch_encoding(
    monkeypatch: pytest.MonkeyPatch, watch: Callable[[Vector, Keystream], object]
) -> None:
    """Call `watch` with each row and its keystream before GaussHermite draws any code of them."""
    encode_packed = GaussHermite.encode_packed

    def watched(
        self: GaussHermite, prepared: Prepared, keystreams: Sequence[Keystream]
    ) -> Payloads:
        for i, keystream in enumerate(keystreams):
            watch(prepared.vector(i), keystream)
        return encode_packed(self, prepared, keystreams)

    monkeypatch.setattr(GaussHermite, "encode_packed", watched)
