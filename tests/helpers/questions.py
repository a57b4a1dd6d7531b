"""One question of every statistic, and people's values for it."""

from typing import Any

import numpy as np

from sottovoce.analytics.estimates import question_for
from sottovoce.analytics.question import Question

BOUNDS: dict[str, Any] = {"lower": 0.0, "upper": 100.0}
QUESTIONS: dict[str, Question] = {
    "mean": question_for("mean", **BOUNDS, epsilon=2.0),
    "mean-laplace": question_for("mean", **BOUNDS, epsilon=2.0, mechanism="laplace"),
    "variance": question_for("variance", **BOUNDS, epsilon=2.0, public_seed=1),
    "histogram": question_for("histogram", **BOUNDS, bins=5, epsilon=2.0, public_seed=1),
    "categories": question_for(
        "histogram", categories=("a", "b"), epsilon=2.0, public_seed=1, bits=1
    ),
    "quantiles": question_for("quantiles", **BOUNDS, epsilon=2.0, public_seed=1, bits=1),
    "location": question_for("location", centre=(40.7, -74.0), side_km=20.0, epsilon=0.5),
}


def values_for(name: str, count: int, seed: int = 0) -> Any:
    """Values of so many people for a question of the list above."""
    generator = np.random.default_rng(seed)
    match name:
        case "categories":
            return generator.choice(["a", "b", "c"], size=count)
        case "location":
            return generator.normal((40.7, -74.0), 0.02, size=(count, 2))
        case _:
            return generator.normal(40.0, 10.0, size=count)
