"""The study of seeds, vectors: bytes, errors and times beside one bit and float32 at equal rho."""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sottovoce.core.randomness import SeededRandomness
from sottovoce.core.statistics import mean_and_half_width
from sottovoce.mechanisms.mechanism import Float32Codes, Mechanism
from sottovoce.mechanisms.seeded_sign import SeededSign
from sottovoce_papers.benchmarks.equal_rho import Sent, calibrated, rotated_update
from sottovoce_papers.benchmarks.measurement import limited_to
from sottovoce_papers.benchmarks.seeded import mean, random_payloads

GAUSSIAN, ONE_BIT, SEEDS = "Gaussian (float32)", "one bit", "seeds"
_KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    GAUSSIAN: ("gaussian", {}),
    ONE_BIT: ("gauss_hermite", {"levels": 2}),
    SEEDS: ("seeded_sign", {"blocks": "auto", "generator": "auto", "timing": "auto"}),
}
_SERVED = 64  # messages that a server adds up, for its time


def measured(dimension: int, mu: float, updates: int) -> list[dict[str, Any]]:
    """A row for each mechanism: the same rotated updates of norm 1, rho = mu^2/2 against nothing.

    Errors are over the Gaussian's expected one, d/mu^2. All on one core.
    """
    mechanisms = {
        name: calibrated(kind, dimension, mu, given) for name, (kind, given) in _KINDS.items()
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in mechanisms}
    with limited_to(1):
        for number in range(updates):
            update = rotated_update(dimension, number)
            for name, mechanism in mechanisms.items():
                keystream = SeededRandomness(number).stream(name)
                begun = time.perf_counter()
                codes = mechanism.encode(update, keystream)
                taken = time.perf_counter() - begun
                sent = Sent.of(mechanism.decode(codes), update)
                found[name].append((sent.squared_error * mu**2 / dimension, taken))
        return [
            _row(name, mechanisms[name], dimension, mu, results) for name, results in found.items()
        ]


def _row(
    name: str,
    mechanism: Mechanism,
    dimension: int,
    mu: float,
    results: Sequence[tuple[float, float]],
) -> dict[str, Any]:
    error, half_width = mean_and_half_width([error for error, _ in results])
    return {
        "mechanism": name,
        "dimension": dimension,
        "mu": mu,
        "seeds_sent": mechanism.blocks if isinstance(mechanism, SeededSign) else None,
        "payload_bytes": -(-mechanism.code_format().payload_bits(dimension) // 8),
        "error_over_gaussian": error,
        "error_low": error - half_width,
        "error_high": error + half_width,
        "encode_seconds": statistics.fmean(taken for _, taken in results),
        "server_seconds": _server_seconds(mechanism),
    }


def _server_seconds(mechanism: Mechanism) -> float | None:
    """A client's share of one sum; float32 is added up in no time that is of interest here."""
    if isinstance(mechanism.code_format(), Float32Codes):
        return None
    payloads = random_payloads(mechanism, _SERVED)
    begun = time.perf_counter()
    mean(mechanism, payloads)
    return (time.perf_counter() - begun) / _SERVED
