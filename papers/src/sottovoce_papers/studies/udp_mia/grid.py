"""The grid of `udp-mia`: the attacked recipes, the numbers of records, and the printed results."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sottovoce.runs.loading import parse
from sottovoce.runs.spec import RunSpec
from sottovoce_papers.udp_mechanisms import (
    CLIP_NORM,
    DELTA,
    EPSILONS,
    GAUSSIAN,
    LAPLACE,
    MECHANISMS,
    NO_PRIVACY,
    ONE_BIT,
    RECORD_SAMPLING_RATE,
    STAIRCASE,
)

OVERFITTED = "no privacy, overfitted"

# Of 0.01, 0.03, 0.1, ... 3 those with the best accuracy on 2,000 held-out training images, at
# epsilon 4, mean of four models of 12,000 images; no attack influenced the choice.
RATES = {
    NO_PRIVACY: 3.0,
    OVERFITTED: 2.0,
    GAUSSIAN: 1.0,
    LAPLACE: 1.0,
    STAIRCASE: 0.03,
    ONE_BIT: 1.0,
}

# Table 6 as printed: TPR at 1% FPR, accuracy and AUC, without the one-bit mechanism. The two LiRA
# attacks share a row; the numbers without privacy are from the text.
PRINTED: Mapping[tuple[str, str, float | None], tuple[float, float, float]] = {
    ("shokri", OVERFITTED, None): (0.053, 0.710, 0.757),
    ("lira", OVERFITTED, None): (0.126, 0.651, 0.716),
    ("canary", OVERFITTED, None): (0.137, 0.649, 0.719),
    ("shokri", GAUSSIAN, 2.0): (0.009, 0.502, 0.493),
    ("shokri", GAUSSIAN, 4.0): (0.009, 0.505, 0.499),
    ("shokri", GAUSSIAN, 6.0): (0.013, 0.510, 0.509),
    ("shokri", GAUSSIAN, 8.0): (0.011, 0.503, 0.499),
    ("lira", GAUSSIAN, 2.0): (0.013, 0.506, 0.497),
    ("lira", GAUSSIAN, 4.0): (0.014, 0.513, 0.505),
    ("lira", GAUSSIAN, 6.0): (0.017, 0.514, 0.511),
    ("lira", GAUSSIAN, 8.0): (0.011, 0.504, 0.497),
    ("canary", GAUSSIAN, 2.0): (0.016, 0.519, 0.513),
    ("canary", GAUSSIAN, 4.0): (0.016, 0.510, 0.504),
    ("canary", GAUSSIAN, 6.0): (0.015, 0.523, 0.528),
    ("canary", GAUSSIAN, 8.0): (0.010, 0.521, 0.518),
    ("shokri", LAPLACE, 2.0): (0.011, 0.509, 0.508),
    ("shokri", LAPLACE, 4.0): (0.013, 0.512, 0.509),
    ("shokri", LAPLACE, 6.0): (0.014, 0.505, 0.501),
    ("shokri", LAPLACE, 8.0): (0.007, 0.505, 0.500),
    ("lira", LAPLACE, 2.0): (0.009, 0.506, 0.501),
    ("lira", LAPLACE, 4.0): (0.013, 0.505, 0.495),
    ("lira", LAPLACE, 6.0): (0.011, 0.505, 0.493),
    ("lira", LAPLACE, 8.0): (0.009, 0.513, 0.505),
    ("canary", LAPLACE, 2.0): (0.011, 0.504, 0.497),
    ("canary", LAPLACE, 4.0): (0.020, 0.512, 0.498),
    ("canary", LAPLACE, 6.0): (0.011, 0.510, 0.507),
    ("canary", LAPLACE, 8.0): (0.015, 0.516, 0.507),
    ("shokri", STAIRCASE, 2.0): (0.009, 0.506, 0.501),
    ("shokri", STAIRCASE, 4.0): (0.009, 0.505, 0.502),
    ("shokri", STAIRCASE, 6.0): (0.009, 0.504, 0.499),
    ("shokri", STAIRCASE, 8.0): (0.008, 0.504, 0.496),
    ("lira", STAIRCASE, 2.0): (0.008, 0.504, 0.491),
    ("lira", STAIRCASE, 4.0): (0.008, 0.510, 0.501),
    ("lira", STAIRCASE, 6.0): (0.009, 0.510, 0.504),
    ("lira", STAIRCASE, 8.0): (0.009, 0.507, 0.492),
    ("canary", STAIRCASE, 2.0): (0.009, 0.506, 0.495),
    ("canary", STAIRCASE, 4.0): (0.013, 0.512, 0.509),
    ("canary", STAIRCASE, 6.0): (0.009, 0.507, 0.500),
    ("canary", STAIRCASE, 8.0): (0.012, 0.511, 0.509),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackScale:
    """The size of the experiment.

    candidates   Half of them are in each model; overfitted models train on nothing else.
    known        Records that all other models also train on.
    """

    candidates: int
    known: int
    shadows: int
    rounds: int
    overfitting_rounds: int
    overfitting_rate: float
    mechanisms: tuple[str, ...]
    epsilons: tuple[float, ...]
    canary_queries: int
    canary_steps: int


FULL = AttackScale(
    candidates=4000,
    known=10_000,
    shadows=64,
    rounds=150,
    overfitting_rounds=1500,
    overfitting_rate=0.05,
    mechanisms=(GAUSSIAN, LAPLACE, STAIRCASE, ONE_BIT),
    epsilons=EPSILONS,
    canary_queries=2,
    canary_steps=10,
)
FAST = AttackScale(
    candidates=400,
    known=0,
    shadows=16,
    rounds=60,
    overfitting_rounds=400,
    overfitting_rate=0.1,
    mechanisms=(GAUSSIAN, ONE_BIT),
    epsilons=(8.0,),
    canary_queries=1,
    canary_steps=5,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackedRecipe:
    """One recipe of the grid."""

    mechanism: str
    epsilon: float | None

    @property
    def uses_known(self) -> bool:
        return self.mechanism != OVERFITTED

    @property
    def label(self) -> str:
        return self.mechanism if self.epsilon is None else f"{self.mechanism}, {self.epsilon:g}"


def cells(scale: AttackScale) -> list[AttackedRecipe]:
    """Return the recipes: overfitted, without privacy, and every mechanism at every epsilon."""
    private = [
        AttackedRecipe(mechanism=mechanism, epsilon=epsilon)
        for mechanism in scale.mechanisms
        for epsilon in scale.epsilons
    ]
    return [
        AttackedRecipe(mechanism=OVERFITTED, epsilon=None),
        AttackedRecipe(mechanism=NO_PRIVACY, epsilon=None),
        *private,
    ]


def spec_of(cell: AttackedRecipe, scale: AttackScale, device: str) -> RunSpec:
    """Return the spec of `udp-cifar10` with another network.

    An overfitted model has one client and more rounds.
    """
    overfitted = cell.mechanism == OVERFITTED
    privacy: dict[str, Any] = {
        "level": "sample",
        "adjacency": "zero-out",
        "clip_norm": CLIP_NORM,
        "delta": DELTA,
        "record_sampling_rate": scale.overfitting_rate if overfitted else RECORD_SAMPLING_RATE,
    }
    if cell.epsilon is not None:
        privacy["epsilon"] = cell.epsilon
    table: dict[str, Any] = {
        "name": "udp-mia",
        "seed": 1,
        "rounds": scale.overfitting_rounds if overfitted else scale.rounds,
        "randomness": "seeded",
        "data": {"dataset": "cifar10", "clients": 1 if overfitted else 10},
        "model": {"kind": "strided_cnn"},
        "algorithm": {"kind": "fedavg", "server_learning_rate": RATES[cell.mechanism]},
        "privacy": privacy,
        "mechanism": dict(MECHANISMS[NO_PRIVACY if overfitted else cell.mechanism]),
        "runtime": {"messages": "none", "device": device},
    }
    return parse(table)
