"""A small spec that runs in a moment."""

from typing import Any

from sottovoce.runs.loading import parse
from sottovoce.runs.spec import RunSpec

LOCAL_STEPS: dict[str, Any] = {
    "kind": "fedavg",
    "server_learning_rate": 1.0,
    "local_steps": 3,
    "local_learning_rate": 0.5,
}
CLIENT_LEVEL: dict[str, Any] = {
    "privacy": {"level": "client", "clip_norm": 0.5, "epsilon": 8.0, "delta": 1e-5},
    "algorithm": LOCAL_STEPS,
}
METRIC_MVU: dict[str, Any] = {
    "kind": "metric_mvu",
    "metric": "l1",
    "input_bits": 1,
    "output_bits": 1,
    "epsilon": 1.0,
}


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
