"""Arrays of every kind at every entrance: the right result or a clear error, never silence."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sottovoce.core.domains import L2Ball
from sottovoce.core.errors import DomainError, ParameterError, SottovoceError, WireError
from sottovoce.core.randomness import Keystream, SeededRandomness
from sottovoce.core.threads import thread_count
from sottovoce.ledger.ledger import temporary_ledger
from sottovoce.ledger.records import Budget
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.encoding import encode_packed, prepare
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.mechanism import Float32Codes
from sottovoce.mechanisms.packing import pack, unpack
from sottovoce.mechanisms.registry import Registration
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.protocol.parties import Client, Server
from sottovoce.protocol.sums import LevelCounts, StreamingMean

DIMENSION = 24
# Exact in bfloat16, so that every type below holds the same numbers.
VALUES = np.arange(-12, 12) / 64.0
MECHANISM = GaussHermite(
    input_domain=L2Ball(dimension=DIMENSION, radius=1.0), levels=2, noise_multiplier=0.5
)
ROTATION = Rotation.of_round("bad-input", 1, DIMENSION)


class Subclass(np.ndarray[Any, Any]):
    """An array of another class."""


def _read_only() -> Any:
    values = VALUES.copy()
    values.flags.writeable = False
    return values


SAME_NUMBERS: dict[str, Callable[[], Any]] = {
    "list": lambda: VALUES.tolist(),
    "float32": lambda: VALUES.astype(np.float32),
    "float16": lambda: VALUES.astype(np.float16),
    "long double": lambda: VALUES.astype(np.longdouble),
    "big-endian float64": lambda: VALUES.astype(">f8"),
    "big-endian float32": lambda: VALUES.astype(">f4"),
    "every second": lambda: np.repeat(VALUES, 2)[::2],
    "backwards": lambda: VALUES[::-1].copy()[::-1],
    "a column": lambda: np.stack([VALUES, VALUES], axis=1)[:, 1],
    "not aligned": lambda: np.frombuffer(b"x" + VALUES.tobytes(), offset=1),
    "read-only": _read_only,
    "a subclass": lambda: VALUES.view(Subclass),
    "masked, nothing hidden": lambda: np.ma.masked_array(VALUES, mask=False),
    "tensor": lambda: torch.tensor(VALUES),
    "float32 tensor": lambda: torch.tensor(VALUES, dtype=torch.float32),
    "float16 tensor": lambda: torch.tensor(VALUES, dtype=torch.float16),
    "bfloat16 tensor": lambda: torch.tensor(VALUES, dtype=torch.bfloat16),
    "strided tensor": lambda: torch.tensor(VALUES).repeat_interleave(2)[::2],
    "tensor with gradient": lambda: torch.tensor(VALUES, requires_grad=True),
    "negative view": lambda: torch._neg_view(torch.tensor(-VALUES)),
}
NO_UPDATE: dict[str, Callable[[], Any]] = {
    "empty": lambda: np.zeros(0),
    "a number": lambda: 1.0,
    "no dimensions": lambda: np.array(1.0),
    "one short": lambda: VALUES[1:],
    "2^31 values": lambda: np.broadcast_to(np.float32(0.0), 2**31),
    "rows of 2^31 values": lambda: np.broadcast_to(np.float16(0.0), (2, 2**31)),
    "NaN": lambda: np.where(VALUES == 0.0, np.nan, VALUES),
    "infinite": lambda: np.where(VALUES == 0.0, -np.inf, VALUES).astype(np.float16),
    "complex": lambda: VALUES + 0j,
    "texts": lambda: np.array(["1"] * DIMENSION),
    "dates": lambda: np.zeros(DIMENSION, dtype="m8[s]"),
    "records": lambda: np.zeros(DIMENSION, dtype=[("a", "f4")]),
    "a hidden value": lambda: np.ma.masked_array(VALUES, mask=np.arange(DIMENSION) == 3),
    "ragged": lambda: [[1.0], [1.0, 2.0]],
    "nothing": lambda: None,
    "a table": lambda: {"a": 1.0},
    "empty tensor": lambda: torch.zeros(0),
    "tensor without data": lambda: torch.zeros(DIMENSION, device="meta"),
    "sparse tensor": lambda: torch.tensor(VALUES).to_sparse(),
    "complex tensor": lambda: torch.tensor(VALUES + 0j).conj(),
    "NaN tensor": lambda: torch.full((DIMENSION,), float("nan"), dtype=torch.bfloat16),
}
WHOLE_NUMBERS: dict[str, Callable[[], Any]] = {
    "integers": lambda: np.arange(DIMENSION) % 3,
    "bytes": lambda: (np.arange(DIMENSION) % 3).astype(np.uint8),
    "booleans": lambda: np.arange(DIMENSION) % 2 == 0,
    "integer tensor": lambda: torch.arange(DIMENSION) % 3,
    "boolean tensor": lambda: torch.arange(DIMENSION) % 2 == 0,
}


def _stream() -> Keystream:
    return SeededRandomness(7).stream("bad-input")


def _sent(update: Any) -> Any:
    with temporary_ledger() as ledger:
        budget = Budget(epsilon=50.0, delta=1e-5)
        client = Client(
            "c", MECHANISM, ledger=ledger, budget=budget, randomness=SeededRandomness(1)
        )
        try:
            return np.frombuffer(client.send(update, round=1), dtype=np.uint8)
        finally:
            assert ledger.num_charges <= 1


def _added(vector: Any) -> Any:
    mean = StreamingMean(DIMENSION)
    mean.add(vector, 2.0)
    return mean.total()


TAKE_UPDATES: dict[str, Callable[[Any], Any]] = {
    "privatize": lambda x: MECHANISM.privatize(x, randomness=_stream()),
    "encode": lambda x: MECHANISM.encode(x, _stream()),
    "prepare": lambda x: encode_packed(prepare(MECHANISM, x), [_stream()]).payloads,
    "prepare and rotate": lambda x: (
        encode_packed(prepare(MECHANISM, x, rotation=ROTATION), [_stream()]).payloads
    ),
    "Client.send": _sent,
    "Rotation.forward": ROTATION.forward,
    "Rotation.inverse": ROTATION.inverse,
    "StreamingMean.add": _added,
}
every_entrance = pytest.mark.parametrize("entrance", TAKE_UPDATES)


@every_entrance
@pytest.mark.parametrize("name", SAME_NUMBERS)
def test_the_same_numbers_in_another_form_give_the_same_result(entrance: str, name: str) -> None:
    take = TAKE_UPDATES[entrance]
    np.testing.assert_array_equal(take(SAME_NUMBERS[name]()), take(VALUES))


@every_entrance
@pytest.mark.parametrize("name", NO_UPDATE)
def test_what_is_no_update_is_refused(entrance: str, name: str) -> None:
    if entrance == "StreamingMean.add" and name in ("NaN", "infinite", "NaN tensor"):
        pytest.skip("a sum does not look at the numbers that a mechanism has decoded")
    with pytest.raises(SottovoceError, match=r"[;:]|expected"):
        TAKE_UPDATES[entrance](NO_UPDATE[name]())


@every_entrance
@pytest.mark.parametrize("name", WHOLE_NUMBERS)
def test_whole_numbers_are_refused_or_taken_as_they_are(entrance: str, name: str) -> None:
    given, take = WHOLE_NUMBERS[name](), TAKE_UPDATES[entrance]
    try:
        found = take(given)
    except SottovoceError:
        return
    np.testing.assert_array_equal(found, take(np.asarray(given, dtype=np.float64)))


NO_CODES: dict[str, Callable[[], Any]] = {
    "floats": lambda: VALUES,
    "negative": lambda: np.full(DIMENSION, -1),
    "too large": lambda: np.full(DIMENSION, 2**32, dtype=np.int64),
    "texts": lambda: np.array(["1"] * DIMENSION),
    "a hidden code": lambda: np.ma.masked_array(np.zeros(DIMENSION, int), mask=VALUES > 0.0),
    "bfloat16 tensor": lambda: torch.zeros(DIMENSION, dtype=torch.bfloat16),
    "tensor without data": lambda: torch.zeros(DIMENSION, device="meta", dtype=torch.uint8),
    "ragged": lambda: [[1], [1, 2]],
    "nothing": lambda: None,
}


@pytest.mark.parametrize("registration", registry.registrations(), ids=lambda one: one.kind)
@pytest.mark.parametrize("name", NO_CODES)
def test_what_is_no_code_is_not_decoded(registration: Registration, name: str) -> None:
    mechanism = registration.build(registration.example_domain, registration.examples[0])
    if isinstance(mechanism.code_format(), Float32Codes) and name in ("floats", "bfloat16 tensor"):
        pytest.skip("its codes are floating-point numbers")
    with pytest.raises(DomainError):
        mechanism.decode(NO_CODES[name]())


@pytest.mark.parametrize("name", NO_CODES)
def test_what_is_no_code_is_neither_packed_nor_counted(name: str) -> None:
    with pytest.raises(SottovoceError):
        pack(NO_CODES[name](), 1)
    with pytest.raises(SottovoceError):
        LevelCounts(DIMENSION, 2).add_rows(NO_CODES[name]())


@pytest.mark.parametrize("payload", [b"", b"\0" * 46, "text", None, 3, np.zeros(45), [0] * 45])
def test_what_is_no_message_is_refused_by_the_server(payload: Any) -> None:
    server = Server(MECHANISM, clients=["c"])
    with pytest.raises(SottovoceError):
        server.receive("c", payload)


@pytest.mark.parametrize("threads", ["64", "256"])
def test_more_threads_than_cores_give_the_same_bits(
    threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 30_000)).astype(np.float32)
    domain = L2Ball(dimension=30_000, radius=1.0)
    mechanism = GaussHermite(input_domain=domain, levels=2, noise_multiplier=1.0)
    rotation = Rotation.of_round("threads", 1, 30_000)

    def encoded() -> Any:
        streams = [SeededRandomness(7).stream(i) for i in range(len(rows))]
        payloads = encode_packed(prepare(mechanism, rows, rotation=rotation), streams).payloads
        counts = LevelCounts(30_000, 2)
        counts.add_rows(payloads)
        return payloads, counts.counts()

    monkeypatch.setenv("SOTTOVOCE_THREADS", "1")
    alone = encoded()
    monkeypatch.setenv("SOTTOVOCE_THREADS", threads)
    for found, expected in zip(encoded(), alone, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("threads", ["0", "-1", "257", "two", ""])
def test_an_impossible_number_of_threads_is_refused(
    threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOTTOVOCE_THREADS", threads)
    with pytest.raises(ParameterError, match="SOTTOVOCE_THREADS must be an integer"):
        thread_count()


@pytest.mark.slow
def test_more_than_2_to_the_31_coordinates_are_encoded_packed_and_unpacked() -> None:
    """An untouched array of zeros takes no memory, and the payload an eighth of a byte each."""
    dimension = 2**31 + 64
    values = np.zeros(dimension, dtype=np.float16)
    codes = np.zeros(dimension, dtype=np.uint8)
    codes[-1] = 1
    payload = pack(codes, 1)
    assert len(payload) == dimension // 8
    assert payload[-1] == 128
    with pytest.raises(WireError, match="padding"):
        unpack(payload, dimension - 1, 1)
    del codes
    values[-64:] = 0.125
    domain = L2Ball(dimension=dimension, radius=1.0)
    mechanism = GaussHermite(input_domain=domain, levels=2, noise_multiplier=1e-3)
    packed = encode_packed(prepare(mechanism, values), [_stream()]).payloads[0]
    assert (packed[-8:] == 255).all()
    middle = np.unpackbits(packed[2**27 : 2**27 + 2**20])
    assert abs(middle.mean() - 0.5) < 0.001
