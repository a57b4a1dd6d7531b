"""How long shadow models take to train side by side: 64 of 33,834 parameters, ten epochs each.

    python benchmarks/shadows.py [shadows]

Each trains on a random half of 5,000 images of 3x32x32 (random ones: what they show costs nothing),
500 rounds of a fiftieth of its records, without privacy.
"""

import os
import sys
import time

import numpy as np
import torch

from sottovoce.learning.datasets import Dataset, with_training_rows
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.loading import parse
from sottovoce.runs.resolve import resolve
from sottovoce.runs.stacked_runs import train_many

IMAGES, ROUNDS, RATE = 5_000, 500, 0.02


def main() -> None:
    shadows = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    generator = np.random.default_rng(1)

    def images(count: int) -> np.ndarray:
        return generator.uniform(-0.5, 0.5, size=(count, 3, 32, 32)).astype(np.float32)

    data = Dataset(
        name="random",
        train_features=images(IMAGES),
        train_labels=generator.integers(0, 10, IMAGES),
        test_features=images(100),
        test_labels=generator.integers(0, 10, 100),
        num_classes=10,
    )
    spec = parse(
        {
            "name": "shadows",
            "seed": 1,
            "rounds": ROUNDS,
            "randomness": "seeded",
            "data": {"dataset": "cifar10", "clients": 1},
            "model": {"kind": "strided_cnn"},
            "algorithm": {"kind": "fedavg", "server_learning_rate": 1.0},
            "privacy": {
                "level": "sample",
                "clip_norm": 1.0,
                "delta": 1e-5,
                "record_sampling_rate": RATE,
            },
            "mechanism": {"kind": "no_privacy"},
            "runtime": {"messages": "none"},
        }
    )
    runs = [
        (seed, np.sort(generator.choice(IMAGES, IMAGES // 2, replace=False)))
        for seed in range(shadows)
    ]
    resolved = resolve(load_inputs(spec, with_training_rows(data, runs[0][1]))).spec
    start, processor = time.perf_counter(), time.process_time()
    models = train_many(resolved, data, runs)
    seconds, busy = time.perf_counter() - start, time.process_time() - processor
    assert models.shape == (shadows, 33_834)
    assert np.isfinite(models).all()
    print(
        f"{shadows} shadows, {ROUNDS * RATE:g} epochs of {IMAGES // 2} images: {seconds:.1f} s, "
        f"{busy:.1f} s of processors ({os.cpu_count()} of them, {torch.get_num_threads()} threads)"
    )


if __name__ == "__main__":
    main()
