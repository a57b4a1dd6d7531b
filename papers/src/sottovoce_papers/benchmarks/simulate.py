"""The speed of simulated clients, compared with that of their gradients alone."""

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.core import native, parameter_rules
from sottovoce.federated.training import Halted
from sottovoce.learning.clients import DenseRows
from sottovoce.runs.build import build
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.loading import parse
from sottovoce.runs.resolve import Resolved, resolve
from sottovoce.runs.spec import RunSpec
from sottovoce_papers.benchmarks import limits
from sottovoce_papers.benchmarks.measurement import check_memory, require, result

UNIT = "clients_per_second"
_CLASSES = 10
_ROWS_PER_CLIENT = 1.25  # A fifth of the rows is held out.
_BYTES_PER_COORDINATE = 1000  # Models, sums and gradients of several clients at the same time.


def simulation_spec(
    *, clients: int, dimension: int, levels: int, messages: str, device: str, rotation: str = "auto"
) -> RunSpec:
    """Return a spec: one sample per client, a linear model of about `dimension` parameters."""
    features = max(1, dimension // _CLASSES - 1)
    rows = -(-clients * 5 // 4)  # A fifth of the rows is held out.
    return parse(
        {
            "name": "benchmark",
            "seed": 1,
            "rounds": 1_000_000,
            "randomness": "seeded",
            "rotation": rotation,
            "data": {
                "dataset": f"blobs:{rows}x{features}x{_CLASSES}",
                "partition": {"kind": "one_sample"},
            },
            "model": {"kind": "linear"},
            "algorithm": {
                "kind": "fedavg",
                "server_learning_rate": 0.01,
                "local_learning_rate": 1.0,
            },
            "privacy": {"level": "client", "clip_norm": 1.0, "delta": 1e-5},
            "mechanism": {"kind": "gauss_hermite", "levels": levels, "noise_multiplier": 5.0},
            "sampling": {"kind": "epochs", "size": clients},
            "runtime": {"messages": messages, "device": device},
        }
    )


def measure(
    *,
    clients: int = 1000,
    dimension: int = 20_000,
    bits: int = 1,
    messages: str = "packed",
    rotation: str = "auto",
    device: str = "auto",
    seconds: float = 5.0,
) -> dict[str, Any]:
    """Measure clients per second over whole rounds, from gradient to server step."""
    parameter_rules.integer("bits", bits, low=1, high=8)
    parameter_rules.integer("clients", clients, low=4, high=10**7)
    parameter_rules.integer("dimension", dimension, low=20, high=10**9)
    parameter_rules.positive("seconds", seconds)
    rows = _ROWS_PER_CLIENT * float(clients) * (dimension // _CLASSES) * 4.0
    check_memory(
        3.0 * rows + _BYTES_PER_COORDINATE * float(dimension),
        "take a smaller --dimension or fewer --clients",
    )

    def resolved_with(messages: str) -> Resolved:
        return resolve(
            load_inputs(
                simulation_spec(
                    clients=clients,
                    dimension=dimension,
                    levels=1 << bits,
                    messages=messages,
                    rotation=rotation,
                    device=device,
                )
            )
        )

    resolved = resolved_with(messages)
    checked = _check(resolved)
    rounds = _round_seconds(resolved, seconds)
    alone = _gradient_seconds(resolved, seconds / 4.0)
    drawn = _round_seconds(resolved_with("none"), seconds / 4.0) if messages != "none" else None
    with native.using("numpy"):
        plain = _round_seconds(resolved, seconds / 4.0)
    median = float(np.median(rounds))
    participants = len(resolved.clients)
    keystream = limits.keystream_rate(1, seconds / 20.0)
    return result(
        UNIT,
        participants / median,
        checked=checked,
        numpy=participants / float(np.median(plain)),
        torch=None if drawn is None else participants / float(np.median(drawn)),
        limit="one core that only draws two bytes of keystream per coordinate",
        limit_per_second=keystream / (2.0 * resolved.task.dimension),
        notes={
            "numpy": "the same rounds without the C kernels",
            "torch": "not compared: torch draws the codes already"
            if drawn is None
            else "codes drawn by torch's generator and never packed (--messages none)",
        },
        slowest_clients_per_second=participants / max(rounds),
        ratio_to_vmap_gradients_alone=alone / median,
        rounds=len(rounds),
        clients=participants,
        dimension=resolved.task.dimension,
        bits=bits,
        messages=messages,
        rotation=rotation,
        device=str(resolved.task.device),
        keystream_bytes_per_second=keystream,
    )


def _check(resolved: Resolved) -> str:
    """Check that the model after one round equals that of the numpy path, bit for bit."""
    found = _model_after_one_round(resolved)
    with native.using("numpy"):
        expected = _model_after_one_round(resolved)
    require(
        np.array_equal(found, expected), "the model after a round differs from the numpy path's"
    )
    require(np.isfinite(found).all(), "the model after a round is not finite")
    return "the model after one round equals the numpy path's bit for bit"


def _model_after_one_round(resolved: Resolved) -> NDArray[Any]:
    training = build(resolved)
    outcome = training.step(training.start())
    assert not isinstance(outcome, Halted)
    return outcome[0].model


def _round_seconds(resolved: Resolved, seconds: float) -> list[float]:
    training = build(resolved)
    progress = training.start()
    taken: list[float] = []
    begun = time.perf_counter()
    while not taken or time.perf_counter() - begun < seconds or len(taken) < 4:
        start = time.perf_counter()
        outcome = training.step(progress)
        taken.append(time.perf_counter() - start)
        assert not isinstance(outcome, Halted)
        progress, _ = outcome
    return taken[1:]  # The first round also fills the caches.


def _gradient_seconds(resolved: Resolved, seconds: float) -> float:
    """Return the seconds of a round's gradients by vmap and nothing else."""
    task, model = resolved.task, resolved.task.initial_model()
    taken: list[float] = []
    begun = time.perf_counter()
    while not taken or time.perf_counter() - begun < seconds:
        start = time.perf_counter()
        total = torch.zeros(task.dimension, device=task.device)
        for _, rows in task.local_models(model, resolved.clients, steps=1, learning_rate=1.0):
            total += DenseRows(rows).total(torch.ones(len(rows), device=task.device))
        float(total.sum())
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))
