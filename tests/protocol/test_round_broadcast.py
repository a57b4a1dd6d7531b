"""What every client of a round is sent is what it reads, and nothing else."""

import numpy as np
import pytest

from sottovoce.core.errors import WireError
from sottovoce.protocol.broadcast import (
    DOWNLINK_FORMATS,
    DownlinkFormat,
    Start,
    pack,
    pack_start,
    unpack,
    unpack_start,
)

GENERATOR = np.random.default_rng(0)
START = Start(
    model=GENERATOR.normal(size=300),
    state={"control": GENERATOR.normal(size=300), "secret": np.zeros((7, 300))},
)


@pytest.mark.parametrize("downlink", DOWNLINK_FORMATS)
def test_the_model_and_the_shared_state_arrive_as_they_are_packed(downlink: DownlinkFormat) -> None:
    payloads = pack_start(START, ("control",), downlink)
    assert payloads == (pack(START.model, downlink), pack(START.state["control"], downlink))
    found = unpack_start(payloads, ("control",), 300, downlink)
    np.testing.assert_array_equal(found.model, unpack(payloads[0], 300, downlink))
    assert list(found.state) == ["control"]
    np.testing.assert_array_equal(found.state["control"], unpack(payloads[1], 300, downlink))


def test_an_algorithm_that_shares_nothing_sends_the_model_alone() -> None:
    payloads = pack_start(START, (), "float32")
    assert payloads == (pack(START.model, "float32"),)
    assert unpack_start(payloads, (), 300, "float32").state == {}


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_vectors_is_refused(count: int) -> None:
    payloads = pack_start(START, (), "int8") * count
    with pytest.raises(WireError, match="expected 2; server and client need the same algorithm"):
        unpack_start(payloads, ("control",), 300, "int8")
