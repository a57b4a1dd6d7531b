"""Servers add up packed codes: in any order where all clients are alike, else as they come."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.core import native
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball, Vector
from sottovoce.core.errors import WireError
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.mechanism import LevelCodes, Mechanism
from sottovoce.protocol.message import HEADER_BYTES, open_sealed, seal
from sottovoce.protocol.plan import ClientPlan, RoundPlan
from sottovoce.protocol.server import RoundServer


def state_of(server: RoundServer) -> tuple[int, int, bytes]:
    result = server.result()
    assert result is not None
    return server.received, server.total_bytes, result.tobytes()


def a_uniform_plan(levels: int, clients: int, dimension: int, weight: float = 3.0) -> RoundPlan:
    ball = L2Ball(dimension=dimension, radius=8.0)
    mechanism = GaussHermite(input_domain=ball, levels=levels, noise_multiplier=1.0)
    parts = tuple(
        ClientPlan(client=f"client {n}", mechanism=mechanism, weight=weight) for n in range(clients)
    )
    return RoundPlan(
        unit=Unit.CLIENT, run="run", round=1, adjacency=Adjacency.ZERO_OUT, clients=parts
    )


def sealed_codes(plan: RoundPlan) -> dict[str, bytes]:
    """Random codes of every client."""
    generator = np.random.default_rng(1)
    found = {}
    for part in plan.clients:
        code_format = part.mechanism.code_format()
        assert isinstance(code_format, LevelCodes)
        codes = generator.integers(0, code_format.levels, part.mechanism.input_domain.dimension)
        found[part.client] = seal(codes.astype(code_format.dtype), plan.envelope(part, 0))
    return found


def mean_in_order(plan: RoundPlan, messages: dict[str, bytes], order: list[str]) -> Vector:
    dimension = plan.clients[0].mechanism.input_domain.dimension
    server = RoundServer(plan, dimension=dimension)
    for client in order:
        server.receive(client, messages[client])
    result = server.result()
    assert result is not None
    return result


@pytest.mark.parametrize("levels", [2, 3, 4, 6, 8, 12, 16])
def test_the_mean_of_a_uniform_cohort_is_the_same_in_any_order(levels: int) -> None:
    plan = a_uniform_plan(levels, 40, 131)
    messages = sealed_codes(plan)
    names = [part.client for part in plan.clients]
    found = set()
    for kernels in native.levels():
        with native.using(kernels):
            for order in (names, names[::-1], sorted(names)):
                found.add(mean_in_order(plan, messages, order).tobytes())
    (mean,) = found
    decode = plan.clients[0].mechanism.decode
    rows = [decode(open_sealed(messages[p.client], plan.envelope(p, 0))) for p in plan.clients]
    np.testing.assert_allclose(np.frombuffer(mean), np.mean(rows, axis=0), atol=1e-13)


@pytest.mark.parametrize("kernels", native.levels())
@pytest.mark.parametrize("levels", [2, 5, 16, 17, 200])
def test_unequal_weights_add_up_as_decoded_vectors_do(kernels: str, levels: int) -> None:
    even = a_uniform_plan(levels, 35, 131)
    parts = tuple(
        replace(part, weight=0.1 + n / 7.0, mechanism=louder(part.mechanism, 1.0 + n % 3))
        for n, part in enumerate(even.clients)
    )
    plan = replace(even, clients=parts)
    messages = sealed_codes(plan)
    total, weights = np.zeros(131), 0.0
    for part in plan.clients:
        codes = open_sealed(messages[part.client], plan.envelope(part, 0))
        total += part.weight * part.mechanism.decode(codes)
        weights += part.weight
    with native.using(kernels):
        found = mean_in_order(plan, messages, [part.client for part in parts])
    assert found.tobytes() == (total / weights).tobytes()


def louder(mechanism: Mechanism, factor: float) -> Mechanism:
    assert isinstance(mechanism, GaussHermite)
    return replace(mechanism, noise_multiplier=factor * mechanism.noise_multiplier)


@pytest.mark.parametrize("kernels", native.levels())
def test_a_message_is_read_when_it_comes_whatever_becomes_of_its_buffer(kernels: str) -> None:
    plan = a_uniform_plan(2, 3, 40)
    messages = sealed_codes(plan)
    names = [part.client for part in plan.clients]
    with native.using(kernels):
        expected = mean_in_order(plan, messages, names)
        server = RoundServer(plan, dimension=40)
        for name in names:
            buffer = bytearray(messages[name])
            server.receive(name, buffer)  # type: ignore[arg-type]
            buffer[:] = bytes(len(buffer))
        result = server.result()
    assert result is not None
    assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("levels", [2, 3])
def test_codes_beyond_the_levels_and_padding_are_refused_and_change_nothing(levels: int) -> None:
    plan = a_uniform_plan(levels, 3, 13)
    messages = sealed_codes(plan)
    server = RoundServer(plan, dimension=13)
    server.receive("client 0", messages["client 0"])
    before = state_of(server)
    part = plan.clients[1]
    envelope = plan.envelope(part, 0)
    bits = envelope.code_format.bits
    # The same header for a payload that has no place under it.
    spoilt = [bytes(envelope.payload_bytes - 1) + b"\x80"]  # padding
    if levels < 1 << bits:
        spoilt.append(b"\x03" + bytes(envelope.payload_bytes - 1))
    for payload in spoilt:
        fields = messages["client 1"][: HEADER_BYTES - 8]
        checksum = hashlib.blake2b(fields + payload, digest_size=8).digest()
        with pytest.raises(WireError, match=r"padding|codes below"):
            server.receive("client 1", fields + checksum + payload)
        assert state_of(server) == before
    server.receive("client 1", messages["client 1"])
    assert server.received == 2
