"""The mechanisms that UDP-FL compares under attack, the one-bit mechanism, and their budgets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DELTA = 1e-5
EPSILONS = (2.0, 4.0, 6.0, 8.0)
CLIP_NORM = 1.0
RECORD_SAMPLING_RATE = 0.05  # Of target models, as in table 4.
NO_PRIVACY, GAUSSIAN, LAPLACE, STAIRCASE, ONE_BIT = (
    "no privacy",
    "Gaussian (DP-SGD)",
    "Laplace",
    "staircase",
    "one bit",
)
MECHANISMS: Mapping[str, dict[str, Any]] = {
    NO_PRIVACY: {"kind": "no_privacy"},
    GAUSSIAN: {"kind": "gaussian"},
    LAPLACE: {"kind": "laplace"},
    STAIRCASE: {"kind": "staircase", "nu": "auto", "step_multiplier": 1.0},
    ONE_BIT: {"kind": "gauss_hermite", "levels": 2},
}
PRIVATE = (GAUSSIAN, LAPLACE, STAIRCASE, ONE_BIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismAtBudget:
    """A mechanism of the comparison at a budget; epsilon is None where there is no privacy."""

    mechanism: str
    epsilon: float | None

    @property
    def key(self) -> dict[str, Any]:
        return {"mechanism": self.mechanism, "epsilon": self.epsilon}


def mechanisms_at_budgets(epsilons: Sequence[float]) -> list[MechanismAtBudget]:
    """Return the mechanism without privacy, and each private mechanism at each budget."""
    return [
        MechanismAtBudget(mechanism=NO_PRIVACY, epsilon=None),
        *(MechanismAtBudget(mechanism=name, epsilon=e) for name in PRIVATE for e in epsilons),
    ]


def describe_budgets(names: Sequence[tuple[str, float | None]]) -> str:
    """Return mechanisms as text with their budgets, each mechanism once."""
    budgets: dict[str, list[str]] = {}
    for mechanism, epsilon in names:
        budgets.setdefault(mechanism, []).extend([] if epsilon is None else [f"{epsilon:g}"])
    return ", ".join(
        f"{mechanism} at epsilon {'/'.join(own)}" if own else mechanism
        for mechanism, own in budgets.items()
    )
