"""Computation of an order at a site: own data, the spec's algorithm, sealed messages."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from sottovoce.core import printable_text
from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import MAX_DIMENSION, Domain, Vector
from sottovoce.core.errors import (
    ConfigError,
    ParameterError,
    PolicyError,
    SottovoceError,
    UnknownNameError,
    WireError,
)
from sottovoce.core.randomness import Randomness, SeededRandomness
from sottovoce.deployment.orders import Order
from sottovoce.deployment.policy import Terms
from sottovoce.deployment.site import RoundRequest, Site
from sottovoce.federated.algorithms.algorithm import (
    ALGORITHMS,
    Algorithm,
    ClientStepInput,
    message_mechanism,
    shared_numbers_of,
)
from sottovoce.federated.cohorts import SAMPLINGS
from sottovoce.federated.rounds import compute_finite_uplinks
from sottovoce.learning import datasets, models
from sottovoce.learning.clients import ClientData, as_inputs
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.features import FEATURES, files_of
from sottovoce.learning.models.modules import select_trainable, trainable_parameters
from sottovoce.learning.partition import PARTITIONS
from sottovoce.learning.task import Task
from sottovoce.mechanisms import registry
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.protocol.broadcast import payload_bytes, unpack_start
from sottovoce.protocol.channels.channel import CHANNELS, Channel
from sottovoce.protocol.plan import ClientPlan, RoundPlan
from sottovoce.runs.inputs import (
    Inputs,
    Stamp,
    load_data,
    load_inputs,
    randomness_of,
    section_of,
    stamps_of,
    traits_of,
    with_section,
)
from sottovoce.runs.loading import parse
from sottovoce.runs.resolve import channel_of, check_federation, rounds_per_client
from sottovoce.runs.spec import RunSpec
from sottovoce.runs.statistics import sends_statistics

_LOG = printable_text.logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """What stays the same from round to round: task, algorithm, and the site's data."""

    task: Task
    algorithm: Algorithm
    client: ClientData
    num_clients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedOrder:
    """An order that the site's terms allow, ready to be trained on.

    Attributes:
        asked: The site's part of the round.
        randomness: Source of the mechanism's keys.
        train: Computes the vectors.
    """

    asked: RoundRequest
    randomness: Randomness
    train: Callable[[], list[Vector]]


def compute(order: Order, site: Site) -> list[bytes]:
    """Train as an order asks, and return one sealed message for each uplink, charged to the site.

    If the order is refused or fails, an error is raised and nothing is released; see `Site.answer`
    for what is charged.
    """
    ready = prepare_order(order, site)
    return site.answer(ready.asked, ready.randomness, ready.train, keep_from=order.keep_from)


def prepare_order(order: Order, site: Site) -> PreparedOrder:
    """Check an order against the site's terms, and build its model and plan; train nothing.

    The policy is checked before anything is read, imported or built, since an error after that may
    depend on the data.
    """
    spec = parse(order.spec, "the order's spec")
    kind, parameters = _mechanism(order)
    # Before anything is read, imported or built: an error there may depend on the data.
    site.check_terms(order.client, _terms(order, spec, kind))
    if spec.data.sites:
        spec = _without_server_side(spec)
    _check_harmless(spec, site)
    _check_vectors(spec, order)
    if spec.data.sites:
        spec = _on_own_records(spec, order, site)
    place = _place(
        json.dumps(spec.plain(), sort_keys=True),
        len(order.vectors[0]),
        site.name,
        order.classes,
        stamps_of(spec.data.dataset),
    )
    algorithm, dimension = place.algorithm, place.task.dimension
    if place.task.fixed_digest != order.frozen:
        raise ConfigError(
            "the frozen parameters or buffers of the model are not those of the server; give the "
            "site the same pretrained weights and the same versions of the model's packages"
        )
    size = place.client.num_samples
    # The domain is the site's own: how far a record moves the update follows from its data.
    domain = algorithm.domain(dimension, size)
    part = ClientPlan(
        client=order.client,
        mechanism=message_mechanism(algorithm, _built(kind, domain, parameters)),
        weight=algorithm.weight(size),
    )
    rotated = spec.rotation == "on"
    plan = RoundPlan(
        run=order.run,
        round=order.round,
        unit=algorithm.unit,
        adjacency=spec.privacy.adjacency,
        clients=(part,),
        rotation=Rotation.of_round(order.run, order.round, domain.dimension) if rotated else None,
        channel=_channel(spec, place.num_clients),
        record_sampling_rate=algorithm.record_sampling_rate,
    )
    randomness = randomness_of(spec)
    start = unpack_start(
        order.vectors,
        algorithm.shared_state,
        dimension,
        spec.runtime.downlink,
        shared_numbers_of(algorithm),
    )
    step = ClientStepInput(
        run=order.run,
        round=order.round,
        model=start.model,
        state=start.state,
        randomness=randomness,
        mechanism_of=lambda _: part.mechanism,
    )

    def train() -> list[Vector]:
        uplinks = compute_finite_uplinks(algorithm, place.task, [place.client], step)
        return [values for _, _, values in uplinks]

    asked = RoundRequest(
        plan=plan,
        part=part,
        cohort=order.cohort,
        uplinks=algorithm.uplinks,
        rounds=rounds_per_client(spec, place.num_clients),
        records=size,
    )
    return PreparedOrder(asked=asked, randomness=randomness, train=train)


def _mechanism(order: Order) -> tuple[str, dict[str, Any]]:
    given = dict(order.mechanism)
    kind = given.pop("kind", None)
    if not isinstance(kind, str):
        raise ConfigError(
            "the mechanism of an order must have a 'kind', the name of a mechanism as text; "
            "correct it at the server"
        )
    return kind, given


def _built(kind: str, domain: Domain, given: Mapping[str, Any]) -> Mechanism:
    try:
        return registry.find(kind).build(domain, given)
    except SottovoceError as error:
        raise ConfigError(
            f"the order's mechanism is not valid: {error}; correct it at the server"
        ) from None


def _terms(order: Order, spec: RunSpec, kind: str) -> Terms:
    return Terms(
        mechanism=kind,
        level=Unit(spec.privacy.level),
        adjacency=spec.privacy.adjacency,
        channel=_channel(spec, order.cohort),
        cohort=order.cohort,
        grade=randomness_of(spec).grade,
    )


def _channel(spec: RunSpec, num_clients: int) -> Channel:
    # An order must not make a site import a plug-in.
    for register, kind in ((CHANNELS, spec.channel.kind), (SAMPLINGS, spec.sampling.kind)):
        if not register.is_ours(kind):
            raise PolicyError(
                f"the run's {register.kind} '{kind}' is not one of Sottovoce's own, and a site "
                "imports no plug-in for an order; use one of Sottovoce's own"
            )
    spec.channel.build().check_order()
    return channel_of(spec, num_clients)


def _check_harmless(spec: RunSpec, site: Site) -> None:
    """Raise PolicyError if an order would make the site read files or call code of its choice."""
    check_federation(spec)
    for key, path in spec.model.user_functions.items():
        if path not in site.factories:
            raise PolicyError(
                f"the model {key} '{path}' is not allowed; ask the site to add it to 'factories' "
                "of its file"
            )
    for register, kinds in (
        (models.MODELS, [spec.model.kind]),
        (FEATURES, [step.kind for step in spec.features]),
        (PARTITIONS, [spec.data.partition.kind]),
    ):
        for kind in kinds:
            if not register.is_ours(kind):
                raise PolicyError(
                    f"the run's {register.kind} '{kind}' is not one of Sottovoce's own, and a site "
                    "imports no plug-in for an order; use one of Sottovoce's own"
                )
    if ":" in spec.data.dataset and not spec.data.sites:
        raise PolicyError(
            f"the dataset '{spec.data.dataset}' has an argument after the colon, such as a file, "
            "and a site reads no data set that an order describes so; use 'data.sites', for which "
            "the site reads what [data] of its own file names"
        )
    if not spec.data.sites and datasets.where_found(spec.data.dataset) is None:
        raise PolicyError(
            f"the dataset '{spec.data.dataset}' is not installed at the site, and an order does "
            f"not make it download; run 'sottovoce data fetch {spec.data.dataset}' at the site"
        )
    for step in (table.build() for table in spec.features):
        for file in files_of(step):
            raise PolicyError(
                f"the public images '{file}' are a file of the server, and a site reads no file "
                "that an order names; remove the feature step"
            )


def _check_vectors(spec: RunSpec, order: Order) -> None:
    """Raise WireError for too many vectors or other sizes, before any is decoded."""
    if not order.vectors:
        raise WireError("an order must have at least one vector, the model; none arrived")
    most = traits_of(spec).most_vectors_down
    if len(order.vectors) > most:
        raise WireError(
            f"{len(order.vectors)} vectors arrived, but the algorithm '{spec.algorithm.kind}' "
            f"reads at most {most}; install the same version at server and client"
        )
    like_model = order.vectors[: most - 1] if sends_statistics(spec) else order.vectors
    if len(sizes := {len(vector) for vector in like_model}) > 1:
        raise WireError(
            f"vectors of {min(sizes)} and of {max(sizes)} bytes arrived, but all must have the "
            "model's size; install the same version at server and client"
        )


def _on_own_records(spec: RunSpec, order: Order, site: Site) -> RunSpec:
    """Return the spec with the records that the site's file names, read as that file says."""
    own = site.records
    if own is None:
        raise PolicyError(
            "the run uses this site's own records, and the site's file names none; add [data] to it"
        )
    data: dict[str, Any] = {"dataset": own.dataset, "sites": dict(spec.data.sites)}
    if own.dataset.startswith("csv:"):
        data["csv"] = dict(own.csv)
    try:
        found = parse({**spec.plain(), "data": data}, "[data] of the site's file")
    except ConfigError as error:
        _LOG.error("%s", error)
        raise PolicyError("[data] of the site's file is not valid; see the site's log") from None
    table = found.data.csv
    if table is not None and spec.data.csv not in (None, table):
        raise PolicyError(
            "'data.csv' of the run differs from [data.csv] of the site's file; make both equal, or "
            "remove it from the run"
        )
    by_list = table is not None and table.label == "class"
    classes = len(table.classes) if table is not None and by_list else own.classes
    if order.classes != classes:
        raise PolicyError(
            f"the run has {order.classes or 'no'} classes, but [data] of the site's file has "
            f"{classes or 'none'}; make both numbers equal"
        )
    return found


def _without_server_side(spec: RunSpec) -> RunSpec:
    """Return the spec without what only the server computes, which needs no records."""
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"metric": None})})
    if ALGORITHMS.find_ours(spec.algorithm.kind) is None:
        return spec  # a plug-in is refused later, and not imported before
    return with_section(spec, section_of(spec).at_site())


@lru_cache(maxsize=2)
def _place(
    spec_text: str,
    model_bytes: int,
    name: str,
    classes: int | None,
    stamps: tuple[Stamp, ...],  # noqa: ARG001  (part of the key: changed records are read again)
) -> _Place:
    spec = parse(json.loads(spec_text), "the order's spec")
    if spec.runtime.deterministic:
        torch.set_num_threads(1)
    data = load_data(spec, SeededRandomness(spec.seed))
    if spec.data.sites:
        data = dataclasses.replace(data, num_classes=classes)
    _check_size(spec, data, model_bytes)
    inputs = load_inputs(spec, data)
    if name not in inputs.clients.names:
        raise PolicyError(
            f"this site is '{name}', which is not a client of the run; add it to the run's clients"
        )
    return _Place(
        task=inputs.task,
        algorithm=inputs.algorithm,
        client=_client(inputs, name, data if spec.data.sites else None),
        num_clients=len(inputs.clients),
    )


def _check_size(spec: RunSpec, data: Dataset, model_bytes: int) -> None:
    """Raise WireError if the model does not have the size that arrived, before building it."""
    if spec.model.user_factory is not None:
        return  # the site allows this function, whose model is built later
    try:
        with torch.device("meta"):
            module = models.build(spec.model.build(), data.input_shape, data.num_outputs)
        select_trainable(module, spec.model.trainable)
    except (ParameterError, UnknownNameError) as error:
        raise ConfigError(f"the order's model is not valid: {error}; correct the spec") from None
    dimension = sum(tensor.numel() for tensor in trainable_parameters(module).values())
    if dimension > MAX_DIMENSION or payload_bytes(dimension, spec.runtime.downlink) != model_bytes:
        raise WireError(
            f"{model_bytes} bytes arrived for a model of {dimension} numbers; use the same model "
            "and the same runtime.downlink at server and client"
        )


def _client(inputs: Inputs, name: str, own: Dataset | None) -> ClientData:
    if own is None:
        return inputs.clients[inputs.clients.names.index(name)]
    # A site evaluates no model, so records that a loader holds out for testing are used as well.
    features = as_inputs(np.concatenate([own.train_features, own.test_features]))
    labels = np.concatenate([own.train_labels, own.test_labels])
    declared = inputs.spec.data.sites[name]
    if inputs.algorithm.unit is Unit.SAMPLE and len(labels) != declared:
        # The server sees the error, so it contains only that the number is wrong. The right number
        # goes to the site's log, and people agree on it.
        _LOG.error(
            "'data.sites' has %d records of '%s', but it has %d", declared, name, len(labels)
        )
        raise ConfigError(
            f"'data.sites' says that '{name}' has {declared} records, which is wrong; at sample "
            "level the number is public and must be right. Ask the site, whose log has it"
        )
    return ClientData(name=name, features=features, labels=torch.from_numpy(labels))
