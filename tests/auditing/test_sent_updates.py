"""The server reads single updates through the real round, whatever the mechanism."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from sottovoce.auditing.attacks.inversion import (
    ClippedMean,
    GradientInversion,
    InversionTarget,
    invert,
)
from sottovoce.auditing.attacks.sent_updates import Sender, decoded_updates, true_updates
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.domains import Box, Domain, L2Ball, clip_norm_of
from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.algorithms.algorithm import ClientStepInput
from sottovoce.federated.algorithms.fedavg import FedAvg, SampleClippedGradient
from sottovoce.learning import models
from sottovoce.learning.clients import ClientData
from sottovoce.learning.task import Task
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import has_finite_codes
from sottovoce.mechanisms.registry import Registration

SHAPE, CLASSES, CLIP = (1, 4, 4), 3, 1.0


def _task() -> Task:
    module = models.create(models.Mlp(hidden_units=4), SHAPE, CLASSES, np.random.default_rng(0))
    return Task(module, torch.zeros(1, *SHAPE), torch.zeros(1, dtype=torch.int64))


def _clients(count: int, images: int = 1) -> list[ClientData]:
    generator = np.random.default_rng(1)
    return [
        ClientData(
            name=f"client-{number}",
            features=torch.from_numpy(
                generator.uniform(-0.5, 0.5, (images, *SHAPE)).astype(np.float32)
            ),
            labels=torch.from_numpy(generator.integers(0, CLASSES, images)),
        )
        for number in range(count)
    ]


def _step(task: Task) -> ClientStepInput:
    return ClientStepInput(
        run="r", round=3, model=task.initial_model(), state={}, randomness=SeededRandomness(1)
    )


@dataclasses.dataclass(frozen=True)
class InDomain(FedAvg):
    """FedAvg whose updates are clipped in another norm, for mechanisms that want that."""

    shape: type[Domain] = L2Ball

    def domain(self, dimension: int, num_samples: int) -> Any:
        if self.shape is Box:
            return Box(dimension=dimension, lower=-CLIP, upper=CLIP)
        return self.shape(dimension=dimension, radius=CLIP)  # type: ignore[call-arg]


def _sender(registration: Registration, parameters: Any, shape: type[Domain] = L2Ball) -> Sender:
    algorithm = InDomain(
        local_work=SampleClippedGradient(clip_norm=CLIP),
        server_learning_rate=1.0,
        server_momentum=0.0,
        shape=shape,
    )
    mechanism = registration.build(algorithm.domain(_task().dimension, 1), parameters)
    rotated = shape is L2Ball and has_finite_codes(mechanism)
    return Sender(
        algorithm=algorithm,
        mechanism_on=lambda domain: registration.build(domain, parameters),
        adjacency=Adjacency.ZERO_OUT,
        rotated=rotated,
    )


@pytest.mark.parametrize("registration", registry.registrations(), ids=lambda r: r.kind)
def test_every_registered_mechanism_can_be_attacked(registration: Registration) -> None:
    """Each carries a gradient over the wire in some geometry, and the inversion runs on it."""
    task, clients = _task(), _clients(2)
    sender = _sender(registration, registration.examples[0], type(registration.example_domain))
    step = _step(task)
    observed = decoded_updates(sender, task, clients, step)
    assert observed.shape == (2, task.dimension)
    assert np.isfinite(observed).all()
    labels = np.array([client.labels.numpy() for client in clients])
    target = InversionTarget(
        model=step.model,
        work=ClippedMean(clip_norm=CLIP),
        observed=observed,
        labels=labels,
        image_shape=SHAPE,
    )
    found = invert(task, target, GradientInversion(iterations=2), np.random.default_rng(0))
    assert found.images.shape == (2, 1, *SHAPE)
    assert np.abs(found.images).max() <= 0.5


def test_without_privacy_the_server_reads_the_clipped_gradient() -> None:
    task, clients = _task(), _clients(3, images=2)
    sender = _sender(registry.find("no_privacy"), {})
    step = _step(task)
    observed = decoded_updates(sender, task, clients, step)
    expected = np.stack(true_updates(sender, task, clients, step))
    np.testing.assert_allclose(observed, expected, rtol=1e-6, atol=1e-8)
    assert (np.linalg.norm(expected, axis=1) <= CLIP).all()


def test_rotated_bits_come_back_unrotated_and_unbiased() -> None:
    """The mean of many one-bit messages about one update is that update, up to its known spread."""
    task = _task()
    registration = registry.find("gauss_hermite")
    sender = _sender(registration, {"levels": 2, "noise_multiplier": 1.0})
    assert sender.rotated
    (one,) = _clients(1)
    clients = [dataclasses.replace(one, name=f"copy-{number}") for number in range(400)]
    step = _step(task)
    observed = decoded_updates(sender, task, clients, step)
    truth = true_updates(sender, task, [one], step)[0]
    stddev = clip_norm_of(sender.algorithm.domain(task.dimension, 1))  # times multiplier 1
    errors = (observed.mean(axis=0) - truth) * np.sqrt(len(clients)) / stddev
    # Mean squares of d standard normals, were it exact: 1 +- 5 sqrt(2/d).
    assert abs((errors**2).mean() - 1.0) < 5.0 * np.sqrt(2.0 / task.dimension)
