"""Updates in 16 bytes compared with one bit per coordinate: size, error and speed."""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.core import native, parameter_rules
from sottovoce.core.domains import MAX_DIMENSION, Vector
from sottovoce.core.randomness import Keystream, SeededRandomness, SystemRandomness
from sottovoce.core.statistics import mean_and_half_width
from sottovoce.mechanisms.encoding import encode_packed, prepare
from sottovoce.mechanisms.gauss_hermite import GaussHermite
from sottovoce.mechanisms.mechanism import LevelCodes, Mechanism
from sottovoce.mechanisms.packing import PackedCodes
from sottovoce.mechanisms.seeded_sign import SeededSign
from sottovoce.mechanisms.seeds import WORDS_PER_TRY
from sottovoce.protocol.message import codes_of
from sottovoce.protocol.sums import create_mean
from sottovoce_papers.benchmarks import limits
from sottovoce_papers.benchmarks.aggregate import MAX_CLIENTS
from sottovoce_papers.benchmarks.equal_rho import SentError, calibrate_to_rho, rotated_update
from sottovoce_papers.benchmarks.measurement import (
    TimedAction,
    check_memory,
    limited_to,
    rates,
    require,
    result,
)

UNIT = "updates_per_second"
MAX_UPDATES = 10_000
_LARGEST_MU = 1e4  # Beyond it, thousands of seeds would not be enough.
_BYTES_PER_COORDINATE = 80  # The update, its rotation, its tilts, and the decoded vector.
_YARDSTICK_SIGNS = 1 << 20
_CHECKED_SIGNS = 1 << 16
_CHECKED_CLIENTS = 20  # More than are expanded at the same time.


def mechanisms_of(dimension: int, mu: float, blocks: int | None) -> tuple[SeededSign, GaussHermite]:
    """Return the seeded and the one-bit mechanism, both with rho = mu^2/2."""
    given = {"blocks": "auto" if blocks is None else blocks, "generator": "auto", "timing": "auto"}
    seeded = calibrate_to_rho("seeded_sign", dimension, mu, given)
    one_bit = calibrate_to_rho("gauss_hermite", dimension, mu, {"levels": 2})
    assert isinstance(seeded, SeededSign)
    assert isinstance(one_bit, GaussHermite)
    return seeded, one_bit


def payload_of(mechanism: Mechanism, update: ArrayLike, keystream: Keystream) -> bytes:
    """Return the payload of an update as a client makes it: clip, search, packing; it is timed."""
    return encode_packed(prepare(mechanism, update), [keystream]).on_cpu().tobytes()


def read_payload(mechanism: Mechanism, payload: bytes) -> PackedCodes:
    """Return a payload as a server reads and checks it."""
    code_format = mechanism.code_format()
    assert isinstance(code_format, LevelCodes)
    count = code_format.num_codes(mechanism.input_domain.dimension)
    return PackedCodes(payload, count=count, levels=code_format.levels)


def mean(mechanism: Mechanism, payloads: Sequence[bytes]) -> Vector:
    """Return the mean of a round's payloads, with the server's checks. This is what is timed."""
    total = create_mean(mechanism.input_domain.dimension, [(mechanism, 1.0)])
    for payload in payloads:
        total.add(mechanism, 1.0, read_payload(mechanism, payload))
    found = total.result()
    assert found is not None
    return found


def random_payloads(mechanism: Mechanism, clients: int) -> list[bytes]:
    """Return random packed codes of a mechanism; the bits after the last code are zero."""
    generator = np.random.default_rng(0)
    bits = mechanism.code_format().payload_bits(mechanism.input_domain.dimension)
    found = []
    for _ in range(clients):
        payload = bytearray(generator.bytes(-(-bits // 8)))
        payload[-1] &= 0xFF >> (-bits % 8)
        found.append(bytes(payload))
    return found


def tries_of(mechanism: SeededSign, payload: bytes, keystream: Keystream) -> int:
    """Return the candidates tried until the seeds that were sent, summed over blocks.

    `keystream` must be the client's, from its beginning. If no candidate was accepted, all were
    tried.
    """
    tries = mechanism.choice().tries
    words = keystream.words(WORDS_PER_TRY * tries * mechanism.blocks)
    rows = words.reshape(mechanism.blocks, tries, WORDS_PER_TRY)
    sent = np.frombuffer(payload, dtype="<u8").reshape(mechanism.blocks, 1, 2)
    same = (rows[:, :, :2] == sent).all(axis=2)
    require(same.any(axis=1).all(), "a seed that was sent is none of the candidates")
    return int((same.argmax(axis=1) + 1).sum())


def measure(
    *,
    dimension: int = 10**6,
    mu: float = 1.0,
    blocks: int | None = None,
    updates: int = 100,
    clients: int = 1000,
    seconds: float = 5.0,
) -> dict[str, Any]:
    """Measure bytes, errors and times of seeded updates of `dimension` coordinates, on one core.

    mu is the update's largest norm divided by the standard deviation of the noise.
    """
    parameter_rules.integer("dimension", dimension, low=1, high=MAX_DIMENSION)
    parameter_rules.positive("mu", mu, at_most=_LARGEST_MU)
    parameter_rules.integer(
        "updates", updates, low=2, high=MAX_UPDATES, remedy="an interval needs two"
    )
    parameter_rules.integer("clients", clients, low=1, high=MAX_CLIENTS)
    check_memory(
        float(dimension) * (_BYTES_PER_COORDINATE + 4 + clients / 8),
        "take a smaller --dimension or fewer --clients",
    )
    seeded, one_bit = mechanisms_of(dimension, mu, blocks)
    with limited_to(1):
        checked = check(seeded)
        found = _errors(seeded, one_bit, updates)
        times = _client_times(seeded, one_bit, updates, seconds)
        times |= _server_times(seeded, one_bit, clients, seconds)
        plain = _plain_seconds(seeded, seconds / 8.0) * found["tries_mean"]
    candidate_bytes = found["tries_mean"] * seeded.layout().num_signs / (8 * seeded.blocks)
    keystream = limits.keystream_rate(1, seconds / 8.0)
    speed = 1.0 / times["encode_seconds"]
    return result(
        UNIT,
        speed,
        checked=checked,
        numpy=1.0 / plain,
        torch=None,
        limit="the ChaCha20 keystream of as many candidates as it took, on one core",
        limit_per_second=keystream / candidate_bytes,
        notes={
            "numpy": "signs by numpy's generator and their product with a float32 vector, one "
            "candidate after another, as many as ours took; not exact",
            "torch": "no baseline: it would do the same as numpy's",
            "mse_ratio_to_one_bit": "max D_a/a over a = 2 ... 64, against nothing, is mu^2/2 for "
            "both; the same rotated updates of norm 1",
            "encode_seconds": "the mean over updates of the best turn of each, until acceptance",
            "privacy": "seeded_sign rests on ChaCha20 being a pseudorandom generator",
        },
        dimension=dimension,
        mu=mu,
        rho=mu**2 / 2.0,
        blocks=seeded.blocks,
        signs=seeded.layout().num_signs,
        updates=updates,
        clients=clients,
        noise_multiplier=seeded.noise_multiplier,
        one_bit_noise_multiplier=one_bit.noise_multiplier,
        tries_limit=seeded.choice().tries * seeded.blocks,
        **found,
        **times,
    )


def check(mechanism: SeededSign) -> str:
    """Check payload and mean against the numpy path's, and the mean against decoded messages.

    Fewer signs are checked than are measured, because the numpy path is slow.
    """
    dimension = min(mechanism.input_domain.dimension, _CHECKED_SIGNS // mechanism.layout().copies)
    few, _ = mechanisms_of(max(1, dimension), 1.0 / mechanism.noise_multiplier, mechanism.blocks)
    update = rotated_update(few.input_domain.dimension, 0).astype(np.float32)

    def drawn() -> bytes:
        return payload_of(few, update, SeededRandomness(1).stream("benchmark"))

    payloads = [drawn(), *random_payloads(few, _CHECKED_CLIENTS)]
    found = mean(few, payloads)
    with native.using("numpy"):
        require(drawn() == payloads[0], "the seed that was found differs from the numpy path's")
        require(
            np.array_equal(mean(few, payloads), found), "the mean differs from the numpy path's"
        )
    decoded = np.mean([few.decode(codes_of(read_payload(few, one))) for one in payloads], axis=0)
    near = np.allclose(found, decoded, rtol=0.0, atol=1e-9 * few.noise_stddev)
    require(near, "the mean differs from that of decoded messages")
    return (
        f"seeds and mean over {few.layout().num_signs} signs equal those of the numpy path from "
        "the same key, and decoded messages"
    )


def _errors(seeded: SeededSign, one_bit: GaussHermite, updates: int) -> dict[str, Any]:
    """Return the errors of the same rotated updates, and the numbers of candidates tried."""
    dimension = seeded.input_domain.dimension
    ratios, tries = [], []
    alignments: dict[str, list[float]] = {"seeded": [], "one_bit": []}
    for number in range(updates):
        update = rotated_update(dimension, number)
        sent, payloads = {}, {}
        for name, mechanism in (("seeded", seeded), ("one_bit", one_bit)):
            payloads[name] = payload_of(mechanism, update, _stream(name, number))
            codes = codes_of(read_payload(mechanism, payloads[name]))
            sent[name] = SentError.of(mechanism.decode(codes), update)
            alignments[name].append(sent[name].alignment)
        ratios.append(sent["seeded"].squared_error / sent["one_bit"].squared_error)
        tries.append(tries_of(seeded, payloads["seeded"], _stream("seeded", number)))
    ratio, half_width = mean_and_half_width(ratios)
    along, along_half_width = mean_and_half_width(alignments["seeded"])
    plain, plain_half_width = mean_and_half_width(alignments["one_bit"])
    return {
        "payload_bytes": len(payloads["seeded"]),
        "one_bit_payload_bytes": len(payloads["one_bit"]),
        "mse_ratio_to_one_bit": ratio,
        "mse_ratio_half_width": half_width,
        "alignment": along,
        "alignment_half_width": along_half_width,
        "one_bit_alignment": plain,
        "one_bit_alignment_half_width": plain_half_width,
        "tries_mean": statistics.fmean(tries),
        "tries_most": max(tries),
    }


def _stream(name: str, number: int) -> Keystream:
    return SeededRandomness(number).stream(name)


def _client_times(
    seeded: SeededSign, one_bit: GaussHermite, updates: int, seconds: float
) -> dict[str, float]:
    """Return the seconds that a client takes: the mean over keys of the best turn of each.

    The keys are those whose tries were counted; one update serves all of them. With a seeded key
    the search stops at acceptance; with the system's keys, as in a deployment, it makes all tries.
    """
    update = rotated_update(seeded.input_domain.dimension, 0).astype(np.float32)

    def encode(mechanism: Mechanism, number: int) -> Callable[[], object]:
        return lambda: payload_of(mechanism, update, _stream("seeded", number))

    turns = {str(number): TimedAction(encode(seeded, number), 1.0) for number in range(updates)}
    each = [1.0 / rate for rate in rates(turns, seconds).values()]
    average, half_width = mean_and_half_width(each)
    others = rates(
        {
            "constant": TimedAction(
                lambda: payload_of(seeded, update, SystemRandomness().stream()), 1.0
            ),
            "one bit": TimedAction(encode(one_bit, 0), 1.0),
        },
        seconds / 4.0,
    )
    return {
        "encode_seconds": average,
        "encode_seconds_half_width": half_width,
        "encode_seconds_constant_time": 1.0 / others["constant"],
        "one_bit_encode_seconds": 1.0 / others["one bit"],
    }


def _server_times(
    seeded: SeededSign, one_bit: GaussHermite, clients: int, seconds: float
) -> dict[str, float]:
    turns = {
        name: TimedAction(partial(mean, mechanism, random_payloads(mechanism, clients)), clients)
        for name, mechanism in (("seeded", seeded), ("one bit", one_bit))
    }
    found = rates(turns, seconds / 2.0)
    return {
        "server_seconds_per_client": 1.0 / found["seeded"],
        "one_bit_server_seconds_per_client": 1.0 / found["one bit"],
    }


def _plain_seconds(mechanism: SeededSign, seconds: float) -> float:
    """Return the seconds of one candidate block in plain numpy: random signs times the update."""
    signs = mechanism.layout().block_size
    few = min(signs, _YARDSTICK_SIGNS)
    generator = np.random.default_rng(0)
    tilts = generator.standard_normal(few, dtype=np.float32)

    def candidate() -> float:
        octets = np.frombuffer(generator.bytes(-(-few // 8)), dtype=np.uint8)
        return float(np.unpackbits(octets, count=few).astype(np.float32) @ tilts)

    return signs / few / rates({"numpy": TimedAction(candidate, 1.0)}, seconds)["numpy"]
