"""Simulated errors, with which predictions are compared: updates really encoded and decoded."""

import math

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Domain, Vector, clip_norm_of, geometry_of
from sottovoce.core.randomness import SeededRandomness
from sottovoce.mechanisms.mechanism import Mechanism

_AT_LEAST = 100  # updates, before their spread is believed


def simulated_mse(
    mechanism: Mechanism, updates: Domain, *, relative_error: float, seed: int
) -> float:
    """Return the mean squared error per coordinate over random `updates` of full norm.

    So many independent updates are drawn that the standard error is this fraction of it.
    """
    parameter_rules.fraction("relative_error", relative_error)
    domain, clip_norm = mechanism.input_domain, clip_norm_of(updates)
    randomness = SeededRandomness(seed)
    generator = randomness.generator("updates")
    errors: list[float] = []
    while True:
        for _ in range(_AT_LEAST):
            update = random_update(geometry_of(updates), domain.dimension, generator)
            values = domain.project(clip_norm * update)
            codes = mechanism.encode(values, randomness.stream("update", len(errors)))
            errors.append(float(np.mean((mechanism.decode(codes) - values) ** 2)))
        mean = float(np.mean(errors))
        if float(np.std(errors)) <= relative_error * mean * math.sqrt(len(errors)):
            return mean


def random_update(geometry: str, dimension: int, generator: np.random.Generator) -> Vector:
    """Return an update as `harmonizer.updates` says, in units of the clip norm."""
    match geometry:
        case _ if geometry == "linf" or dimension == 1:
            return generator.uniform(-1.0, 1.0, dimension)
        case "l1":
            sizes = generator.laplace(size=dimension)
            return np.asarray(sizes / np.abs(sizes).sum())
        case _:
            normal = generator.normal(size=dimension)
            return np.asarray(normal / np.linalg.norm(normal))
