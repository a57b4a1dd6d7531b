"""How fast clients are simulated, beside their gradients alone, in one run on this machine."""

import os
import platform
import time
from typing import Any

import numpy as np
import torch

from sottovoce.config.loading import parse
from sottovoce.config.spec import RunSpec
from sottovoce.experiments.assembly import Assembly, assemble
from sottovoce.experiments.books import simulation_of, tally_of
from sottovoce.learning.rows import DenseRows
from sottovoce.randomness import SeededRandomness
from sottovoce.simulation.engine import Halted

_CLASSES = 10


def simulation_spec(
    *, clients: int, dimension: int, levels: int, messages: str, device: str
) -> RunSpec:
    """One sample a client, a linear model of about `dimension` parameters, one epoch of rounds."""
    features = max(1, dimension // _CLASSES - 1)
    rows = -(-clients * 5 // 4)  # a fifth is held out
    return parse(
        {
            "name": "benchmark",
            "seed": 1,
            "rounds": 1_000_000,
            "randomness": "seeded",
            "rotation": "off",
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


def simulate(
    *, clients: int, dimension: int, levels: int, messages: str, device: str, seconds: float
) -> dict[str, Any]:
    """Clients a second over whole rounds: gradient, clip, codes, packing, sum, server's step."""
    spec = simulation_spec(
        clients=clients, dimension=dimension, levels=levels, messages=messages, device=device
    )
    assembly = assemble(spec)
    rounds = _round_seconds(assembly, seconds)
    alone = _gradient_seconds(assembly, seconds / 4.0)
    median = float(np.median(rounds))
    keystream = _keystream_seconds(assembly.task.dimension)
    return {
        "clients_per_second": len(assembly.clients) / median,
        "slowest_clients_per_second": len(assembly.clients) / max(rounds),
        "rounds": len(rounds),
        "clients_per_round": len(assembly.clients),
        "dimension": assembly.task.dimension,
        "bits_per_coordinate": spec.mechanism.parameters["levels"].bit_length() - 1,
        "messages": messages,
        "device": str(assembly.task.device),
        "ratio_to_vmap_gradients_alone": alone / median,
        "keystream_seconds_per_client": keystream,
        "fraction_of_limit": keystream * len(assembly.clients) / median,
        "limit": "one core that does nothing but draw two bytes of keystream a coordinate",
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }


def _round_seconds(assembly: Assembly, seconds: float) -> list[float]:
    simulation = simulation_of(assembly, tally_of(assembly))
    progress = simulation.start()
    taken: list[float] = []
    begun = time.perf_counter()
    while not taken or time.perf_counter() - begun < seconds or len(taken) < 4:
        start = time.perf_counter()
        outcome = simulation.step(progress)
        taken.append(time.perf_counter() - start)
        assert not isinstance(outcome, Halted)
        progress, _ = outcome
    return taken[1:]  # the first round also warms caches


def _gradient_seconds(assembly: Assembly, seconds: float) -> float:
    """A round's gradients by vmap and nothing else: what a simulator starts from."""
    task, model = assembly.task, assembly.task.initial_model()
    taken: list[float] = []
    begun = time.perf_counter()
    while not taken or time.perf_counter() - begun < seconds:
        start = time.perf_counter()
        total = torch.zeros(task.dimension, device=task.device)
        for _, rows in task.local_models(model, assembly.clients, steps=1, learning_rate=1.0):
            total += DenseRows(rows).total(torch.ones(len(rows), device=task.device))
        float(total.sum())
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))


def _keystream_seconds(dimension: int) -> float:
    """Drawing two bytes a coordinate for one client, on one core."""
    source, taken = SeededRandomness(0), []
    for number in range(20):
        start = time.perf_counter()
        source.stream("limit", number).draws(16, dimension)
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))
