"""The part "training" of the experiment `seeded`: digits, 1000 clients, one budget for all."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from sottovoce.core.statistics import mean_and_half_width
from sottovoce_papers.experiment import Row, Settings
from sottovoce_papers.studies.seeded.shuffles import DELTA, largest_eps0
from sottovoce_papers.sweep import Choice, Trial, TrialResult, expand

CLIENTS, ROUNDS, DIMENSION = 1000, 10, 650
LOCAL_EPSILON, CENTRAL_EPSILON = 20.0, 2.0
GAUSSIAN, ONE_BIT, SEEDS = "Gaussian (float32)", "one bit", "seeds"
SHUFFLED, SEEN = "seeds, step law, shuffled", "Gaussian (float32), seen"
_AUTO = {"generator": "auto", "timing": "auto"}
BASE: dict[str, Any] = {
    "name": "seeded",
    "seed": 1,
    "rounds": ROUNDS,
    "randomness": "seeded",
    "rotation": "off",
    "data": {"dataset": "digits", "clients": CLIENTS},
    "model": {"kind": "linear"},
    "algorithm": {"kind": "fedavg", "server_learning_rate": 16.0, "local_learning_rate": 1.0},
    "privacy": {
        "level": "client",
        "adjacency": "zero-out",
        "clip_norm": 0.2,
        "epsilon": LOCAL_EPSILON,
        "delta": DELTA,
    },
    "mechanism": {"kind": "gaussian"},
    "runtime": {"messages": "packed"},
}


def grid(settings: Settings) -> list[Trial]:
    """Return the trials: float32, bits and seeds at a local epsilon; seeds behind a shuffler.

    The mean of messages does not depend on their order, so no shuffler is simulated: clients have
    the local epsilon that a shuffler amplifies to `CENTRAL_EPSILON`. float32, which no shuffler
    amplifies, is trained at that central epsilon for comparison.
    """
    eps0 = largest_eps0(CENTRAL_EPSILON, CLIENTS, ROUNDS, DIMENSION)
    step = {"kind": "seeded_step", "epsilon": eps0, "length": "kept", **_AUTO}
    between_any = {"privacy.adjacency": "replace-one"}
    mechanisms = [
        Choice(value=GAUSSIAN, overrides={"mechanism": {"kind": "gaussian"}}),
        Choice(value=ONE_BIT, overrides={"mechanism": {"kind": "gauss_hermite", "levels": 2}}),
        Choice(
            value=SEEDS,
            overrides={"mechanism": {"kind": "seeded_sign", "blocks": "auto", **_AUTO}},
        ),
        Choice(
            value=SHUFFLED,
            overrides={"mechanism": step, **between_any},
            removed=["privacy.epsilon"],
        ),
        Choice(
            value=SEEN,
            overrides={
                "mechanism": {"kind": "gaussian"},
                "privacy.epsilon": CENTRAL_EPSILON,
                **between_any,
            },
        ),
    ]
    seeds = [Choice(value=n, overrides={"seed": n}) for n in range(1, settings.seeds + 1)]
    base = copy.deepcopy(BASE)
    if settings.device is not None:
        base["runtime"]["device"] = settings.device
    return expand(base, {"mechanism": mechanisms, "seed": seeds})


def rows(results: Sequence[TrialResult]) -> list[dict[str, Any]]:
    """Return the accuracy over seeds, and the bytes of all of a client's messages with headers."""
    return [
        _row(name, [one.result for one in results if one.key["mechanism"] == name and one.result])
        for name in dict.fromkeys(str(one.key["mechanism"]) for one in results)
    ]


def _row(name: str, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    accuracies = [float(one["accuracy"]) for one in found]
    mean, half = mean_and_half_width(accuracies) if len(accuracies) > 1 else (None, None)
    first = found[0] if found else {}
    return {
        "mechanism": name,
        "dimension": DIMENSION,
        "clients": CLIENTS,
        "rounds": ROUNDS,
        "delta": DELTA,
        "payload_bytes": first.get("payload_bytes_up_per_message"),
        "bytes_per_client": first["total_bytes_up_per_message"] * ROUNDS if first else None,
        "local_epsilon": first.get("epsilon"),
        "shuffled_epsilon": CENTRAL_EPSILON if name == SHUFFLED else None,
        "accuracy": mean,
        "accuracy_low": None if mean is None or half is None else mean - half,
        "accuracy_high": None if mean is None or half is None else mean + half,
    }


def trial_row(result: TrialResult) -> Row:
    """Return one line of trials.csv."""
    return {
        "stage": "final",
        **result.key,
        "accuracy": (result.result or {}).get("accuracy"),
        "seconds": round(result.seconds, 3),
        "spec_hash": result.spec_hash,
        "error": result.error,
    }
