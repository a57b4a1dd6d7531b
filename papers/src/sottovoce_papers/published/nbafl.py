"""NbAFL, the baseline of UDP-FL: the epsilon of its noise calibration."""

import math

from sottovoce.privacy.gaussian import gaussian_epsilon
from sottovoce_papers.published.formula import Formula, Input


def published_epsilon(
    noise_multiplier: float, smallest_dataset: int, exposures: int, delta: float
) -> float:
    """Return the epsilon that the paper prints for noise of noise_multiplier clipping norms."""
    from sottovoce_papers.algorithms.nbafl import PublishedNoise  # imports torch

    noise = PublishedNoise(
        clip_norm=1.0,
        delta=delta,
        rounds=exposures,
        clients=1,
        smallest_dataset=smallest_dataset,
    )
    return noise.epsilon(noise_multiplier, exposures)


def _true_epsilon(
    noise_multiplier: float,
    smallest_dataset: int,  # noqa: ARG001
    exposures: int,
    delta: float,
) -> float:
    return gaussian_epsilon(2.0 * math.sqrt(exposures) / noise_multiplier, delta)


FORMULAS = (
    Formula(
        name="nbafl-epsilon",
        paper="NbAFL (Wei et al. 2020)",
        number="section III, equation for sigma of the uplink",
        claim="the epsilon of one record in the models that a client sends",
        relation="at most",
        holds=False,
        correction="the noise of a vector in a ball of the clipping norm, which is what "
        "`sottovoce run` charges for the algorithm nbafl",
        why="The formula divides the sensitivity by the number of records, but the clipped object "
        "is a trained model, which one record may move across the whole ball.",
        inputs={
            "noise_multiplier": Input(1.0, 0.01, 1000.0),
            "smallest_dataset": Input(10, 1, 10**9),
            "exposures": Input(1, 1, 10**6),
            "delta": Input(1e-5, 1e-30, 0.5),
        },
        published=published_epsilon,
        true=_true_epsilon,
        truth="exact epsilon where one record moves a model from one side of the ball to the other",
    ),
)
