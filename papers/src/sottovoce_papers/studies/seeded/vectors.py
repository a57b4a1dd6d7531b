"""The part "vectors" of the experiment `seeded`: bytes, errors and times at equal rho."""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sottovoce.core.randomness import SeededRandomness
from sottovoce.core.statistics import mean_and_half_width
from sottovoce.mechanisms.mechanism import Float32Codes, Mechanism
from sottovoce.mechanisms.seeded_sign import SeededSign
from sottovoce_papers.benchmarks.equal_rho import SentError, calibrate_to_rho, rotated_update
from sottovoce_papers.benchmarks.measurement import limited_to
from sottovoce_papers.benchmarks.seeded import mean, random_payloads

GAUSSIAN, ONE_BIT, SEEDS = "Gaussian (float32)", "one bit", "seeds"
_KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    GAUSSIAN: ("gaussian", {}),
    ONE_BIT: ("gauss_hermite", {"levels": 2}),
    SEEDS: ("seeded_sign", {"blocks": "auto", "generator": "auto", "timing": "auto"}),
}
_SERVED = 64  # Messages that a server adds up to measure its time.


def measure_vectors(dimension: int, mu: float, updates: int) -> list[dict[str, Any]]:
    """Return a row per mechanism for the same rotated updates of norm 1, with rho = mu^2/2.

    rho is under zero-out. Errors are divided by the Gaussian's expected error, d/mu^2. One core is
    used.
    """
    mechanisms = {
        name: calibrate_to_rho(kind, dimension, mu, given) for name, (kind, given) in _KINDS.items()
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
                sent = SentError.of(mechanism.decode(codes), update)
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
    """Return one client's share of a sum; None for float32, whose time is negligible."""
    if isinstance(mechanism.code_format(), Float32Codes):
        return None
    payloads = random_payloads(mechanism, _SERVED)
    begun = time.perf_counter()
    mean(mechanism, payloads)
    return (time.perf_counter() - begun) / _SERVED
