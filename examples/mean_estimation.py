"""Estimate the mean of a thousand private vectors from one bit per coordinate each."""

import numpy as np

from sottovoce import Adjacency, GaussHermite, L2Ball, SystemRandomness, privacy_spent

DIMENSION, CLIENTS, DELTA = 256, 1000, 1e-5


def main() -> None:
    ball = L2Ball(dimension=DIMENSION, radius=1.0)
    mechanism = GaussHermite(input_domain=ball, levels=2, noise_multiplier=1.0)
    randomness = SystemRandomness()
    generator = np.random.default_rng(0)
    centre = generator.normal(size=DIMENSION) / np.sqrt(DIMENSION)
    truth, estimate = np.zeros(DIMENSION), np.zeros(DIMENSION)
    for _ in range(CLIENTS):
        value = ball.project(0.8 * centre + 0.02 * generator.normal(size=DIMENSION))
        codes = mechanism.encode(value, randomness.stream())
        truth += value / CLIENTS
        estimate += mechanism.decode(codes) / CLIENTS
    spent = privacy_spent(mechanism.privacy(Adjacency.ZERO_OUT), DELTA)
    print(f"epsilon {spent.epsilon:.2f} at delta {DELTA:g} ({spent.adjacency}, local)")
    print(f"norm of the true mean {np.linalg.norm(truth):.3f}")
    print(f"error of the estimate {np.linalg.norm(estimate - truth):.3f}")


if __name__ == "__main__":
    main()
