"""What every client of a round is sent is what it reads, and nothing else."""

import numpy as np
import pytest

from sottovoce.core.errors import WireError
from sottovoce.protocol import broadcast
from sottovoce.protocol.broadcast import (
    DOWNLINK_FORMATS,
    DownlinkFormat,
    Start,
    as_received,
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


@pytest.mark.parametrize("downlink", DOWNLINK_FORMATS)
def test_a_large_vector_is_rounded_in_pieces_as_it_is_as_a_whole(
    downlink: DownlinkFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast, "_TOGETHER", 2 * broadcast.BLOCK)
    vector = np.random.default_rng(1).normal(size=3000)
    found = as_received(vector, downlink)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, unpack(pack(vector, downlink), 3000, downlink))
    vector[2900] = np.inf
    for function in (pack, as_received):
        with pytest.raises(WireError, match="coordinate 2900 "):
            function(vector, downlink)


def test_an_algorithm_that_shares_nothing_sends_the_model_alone() -> None:
    payloads = pack_start(START, (), "float32")
    assert payloads == (pack(START.model, "float32"),)
    assert unpack_start(payloads, (), 300, "float32").state == {}


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_vectors_is_refused(count: int) -> None:
    payloads = pack_start(START, (), "int8") * count
    with pytest.raises(WireError, match="expected 2; server and client need the same algorithm"):
        unpack_start(payloads, ("control",), 300, "int8")
