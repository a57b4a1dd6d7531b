"""Training that takes no time, importable by worker processes; a spec's name says what happens."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from sottovoce.core.errors import ConfigError
from sottovoce.runs.spec import RunSpec


def fake_train(
    spec: RunSpec, *, on_round: Callable[[dict[str, Any]], None] | None = None
) -> dict[str, Any]:
    """An accuracy that follows from the spec; failures where its rounds ask for them."""
    _fail(spec.rounds)
    if spec.rounds == 106:
        time.sleep(60.0)
    kind, epsilon = spec.mechanism.kind, spec.privacy.epsilon
    rate = getattr(spec.algorithm, "server_learning_rate", 1.0)
    accuracy = 0.9 - 0.02 * (kind == "gauss_hermite") - 0.3 / (epsilon or 1e9)
    accuracy += 0.001 * (spec.seed % 7) - 0.05 * abs(rate - 1.0)
    row = {"round": spec.rounds, "accuracy": accuracy, "loss": 1.0 - accuracy, "epsilon": epsilon}
    if on_round:
        on_round(row)
    return {
        **row,
        "name": spec.name,
        "spec_hash": spec.hash,
        "delta": spec.privacy.delta,
        "rounds": spec.rounds,
        "bits_per_coordinate": 1.0 if kind == "gauss_hermite" else 32.0,
        "payload_bytes_up_per_message": 82 if kind == "gauss_hermite" else 2600,
        "dimension": 650,
        "seconds": 0.0,
        "clients_per_second": 1.0,
        "warnings": [],
        "curve": [row],
        "process": os.getpid(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


def _fail(rounds: int) -> None:
    match rounds:
        case 101:
            raise ConfigError("the model diverged in round 7; lower the rate")
        case 102:
            raise MemoryError
        case 103:
            raise OutOfMemoryError("tried to allocate 20 GiB\nand much more text")
        case 104:
            os.kill(os.getpid(), signal.SIGKILL)
        case 105:
            os._exit(3)
        case 107:
            raise ZeroDivisionError("division by zero")
