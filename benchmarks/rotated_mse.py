"""The loss of automatic bits against the Gaussian on rotated updates, from the exact law.

    python benchmarks/rotated_mse.py [largest dimension]

Unit vectors (a random direction, spikes, all coordinates equal) are really rotated, with several
seeds; n clients send the same one. Printed: the largest excess of n times the squared error over
d sigma^2, in percent, over kinds of vectors: averaged over the seeds, and the worst single seed.
"""

import math
import sys

import numpy as np

from sottovoce.core.domains import L2Ball, Vector
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.design import families
from sottovoce.mechanisms.rotation import Rotation

DIMENSIONS = (128, 200, 1000, 1024, 10**4, 10**5, 10**6)
RHOS = (0.01, 0.1, 1.0, 5.0, 20.0, 100.0)
CLIENTS = (1, 100, 10**4)
_CHUNK = 1 << 16


def unit_vectors(dimension: int, seed: int) -> list[Vector]:
    random = np.random.default_rng(seed).normal(size=dimension)
    spikes = [np.eye(1, dimension, place)[0] for place in (0, dimension // 2, dimension - 1)]
    equal = np.full(dimension, dimension**-0.5)
    return [random / np.linalg.norm(random), *spikes, equal]


def excess(levels: int, tilts: Vector, clients: int) -> float:
    """Return n times the mean squared error over sigma^2, minus 1."""
    design = families.gauss_hermite(levels)
    parts = (tilts[start : start + _CHUNK] for start in range(0, len(tilts), _CHUNK))
    total = math.fsum(float(families.excess_error(design, z, clients).sum()) for z in parts)
    return total / len(tilts)


def main() -> None:
    largest = int(float(sys.argv[1])) if len(sys.argv) > 1 else DIMENSIONS[-1]
    heads = [f"n = {n}: mean, worst" for n in CLIENTS]
    print(f"{'d':>8} {'rho':>6} {'bits':>4} " + " ".join(f"{head:>22}" for head in heads))
    for dimension in (d for d in DIMENSIONS if d <= largest):
        num_seeds = max(2, min(32, 10**5 // dimension))
        rotated = [
            [Rotation(seed.to_bytes(32, "little"), dimension).forward(vector) for vector in vectors]
            for seed in range(num_seeds)
            for vectors in [unit_vectors(dimension, seed)]
        ]
        for rho in RHOS:
            given = {"levels": "auto", "noise_multiplier": 1.0 / math.sqrt(2.0 * rho)}
            ball = L2Ball(dimension=dimension, radius=1.0)
            levels = registry.find("gauss_hermite").resolve(ball, given)["levels"]
            cells = []
            for clients in CLIENTS:
                table = np.array(
                    [
                        [excess(levels, math.sqrt(2.0 * rho) * v, clients) for v in vectors]
                        for vectors in rotated
                    ]
                )
                cells.append(f"{100 * table.mean(axis=0).max():+.4f}%, {100 * table.max():+.4f}%")
            bits = (levels - 1).bit_length()
            print(f"{dimension:>8} {rho:>6g} {bits:>4} " + " ".join(f"{c:>22}" for c in cells))


if __name__ == "__main__":
    main()
