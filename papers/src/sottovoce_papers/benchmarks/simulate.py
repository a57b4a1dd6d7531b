"""The speed of simulated clients in whole rounds, and what share of a round each stage takes.

The default is what a run executes by default: updates are rotated, keys come from the operating
system, and every message is charged in a ledger on disk, sealed, stored and opened. Packed rounds
are seeded, and so is the round that is checked first. Rounds with and without rotation take turns,
so that their ratio does not depend on other load.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.core import native, parameter_rules
from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.core.stages import measure_stages
from sottovoce.core.threads import thread_count
from sottovoce.federated.training import Halted, Progress, Training
from sottovoce.learning.clients import DenseRows
from sottovoce.ledger.ledger import Ledger
from sottovoce.runs.build import build
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.loading import parse
from sottovoce.runs.resolve import Resolved, resolve
from sottovoce.runs.spec import RunSpec
from sottovoce_papers.benchmarks import limits
from sottovoce_papers.benchmarks.measurement import (
    check_memory,
    check_threads,
    limited_to,
    require,
    result,
)

UNIT = "clients_per_second"
MESSAGES = ("stored", "packed", "none")
_CLASSES = 10
_ROWS_PER_CLIENT = 1.25  # A fifth of the rows is held out.
_BYTES_PER_COORDINATE = 1000  # Models, sums and gradients of several clients at the same time.
_LEAST_ROUNDS = 3
_WARM_UP_ROUNDS = 2
_TURN_SECONDS = 0.02  # Runs do not change places after every round.


def simulation_spec(
    *,
    clients: int,
    dimension: int,
    levels: int | str,
    messages: str,
    device: str,
    rotation: str = "auto",
    randomness: str = "seeded",
) -> RunSpec:
    """Return a spec: one sample per client, a linear model of about `dimension` parameters."""
    features = max(1, dimension // _CLASSES - 1)
    rows = -(-clients * 5 // 4)  # A fifth of the rows is held out.
    return parse(
        {
            "name": "benchmark",
            "seed": 1,
            "rounds": 1_000_000,
            "randomness": randomness,
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
    bits: str | int = 1,
    messages: str = "stored",
    rotation: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    seconds: float = 5.0,
) -> dict[str, Any]:
    """Measure clients per second over whole rounds, from gradient to server step.

    With `bits` "auto" the number of levels is what runs choose with levels = "auto".
    """
    levels = _levels(bits)
    if messages not in MESSAGES:
        raise UnknownNameError.among("kind of messages", messages, MESSAGES)
    parameter_rules.integer("clients", clients, low=4, high=10**7)
    parameter_rules.integer("dimension", dimension, low=20, high=10**9)
    parameter_rules.positive("seconds", seconds)
    rows = _ROWS_PER_CLIENT * float(clients) * (dimension // _CLASSES) * 4.0
    check_memory(
        3.0 * rows + _BYTES_PER_COORDINATE * float(dimension),
        "take a smaller --dimension or fewer --clients",
    )

    def resolved_with(messages: str, rotation: str, randomness: str | None = None) -> Resolved:
        default = "system" if messages == "stored" else "seeded"
        return resolve(
            load_inputs(
                simulation_spec(
                    clients=clients,
                    dimension=dimension,
                    levels=levels,
                    messages=messages,
                    rotation=rotation,
                    device=device,
                    randomness=randomness or default,
                )
            )
        )

    with nullcontext() if threads is None else limited_to(check_threads(threads)):
        checked = _check(resolved_with(messages, rotation, "seeded"))
        return _measured(
            {
                "given": resolved_with(messages, rotation),
                "off": resolved_with(messages, "off"),
                "drawn": resolved_with("none", rotation),
            },
            seconds,
            checked=checked,
            bits=bits,
            messages=messages,
            rotation=rotation,
            threads=thread_count(),
        )


def _levels(bits: str | int) -> int | str:
    if bits == "auto":
        return "auto"
    if isinstance(bits, str) and not bits.isdecimal():
        raise ParameterError(f"bits must be a number from 1 to 8, or auto, got '{bits}'")
    return 1 << parameter_rules.integer("bits", int(bits), low=1, high=8)


def _measured(kinds: dict[str, Resolved], seconds: float, **details: Any) -> dict[str, Any]:
    resolved, messages = kinds["given"], details["messages"]
    if messages == "none":
        del kinds["drawn"]  # It is the measured one.
    rounds = round_seconds(kinds, seconds)
    alone = _gradient_seconds(resolved, seconds / 4.0)
    stages = stage_shares(resolved, seconds / 4.0)
    with native.using("numpy"):
        plain = round_seconds({"plain": resolved}, seconds / 4.0, least=1)["plain"]
    medians = {name: float(np.median(taken)) for name, taken in rounds.items()}
    median, participants = medians["given"], len(resolved.clients)
    keystream = limits.keystream_rate(1, seconds / 20.0)
    on_cpu = resolved.task.device.type == "cpu"
    return result(
        UNIT,
        participants / median,
        numpy=participants / float(np.median(plain)),
        torch=participants / medians["drawn"] if "drawn" in medians else None,
        limit="one core that only draws two bytes of keystream per coordinate" if on_cpu else None,
        limit_per_second=keystream / (2.0 * resolved.task.dimension) if on_cpu else None,
        notes={
            "numpy": "the same rounds without the C kernels",
            "torch": "codes drawn by torch's generator and never packed (--messages none)"
            if "drawn" in medians
            else "not compared: torch draws the codes already",
            "share_of_stages": "of rounds that are measured by stage, which takes a little longer",
        },
        slowest_clients_per_second=participants / max(rounds["given"]),
        randomness=resolved.spec.randomness,
        round_seconds=median,
        share_of_stages=stages,
        ratio_to_rotation_off=median / medians["off"],
        ratio_to_vmap_gradients_alone=alone / median,
        rounds=len(rounds["given"]),
        clients=participants,
        dimension=resolved.task.dimension,
        levels=int(resolved.spec.mechanism.parameters["levels"]),
        device=str(resolved.task.device),
        keystream_bytes_per_second=keystream,
        **details,
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
    with _built(resolved) as training:
        return _step(training, training.start()).model


@contextmanager
def _built(resolved: Resolved) -> Iterator[Training]:
    """Yield the training of a run; one with stored messages has a ledger in a temporary folder."""
    if resolved.spec.runtime.messages != "stored":
        yield build(resolved)
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger(Path(folder) / "ledger.sqlite", create=True) as ledger,
    ):
        yield build(resolved, ledger)


def _step(training: Training, progress: Progress) -> Progress:
    outcome = training.step(progress)
    assert not isinstance(outcome, Halted)
    # As after each checkpoint of a run: the ledger keeps the messages of unfinished rounds only.
    training.record.discard_messages(training.run, before_round=outcome[0].rounds_done + 1)
    return outcome[0]


def round_seconds(
    kinds: dict[str, Resolved], seconds: float, *, least: int = _LEAST_ROUNDS
) -> dict[str, list[float]]:
    """Return the seconds of each round of several runs, which take turns of a few rounds.

    The first rounds of each, which compile kernels, capture graphs and fill caches, do not count.
    """
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    with contextlib.ExitStack() as opened:
        runs = {name: opened.enter_context(_built(one)) for name, one in kinds.items()}
        reached = {name: training.start() for name, training in runs.items()}
        for _ in range(_WARM_UP_ROUNDS):
            reached = {name: _step(runs[name], progress) for name, progress in reached.items()}
        begun = time.perf_counter()
        while time.perf_counter() - begun < seconds or len(next(iter(taken.values()))) < least:
            for name, training in runs.items():
                turn = time.perf_counter()
                while not taken[name] or time.perf_counter() - turn < _TURN_SECONDS:
                    start = time.perf_counter()
                    reached[name] = _step(training, reached[name])
                    taken[name].append(time.perf_counter() - start)
    return taken


def stage_shares(resolved: Resolved, seconds: float) -> dict[str, float]:
    """Return the share of a round that each stage takes, over some rounds after the first."""
    with _built(resolved) as training:
        progress = _step(training, training.start())
        with measure_stages() as times:
            begun = time.perf_counter()
            while time.perf_counter() - begun < seconds or not times.seconds:
                progress = _step(training, progress)
            found = times.profile(time.perf_counter() - begun)
    return {name: round(row["share"], 4) for name, row in found.items()}


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
