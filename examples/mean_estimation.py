"""Estimate the mean of a thousand private vectors from one bit per coordinate of each."""

import numpy as np

import sottovoce as sv

DIMENSION, CLIENTS = 256, 1000


def main() -> None:
    mechanism = sv.calibrate(
        "gauss_hermite", levels=2, epsilon=5.0, delta=1e-5, dimension=DIMENSION, clip_norm=1.0
    )
    generator = np.random.default_rng(0)
    center = 0.8 * generator.normal(size=DIMENSION) / np.sqrt(DIMENSION)
    truth, estimate = np.zeros(DIMENSION), np.zeros(DIMENSION)
    for _ in range(CLIENTS):
        value = center + 0.02 * generator.normal(size=DIMENSION)
        truth += mechanism.input_domain.project(value) / CLIENTS
        estimate += mechanism.decode(mechanism.privatize(value)) / CLIENTS
    spent = sv.spend(mechanism, delta=1e-5)
    print(f"epsilon {spent.epsilon:.2f} at delta {spent.delta:g} ({spent.adjacency}, local)")
    print(f"norm of the true mean {np.linalg.norm(truth):.3f}")
    print(f"error of the estimate {np.linalg.norm(estimate - truth):.3f}")


if __name__ == "__main__":
    main()
