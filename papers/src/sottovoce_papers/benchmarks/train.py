"""The speed of rounds in which clients train a convolutional network on minibatches.

A round is that of a default spec at client level: one epoch of local training, clipping, a random
rotation, one bit per coordinate, packed messages, and the server's step. It is compared with the
same rounds whose clients train one after the other, or send updates that are not rotated, and with
pfl-research where that is installed.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.domains import Vector
from sottovoce.core.randomness import SeededRandomness
from sottovoce.learning import models
from sottovoce.learning.in_memory import provide_objects
from sottovoce.learning.minibatches import LocalSchedule
from sottovoce.learning.task import Task
from sottovoce.runs.inputs import device_of, load_inputs
from sottovoce.runs.resolve import Resolved, resolve
from sottovoce.runs.simulate import collect_parts, read_given_spec
from sottovoce_papers.benchmarks import train_pfl
from sottovoce_papers.benchmarks.measurement import check_memory, require, result
from sottovoce_papers.benchmarks.simulate import round_seconds, stage_shares
from sottovoce_papers.models.small_cifar_cnn import SmallCifarCnn

UNIT = "clients_per_second"
SHAPE = (1, 28, 28)
_CLASSES = 10
_TEST_RECORDS = 100
_RATE = 0.1
_TOLERANCE = 1e-5  # Of the length of an update, for the median client.
_ROUNDING = 2.0**-23  # How far a number may be from its neighbor in float32, relatively.
_CHECKED_CLIENTS = 20


def make_resolved(
    *,
    clients: int,
    records: int,
    batch_size: int | None,
    messages: str = "packed",
    device: str = "auto",
    rotation: str = "auto",
    one_by_one: bool = False,
) -> Resolved:
    """Return a run whose clients train `SmallCifarCnn` for one epoch of images that are noise."""
    spec = {
        "name": "benchmark",
        "seed": 1,
        "rounds": 1_000_000,
        "randomness": "seeded",
        "rotation": rotation,
        "data": {"clients": clients},
        "model": {"kind": "small_cifar_cnn"},
        "algorithm": {
            "kind": "fedavg",
            "server_learning_rate": 0.01,
            "local_learning_rate": _RATE,
            "local_epochs": 1,
        }
        | ({} if batch_size is None else {"batch_size": batch_size}),
        "privacy": {"level": "client", "clip_norm": 1.0, "delta": 1e-5},
        "mechanism": {"kind": "gauss_hermite", "levels": 2, "noise_multiplier": 5.0},
        "runtime": {"messages": messages, "device": device, "deterministic": one_by_one},
    }
    parts = collect_parts(None, make_images(clients * records), spec)
    with provide_objects(*parts):
        return resolve(load_inputs(read_given_spec(spec, {}, parts)))


def make_images(count: int) -> tuple[NDArray[Any], ...]:
    """Return training and test images of noise with random labels."""
    generator = np.random.default_rng(0)

    def draw(rows: int) -> tuple[NDArray[Any], NDArray[Any]]:
        images = generator.normal(size=(rows, *SHAPE)).astype(np.float32)
        return images, np.arange(rows) % _CLASSES

    return *draw(count), *draw(_TEST_RECORDS)


def measure(
    *,
    clients: int = 50,
    records: int = 50,
    batch_size: int = 10,
    messages: str = "packed",
    device: str = "auto",
    seconds: float = 10.0,
) -> dict[str, Any]:
    """Measure clients per second over whole rounds, from local training to the server's step."""
    parameter_rules.integer("clients", clients, low=2, high=10**6)
    parameter_rules.integer("records", records, low=1, high=10**6)
    parameter_rules.integer("batch_size", batch_size, low=1, high=10**6)
    parameter_rules.positive("seconds", seconds)
    check_memory(12.0 * clients * records * np.prod(SHAPE), "take fewer --clients or --records")
    given: dict[str, Any] = {
        "clients": clients,
        "records": records,
        "batch_size": batch_size,
        "messages": messages,
        "device": device,
    }
    together = make_resolved(**given)
    alone = make_resolved(**given, one_by_one=True)
    checked = _check(together.task, alone.task, together, batch_size)
    off = make_resolved(**given, rotation="off")
    rounds = round_seconds({"given": together, "off": off}, 0.6 * seconds)
    median, plain = (float(np.median(rounds[name])) for name in ("given", "off"))
    one_by_one = float(np.median(round_seconds({"alone": alone}, 0.1 * seconds)["alone"]))
    pfl = _pfl_seconds(clients, records, batch_size, 0.2 * seconds, device_of(together.spec))
    return result(
        UNIT,
        clients / median,
        checked=checked,
        numpy=None,
        torch=clients / one_by_one,
        limit=None,
        limit_per_second=None,
        notes={
            "torch": "the same rounds with runtime.deterministic = true, which trains one client "
            "after the other",
            "pfl": train_pfl.why_missing() or train_pfl.description(),
        },
        slowest_clients_per_second=clients / max(rounds["given"]),
        ratio_to_rotation_off=median / plain,
        ratio_to_pfl=None if pfl is None else pfl / median,
        pfl_clients_per_second=None if pfl is None else clients / pfl,
        share_of_stages=stage_shares(together, 0.1 * seconds),
        rounds=len(rounds["given"]),
        clients=clients,
        records=records,
        batch_size=batch_size,
        dimension=together.task.dimension,
        messages=messages,
        device=str(together.task.device),
    )


def _check(together: Task, alone: Task, resolved: Resolved, batch_size: int) -> str:
    """Check that clients that train together get the models of clients that train alone.

    A rectifier or a pooling whose inputs are nearly equal may decide otherwise after one rounding,
    which moves that client by much more than a rounding. So the largest distance is compared with
    that of clients that train alone from a start which differs by float32's rounding.
    """
    model = together.initial_model()
    some = resolved.clients.take(range(min(_CHECKED_CLIENTS, len(resolved.clients))))
    schedule = LocalSchedule(epochs=1, batch_size=batch_size)
    batches = schedule.draw(SeededRandomness(1), "benchmark", 1, some.names, some.sizes)

    def moves(task: Task, start: Vector) -> torch.Tensor:
        groups = task.local_models(start, some, steps=batches, learning_rate=_RATE)
        return torch.cat([rows for _, rows in groups]) - task.tensor(start)

    signs = np.random.default_rng(1).choice([-1.0, 1.0], size=len(model))
    expected = moves(alone, model)
    length = torch.linalg.vector_norm(expected, dim=1)
    found, nudged = (
        torch.linalg.vector_norm(other - expected, dim=1) / length
        for other in (moves(together, model), moves(alone, model * (1.0 + _ROUNDING * signs)))
    )
    median, largest, rounding = float(found.median()), float(found.max()), float(nudged.max())
    require(
        median <= _TOLERANCE and largest <= 10.0 * max(rounding, _TOLERANCE),
        "clients that train together get other models than clients that train alone: the median "
        f"distance is {median:.1e} of an update, the largest {largest:.1e}; one rounding of the "
        f"start moves a client by up to {rounding:.1e}",
    )
    return (
        f"updates of {len(some)} clients equal those of a loop: median distance {median:.1e} of "
        f"their length, largest {largest:.1e}, where one rounding of the start moves a client that "
        f"trains alone by up to {rounding:.1e}"
    )


def _pfl_seconds(
    clients: int, records: int, batch_size: int, seconds: float, device: str
) -> float | None:
    """Return the median seconds of a round of pfl; None where it cannot be compared."""
    chosen_itself = "cuda" if torch.cuda.is_available() else "cpu"
    if train_pfl.why_missing() is not None or device != chosen_itself:
        return None
    features, labels, *_ = make_images(clients * records)
    module = models.create(SmallCifarCnn(), SHAPE, _CLASSES, np.random.default_rng(0))
    taken = train_pfl.round_seconds(
        module,
        train_pfl.as_users(features, labels, records),
        batch_size=batch_size,
        rate=_RATE,
        seconds=seconds,
    )
    return float(np.median(taken))
