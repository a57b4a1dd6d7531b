"""Sums of the rows of matrices have the bits of means of messages that arrive one by one."""

from collections.abc import Sequence

import numpy as np
import pytest

from sottovoce.core import native
from sottovoce.core.domains import L2Ball, Vector
from sottovoce.core.errors import WireError
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms.encoding import PackedRows, encode_packed, prepare
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.packing import check_rows
from sottovoce.mechanisms.registry import find
from sottovoce.protocol.message import open_packed_rows
from sottovoce.protocol.row_sums import OrderedSum, create_row_sums
from sottovoce.protocol.sums import create_mean

DIMENSION = 1501
MECHANISMS: list[tuple[str, dict[str, object]]] = [
    ("gauss_hermite", {"levels": 2, "noise_multiplier": 2.0}),
    ("gauss_hermite", {"levels": 3, "noise_multiplier": 2.0}),
    ("gauss_hermite", {"levels": 8, "noise_multiplier": 2.0}),
    ("gauss_hermite", {"levels": 16, "noise_multiplier": 2.0}),
    ("gauss_hermite", {"levels": 100, "noise_multiplier": 2.0}),
    ("discrete_gaussian", {"noise_multiplier": 5.0, "bits": 16, "steps_per_radius": "auto"}),
    ("gaussian", {"noise_multiplier": 1.0}),
    (
        "seeded_sign",
        {"noise_multiplier": 2.0, "blocks": "auto", "generator": "auto", "timing": "auto"},
    ),
]


def a_mechanism(kind: str, parameters: dict[str, object]) -> Mechanism:
    return find(kind).build(L2Ball(dimension=DIMENSION, radius=1.0), parameters)


def messages_of(mechanism: Mechanism, clients: int, name: str = "clients") -> PackedRows:
    rows = np.random.default_rng(3).normal(size=(clients, DIMENSION)) / DIMENSION**0.5
    streams = SeededRandomness(1).streams([(name, i) for i in range(clients)])
    return encode_packed(prepare(mechanism, rows), streams)


def mean_one_by_one(mechanism: Mechanism, packed: PackedRows, weights: Sequence[float]) -> Vector:
    mean = create_mean(DIMENSION, [(mechanism, weight) for weight in weights])
    for content, weight in zip(open_packed_rows(packed), weights, strict=True):
        mean.add(mechanism, weight, content)
    result = mean.result()
    assert result is not None
    return result


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize(("kind", "parameters"), MECHANISMS)
@pytest.mark.parametrize("threads", ["1", "5"])
def test_sums_of_rows_are_those_of_the_server(
    kind: str,
    parameters: dict[str, object],
    equal: bool,
    threads: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOTTOVOCE_THREADS", threads)
    clients = 9 if kind == "seeded_sign" else 301  # More than one byte counts.
    mechanism = a_mechanism(kind, parameters)
    packed = messages_of(mechanism, clients)
    weights = [1.0] * clients if equal else [0.1 + i % 7 for i in range(clients)]
    for level in native.levels() if clients < 10 or threads == "1" else native.levels()[-1:]:
        with native.using(level):
            expected = mean_one_by_one(mechanism, packed, weights)
            sums = create_row_sums(DIMENSION, mechanism, equal_weights=equal)
            total = 0.0
            for start in (0, 1, 5):  # Ragged blocks.
                end = {0: 1, 1: 5}.get(start, clients)
                sums.add(packed.take(start, end), weights[start:end])
                for weight in weights[start:end]:
                    total += weight
            assert sums.mean(total, None).tobytes() == expected.tobytes()


def test_messages_of_two_groups_are_added_in_the_order_of_the_clients() -> None:
    groups = [a_mechanism(*MECHANISMS[0]), a_mechanism(*MECHANISMS[2])]
    packed = [messages_of(one, 20, str(i)) for i, one in enumerate(groups)]
    contents = [open_packed_rows(one) for one in packed]
    order = [(0, 0), (0, 1), (1, 0), (0, 2), *((1, i) for i in range(1, 20)), (0, 3)]
    weights = [0.3 + i % 5 for i in range(len(order))]
    mean = create_mean(
        DIMENSION, [(groups[g], w) for (g, _), w in zip(order, weights, strict=True)]
    )
    for (group, row), weight in zip(order, weights, strict=True):
        mean.add(groups[group], weight, contents[group][row])
    expected = mean.result()
    assert expected is not None
    for level in native.levels():
        with native.using(level):
            found = OrderedSum(DIMENSION)
            found.add(list(zip(groups, packed, strict=True)), weights, order)
            assert found.mean(float(np.cumsum(weights)[-1]), None).tobytes() == expected.tobytes()


def test_a_sum_of_nothing_is_zero() -> None:
    for kind, parameters in MECHANISMS:
        for equal in (True, False):
            sums = create_row_sums(DIMENSION, a_mechanism(kind, parameters), equal_weights=equal)
            assert not sums.mean(1.0, None).any()


@pytest.mark.parametrize("levels", [3, 100, 40_000])
@pytest.mark.parametrize("kernels", native.levels())
def test_a_code_that_a_mechanism_lacks_is_found_in_any_row(levels: int, kernels: str) -> None:
    bits = (levels - 1).bit_length()
    payloads = np.zeros((50, (DIMENSION * bits + 7) // 8), dtype=np.uint8)
    with native.using(kernels):
        check_rows(payloads, count=DIMENSION, levels=levels)
        payloads[49, : (7 + bits) // 8] = 0xFF
        with pytest.raises(WireError, match=f"expected codes below {levels}"):
            check_rows(payloads, count=DIMENSION, levels=levels)
