"""Privacy events that several tests account for."""

import math

from hypothesis import strategies as st

from sottovoce.core.adjacency import Adjacency
from sottovoce.privacy.events import (
    BasicEvent,
    FinitePair,
    GaussianNoise,
    PrivacyEvent,
    PureDp,
    Sampled,
    ZeroConcentrated,
)

ZERO_OUT = Adjacency.ZERO_OUT


def pure(epsilon: float) -> PureDp:
    return PureDp(epsilon=epsilon, adjacency=ZERO_OUT)


def randomised_response(epsilon: float) -> FinitePair:
    truth, lie = 1.0 / (1.0 + math.exp(-epsilon)), 1.0 / (1.0 + math.exp(epsilon))
    return FinitePair(first=(truth, lie), second=(lie, truth), adjacency=ZERO_OUT)


def sampled(event: PrivacyEvent, rate: float) -> Sampled:
    return Sampled(event=event, rate=rate, scheme="poisson", hidden_by="own-records")


def smooth_events(amounts: st.SearchStrategy[float]) -> st.SearchStrategy[BasicEvent]:
    return st.one_of(
        amounts.map(lambda mu: GaussianNoise(mu=mu, adjacency=ZERO_OUT)),
        amounts.map(lambda rho: ZeroConcentrated(rho=rho, adjacency=ZERO_OUT)),
        amounts.map(pure),
    )
