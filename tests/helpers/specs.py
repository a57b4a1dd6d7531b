"""A small spec that runs in a moment."""

from typing import Any

from sottovoce.runs.loading import parse
from sottovoce.runs.spec import RunSpec


def small_table(**changes: Any) -> dict[str, Any]:
    table: dict[str, Any] = {
        "name": "small",
        "seed": 3,
        "rounds": 6,
        "randomness": "seeded",
        "checkpoint_every": 2,
        "data": {"dataset": "digits", "clients": 4},
        "model": {"kind": "linear"},
        "algorithm": {"kind": "fedavg", "server_learning_rate": 1.0},
        "privacy": {"level": "sample", "clip_norm": 1.0, "epsilon": 4.0, "delta": 1e-5},
        "mechanism": {"kind": "gauss_hermite", "levels": 2},
    }
    return table | changes


def small_spec(**changes: Any) -> RunSpec:
    return parse(small_table(**changes))
