"""What a site computes for an order: its own data, the spec's algorithm, sealed messages."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from sottovoce.adjacency import Unit
from sottovoce.algorithms.algorithm import Algorithm, Step
from sottovoce.channels.channel import Central
from sottovoce.config.features_spec import PreconditionSpec
from sottovoce.config.loading import parse
from sottovoce.config.model_spec import ModuleSpec
from sottovoce.config.spec import RunSpec
from sottovoce.deployment.orders import Order
from sottovoce.deployment.site import Asked, Site
from sottovoce.domains import Vector
from sottovoce.errors import ConfigError, PolicyError
from sottovoce.experiments.assembly import channel_of
from sottovoce.experiments.data import load_data
from sottovoce.experiments.ground import Ground, lay_ground, randomness_of
from sottovoce.learning import public_images
from sottovoce.learning.clients import ClientData
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.task import Task
from sottovoce.mechanisms import registry
from sottovoce.randomness import SeededRandomness
from sottovoce.rounds.broadcast import received
from sottovoce.rounds.plan import ClientPlan, RoundPlan
from sottovoce.simulation.stored import finite_uplinks
from sottovoce.transforms.rotation import Rotation


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """What stays the same from round to round."""

    spec: RunSpec
    task: Task
    algorithm: Algorithm
    client: ClientData
    num_clients: int


def compute(order: Order, site: Site) -> list[bytes]:
    """The sealed messages that answer an order, charged to the site's ledger."""
    _check_harmless(order.spec, site)
    text = json.dumps(order.spec, sort_keys=True)
    place = _place(text, order.classes, site.name, site.dataset)
    spec, algorithm = place.spec, place.algorithm
    dimension = place.task.dimension
    mechanism = dict(order.mechanism)
    kind = mechanism.pop("kind", None)
    if not isinstance(kind, str):
        raise ConfigError("an order names its mechanism's 'kind'")
    size = place.client.num_samples
    part = ClientPlan(
        client=order.client,
        # On the site's own domain: how far a record moves the update follows from its own data.
        mechanism=registry.find(kind).build(algorithm.domain(dimension, size), mechanism),
        weight=algorithm.weight(size),
    )
    rotated = spec.rotation == "on"
    channel = channel_of(spec, place.num_clients)
    if isinstance(channel, Central):
        raise ConfigError("the channel 'central' has no messages; there is nothing to send")
    plan = RoundPlan(
        run=order.run,
        round=order.round,
        unit=algorithm.unit,
        adjacency=spec.privacy.adjacency,
        clients=(part,),
        rotation=Rotation.of_round(order.run, order.round, dimension) if rotated else None,
        channel=channel,
        record_sampling_rate=algorithm.record_sampling_rate,
    )
    randomness = randomness_of(spec)
    start = received(order.vectors, algorithm.shared_state, dimension, spec.runtime.downlink)
    step = Step(
        run=order.run,
        round=order.round,
        model=start.model,
        state=start.state,
        randomness=randomness,
    )

    def train() -> list[Vector]:
        uplinks = finite_uplinks(algorithm, place.task, [place.client], step)
        return [values for _, _, values in uplinks]

    asked = Asked(plan=plan, part=part, cohort=order.cohort, uplinks=algorithm.uplinks)
    return site.answer(asked, randomness, train, keep_from=order.keep_from)


def _check_harmless(spec: Mapping[str, Any], site: Site) -> None:
    """An order must not make a site read files, or call functions, of the server's choice."""
    parsed = parse(spec, "the order's spec")
    if isinstance(parsed.model, ModuleSpec) and parsed.model.factory not in site.factories:
        raise PolicyError(
            f"the model factory '{parsed.model.factory}' is not among the site's 'factories'"
        )
    if ":" in parsed.data.dataset and not parsed.data.sites:
        raise PolicyError(
            f"the dataset '{parsed.data.dataset}' is a file; a site reads its own, which [data] of "
            "its file names, for runs with 'data.sites'"
        )
    for step in parsed.features:
        if isinstance(step, PreconditionSpec) and public_images.is_file(step.images):
            raise PolicyError(f"the public images '{step.images}' are a file of the server's")


@lru_cache(maxsize=2)
def _place(spec_text: str, classes: int | None, name: str, dataset: str | None) -> _Place:
    spec = parse(json.loads(spec_text), "the order's spec")
    if spec.runtime.deterministic:
        torch.set_num_threads(1)
    own = _own_records(spec, classes, dataset) if spec.data.sites else None
    ground = lay_ground(spec, own)
    if name not in ground.clients.names:
        raise PolicyError(f"this site is '{name}', which is no client of the run")
    return _Place(
        spec=ground.spec,
        task=ground.task,
        algorithm=ground.algorithm,
        client=_client(ground, name, own),
        num_clients=len(ground.clients),
    )


def _own_records(spec: RunSpec, classes: int | None, dataset: str | None) -> Dataset:
    """Everything that the site's own data hold."""
    if dataset is None:
        raise PolicyError("the run wants this site's own records; name them in [data] of its file")
    own = spec.data.model_copy(update={"dataset": dataset})
    data = load_data(spec.model_copy(update={"data": own}), SeededRandomness(spec.seed))
    return dataclasses.replace(data, num_classes=classes)


def _client(ground: Ground, name: str, own: Dataset | None) -> ClientData:
    if own is None:
        return ground.clients[ground.clients.names.index(name)]
    # A site tests nothing: what a loader holds out is its record like any other.
    features = np.concatenate([own.train_features, own.test_features]).astype(np.float32)
    labels = np.concatenate([own.train_labels, own.test_labels])
    declared = ground.spec.data.sites[name]
    if ground.algorithm.unit is Unit.SAMPLE and len(labels) != declared:
        raise ConfigError(
            f"'data.sites' says that '{name}' has {declared} records, and it has {len(labels)}; at "
            "sample level the number is public and must be right"
        )
    return ClientData(
        name=name, features=torch.from_numpy(features), labels=torch.from_numpy(labels)
    )
