"""The part "shuffles" of the experiment `seeded`: amplification of updates by a shuffler."""

import math
from collections.abc import Iterator
from typing import Any

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import L2Ball
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.release import ReleaseTerms, ShuffledMessages, local_event
from sottovoce.mechanisms.seeded_step import SeededStep
from sottovoce.privacy import accounting
from sottovoce.privacy.events import PrivacyEvent, Repeated
from sottovoce.privacy.pure import pure_epsilon

STEP, ONE_BIT, GAUSSIAN = "seeds, step law", "one bit", "Gaussian (float32)"
DELTA = 1e-6
DIMENSION = 10_000
_R = Adjacency.REPLACE_ONE


def step_law(eps0: float, dimension: int = DIMENSION) -> SeededStep:
    """Return the mechanism whose message has epsilon eps0 between any two updates."""
    ball = L2Ball(dimension=dimension, radius=1.0)
    given = {"epsilon": eps0, "length": "kept", "generator": "auto", "timing": "auto"}
    found = registry.find("seeded_step")
    mechanism = found.build(ball, {**given, **found.resolve(ball, given)})
    assert isinstance(mechanism, SeededStep)
    return mechanism


def largest_eps0(epsilon: float, clients: int, rounds: int, dimension: int) -> float:
    """Return the largest message epsilon with which the shuffled rounds spend `epsilon` in all."""
    given = {"length": "kept", "generator": "auto", "timing": "auto"}
    found = registry.find("seeded_step").calibrated(
        L2Ball(dimension=dimension, radius=1.0),
        given,
        rounds=rounds,
        epsilon=epsilon,
        delta=DELTA,
        event_of=_shuffled(clients),
    )
    return float(found["epsilon"])


def amplified(eps0: float, clients: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield local and shuffled epsilon of the step law, one bit and the Gaussian.

    The latter two have as much Gaussian noise as the step law: mu is its mean score.
    """
    step = step_law(eps0)
    mu, ball = step.choice().mean_score, step.input_domain
    others = {
        ONE_BIT: ("gauss_hermite", {"levels": 2, "noise_multiplier": 1.0 / mu}),
        GAUSSIAN: ("gaussian", {"noise_multiplier": 1.0 / mu}),
    }
    mechanisms: dict[str, Mechanism] = {STEP: step}
    mechanisms |= {name: registry.find(kind).build(ball, g) for name, (kind, g) in others.items()}
    for name, mechanism in mechanisms.items():
        event = local_event(mechanism, adjacency=_R)
        pure = pure_epsilon(event)
        yield {
            "mechanism": name,
            "dimension": ball.dimension,
            "mu": mu,
            "clients": clients,
            "rounds": rounds,
            "delta": DELTA,
            "message_epsilon": pure if math.isfinite(pure) else None,
            "local_epsilon": _epsilon(event, rounds),
            "shuffled_epsilon": _epsilon(_shuffled(clients)(mechanism), rounds)
            if math.isfinite(pure)
            else None,
        }


def _shuffled(clients: int) -> ReleaseTerms:
    return ReleaseTerms(adjacency=_R, visibility=ShuffledMessages(minimum_clients=clients))


def _epsilon(event: PrivacyEvent, rounds: int) -> float:
    return accounting.epsilon(Repeated(event=event, count=rounds), DELTA)
