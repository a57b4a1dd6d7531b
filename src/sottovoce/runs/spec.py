"""The spec of a run: what a TOML file may say. Unknown keys are refused with the nearest name."""

import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from sottovoce.core.adjacency import Adjacency
from sottovoce.core.parameter_rules import MAX_EPSILON
from sottovoce.core.registry import Register
from sottovoce.core.sections import section_from
from sottovoce.federated.cohorts import SAMPLINGS, ClientSampling
from sottovoce.learning.datasets import CsvOptions
from sottovoce.learning.features import FEATURES, Step, step_of
from sottovoce.learning.models.register import MODELS, model_of
from sottovoce.learning.partition import PARTITIONS, Partition
from sottovoce.protocol.broadcast import DownlinkFormat
from sottovoce.protocol.channels.channel import CHANNELS, Channel
from sottovoce.runs.sections import OpenSection, Section, as_written

if TYPE_CHECKING:  # a spec can be read where torch is not installed
    from sottovoce.learning.models import Model

_FiniteNumber = Annotated[float, Field(allow_inf_nan=False)]
_Bounds = Annotated[tuple[_FiniteNumber, _FiniteNumber], Field(strict=False)]
_Fraction = Annotated[float, Field(gt=0, lt=1)]
_Count = Annotated[int, Field(ge=1)]


class PartitionSpec(OpenSection):
    """A registered way to spread rows over clients; its own keys stand beside `kind`."""

    register: ClassVar[Register[Any]] = PARTITIONS

    def opened(self) -> Partition:
        """Return the partition; imports a plug-in that has the name."""
        return section_from(PARTITIONS, "data.partition", self.kind, self.parameters)


class CsvSpec(Section):
    """How the table of a dataset 'csv:PATH' is read.

    Columns go by name, or by number from 0 where `header` is false. `bounds` are public limits of
    features, which map them to [-1/2, 1/2]; "*" is for all that have none of their own.
    `categories` are the public words of features that are words.
    """

    header: bool = True
    label_columns: Annotated[tuple[str, ...], Field(strict=False)] = ()
    label: Literal["class", "number"] = "class"
    classes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    owner_column: str | None = None
    bounds: dict[str, _Bounds] = Field(default_factory=dict)
    test_fraction: _Fraction = 0.2
    decimal: Literal[".", ","] = "."
    missing: Literal["refuse", "skip"] = "refuse"
    ignore_columns: Annotated[tuple[str, ...], Field(strict=False)] = ()
    categories: dict[str, Annotated[tuple[str, ...], Field(strict=False)]] = Field(
        default_factory=dict
    )

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what came later where it is the default: specs keep the hashes of results."""
        found: dict[str, Any] = handler(self)
        for key in ("decimal", "missing", "ignore_columns", "categories"):
            if getattr(self, key) == type(self).model_fields[key].get_default(
                call_default_factory=True
            ):
                found.pop(key, None)
        return found

    def options(self) -> CsvOptions:
        """The same for the loader, which checks what belongs together."""
        return CsvOptions(
            header=self.header,
            label_columns=self.label_columns,
            label=self.label,
            classes=self.classes,
            owner_column=self.owner_column,
            bounds=dict(self.bounds),
            test_fraction=self.test_fraction,
            decimal=self.decimal,
            missing=self.missing,
            ignore_columns=self.ignore_columns,
            categories=dict(self.categories),
        )


class DataSpec(Section):
    """Data and its clients.

    `clients` may be left out where the partition settles it (a client an owner, or a sample), or
    where `names` call them something else than client-0000, client-0001, ...
    `num_owners` keeps so many of those whose the training rows are, drawn at random, with all that
    is theirs; `num_train` and `num_test` keep a random part of the rows. `validation_fraction`
    holds out a part of the training data and tests on that instead of the test set: for tuning.

    `sites` are for a federation whose sites train on records of their own: names of clients, and
    how many records each has, which is public (at client level the number is not used: say 1). Then
    `dataset` is what the server tests on, and tells the shape of the records.
    """

    dataset: str
    clients: _Count | None = None
    partition: PartitionSpec = PartitionSpec(kind="iid")
    num_owners: _Count | None = None
    num_train: _Count | None = None
    num_test: _Count | None = None
    validation_fraction: _Fraction | None = None
    csv: CsvSpec | None = None
    names: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)] = ()
    sites: dict[str, _Count] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what came later where it says nothing: specs keep the hashes of their results."""
        found: dict[str, Any] = handler(self)
        for key in ("names", "sites"):
            if not found.get(key):
                found.pop(key, None)
        return found

    @model_validator(mode="after")
    def _names_are_the_clients(self) -> Self:
        if len(set(self.names)) < len(self.names):
            raise ValueError("'names' has a name twice; every client has its own")
        if self.names and self.clients not in (None, len(self.names)):
            raise ValueError(f"'names' has {len(self.names)} names for {self.clients} clients")
        return self

    @model_validator(mode="after")
    def _sites_have_their_own(self) -> Self:
        given = [
            name
            for name in ("clients", "names", "num_owners", "num_train", "validation_fraction")
            if getattr(self, name)
        ]
        if self.sites and (given or self.partition != PartitionSpec(kind="iid")):
            what = given[0] if given else "partition"
            raise ValueError(f"'sites' have records of their own, so '{what}' means nothing")
        if self.sites and self.csv and self.csv.label == "class" and not self.csv.classes:
            raise ValueError("'sites' may not have records of every class: give 'csv.classes'")
        return self

    @model_validator(mode="after")
    def _clients_are_settled(self) -> Self:
        if self.sites or self.names:
            return self
        # Whether a plug-in's partition settles it is seen where a run is built.
        ours = PARTITIONS.is_ours(self.partition.kind)
        if self.clients is None and ours and not self.partition.opened().settles_clients:
            raise ValueError(
                f"'clients' is missing: the partition '{self.partition.kind}' needs their number"
            )
        return self

    @model_validator(mode="after")
    def _csv_is_for_tables(self) -> Self:
        if self.csv is not None and not self.dataset.startswith("csv:"):
            raise ValueError(
                f"'csv' is for datasets 'csv:PATH', not '{self.dataset}'; remove the table"
            )
        return self


AUTO = "auto"  # in place of a mechanism

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Epsilon = Annotated[float, Field(gt=0, le=MAX_EPSILON, allow_inf_nan=False)]
Delta = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


class FeatureSpec(OpenSection):
    """A registered step; its own keys stand beside `kind`."""

    register: ClassVar[Register[Any]] = FEATURES

    def opened(self) -> Step:
        """Return the step; imports a plug-in that has the name."""
        return step_of(self.kind, self.parameters)


class ModelSpec(OpenSection):
    """A registered model; its own keys stand beside `kind`.

    The kind "module" is a user's own: `factory` is "package.module:function", called with
    `arguments`. Warning: the module is imported and the function called, so that a spec with a
    factory can do whatever a program can. Commands refuse it without `--allow-code`, and `simulate`
    without `allow_code=True`; a site calls only what its own file lists under `factories`.

    The kind "in_memory" is a module that a Python program gave to `sottovoce.simulate`; no other
    program has it.
    """

    register: ClassVar[Register[Any]] = MODELS

    def opened(self) -> "Model":
        """Return the model, which checks its own keys; imports a plug-in that has the name."""
        return model_of(self.kind, self.parameters)

    @property
    def user_factory(self) -> str | None:
        """The user's function that would be imported and called, or None."""
        return str(self.parameters.get("factory", "")) if self.kind == "module" else None


class SamplingSpec(OpenSection):
    """A registered way to draw the clients of a round; its own keys stand beside `kind`."""

    register: ClassVar[Register[Any]] = SAMPLINGS

    def opened(self) -> ClientSampling:
        """Return the sampling; imports a plug-in that has the name."""
        return section_from(SAMPLINGS, "sampling", self.kind, self.parameters)


class AlgorithmSpec(Section):
    """A registered algorithm; its own keys stand beside `kind` and are checked by its section.

    Those of this project's own are all written out when a spec is read (`config.loading`), a
    plug-in's when a run is built. Null is what a key has that the algorithm may go without.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    kind: str

    @model_validator(mode="before")
    @classmethod
    def _as_written(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
            raise PydanticCustomError(
                "algorithm", "must be a table with the 'kind' of an algorithm"
            )
        return {key: None if item is None else as_written(item) for key, item in value.items()}

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class ChannelSpec(OpenSection):
    """A registered channel; its own keys stand beside `kind`."""

    register: ClassVar[Register[Any]] = CHANNELS

    def opened(self) -> Channel:
        """Return the channel, not yet checked against the run; imports a plug-in of the name."""
        return section_from(CHANNELS, "channel", self.kind, self.parameters)


class MechanismSpec(Section):
    """A registered mechanism; its own parameters stand beside `kind`.

    The kind "auto" is the one that errs least at the budget; `bits` is the most that it may send
    for a coordinate.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    kind: str

    @model_validator(mode="before")
    @classmethod
    def _auto(cls, value: Any) -> Any:
        return {"kind": AUTO} if value == AUTO else as_written(value)

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def _members(value: object) -> int | tuple[str, ...]:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(n, str) for n in value):
        return tuple(value)
    raise ValueError("give a number of clients, 1 or more, or a list of their names")


class GroupSpec(Section):
    """Clients with a budget or a mechanism of their own; what is not given is the run's.

    `clients` is a list of names, or a number: the next so many clients that no group names. There
    is one adjacency in a run: `adjacency` may only repeat it.
    """

    clients: Annotated[
        int | tuple[str, ...], PlainValidator(_members), PlainSerializer(lambda value: value)
    ]
    epsilon: Epsilon | None = None
    delta: Delta | None = None
    adjacency: Annotated[Adjacency | None, Field(strict=False)] = None
    mechanism: MechanismSpec | None = None


class PrivacySpec(Section):
    """What is protected (level, adjacency), the clip, and the budget of each client.

    With `epsilon` the mechanism's free parameter is calibrated so that all rounds together stay
    within it, unless the mechanism gives that parameter itself; either way it is the client's
    budget, which the ledger enforces. An algorithm that takes it for a published analysis, as
    'nbafl' does, makes its noise of it: there it is no budget.

    With a `record_sampling_rate` below 1 each client works on a secret sample of its own records in
    every round, which is charged less; at sample level only.

    The run halts where fewer than `minimum_clients` clients have budget left for a round. Clients
    in `groups` have budgets or mechanisms of their own.
    """

    level: Literal["sample", "client"]
    adjacency: Annotated[Adjacency, Field(strict=False)] = Adjacency.ZERO_OUT
    clip_norm: Positive
    epsilon: Epsilon | None = None
    delta: Delta
    record_sampling_rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    minimum_clients: Annotated[int, Field(ge=1)] = 1
    groups: Annotated[tuple[GroupSpec, ...], Field(strict=False)] = ()


class RuntimeSpec(Section):
    """Where and how a run is computed.

    backend    fast: all clients in this process. flower-sim: Flower's simulation engine, a process
               for each worker. flower: a federation of machines, see 'sottovoce deploy'. Or the
               name of a plug-in. What is computed is the same, so it is no part of the spec's hash.
    messages   stored: each is charged in the ledger, sealed, stored and opened, as in a deployment.
               packed: the same codes, packed and unpacked; charges are counted in memory.
               none:   drawn from the same laws with torch's generator, in float32; for sweeps.
    device     where models train: "auto" is the GPU if there is one.
    downlink   how the model goes down to clients, who train from what they read: "float32",
               "float16", "bfloat16", or "int8" with a scale for each 256 coordinates. It costs no
               privacy; the server's own model stays as it is.
    deterministic  one thread, and one client at a time, as a site trains: the same bits wherever
               the run is computed.

    Anything but stored needs seeded randomness.
    """

    backend: str = "fast"
    messages: Literal["stored", "packed", "none"] = "stored"
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    downlink: DownlinkFormat = "float32"
    deterministic: bool = False


_LATER_KEYS = {"backend": "fast", "downlink": "float32", "deterministic": False}


class DeploymentSpec(Section):
    """How a federation of machines is waited for; the fast simulator needs none of it.

    A round closes when every client that was asked has answered, or after `deadline_seconds`, half
    of which may go by until enough clients are online; late replies are discarded, and charged all
    the same. With `oversampling` s above 1 so many times
    more clients are asked than the sampling says, and the round closes when 1/s of them answered.
    A round with fewer than `minimum_replies` replies leaves the model as it is; after
    `idle_rounds` such rounds in a row the run stops, and can be resumed. Before the first round all
    clients must be online, for at most `wait_seconds`.
    """

    deadline_seconds: Positive = 600.0
    wait_seconds: Positive = 600.0
    oversampling: Annotated[float, Field(ge=1, le=10)] = 1.0
    minimum_replies: Annotated[int, Field(ge=1)] = 1
    idle_rounds: Annotated[int, Field(ge=1)] = 3


_CHANGES_TOLD = 10
_LONGEST_SHOWN = 60  # letters of a value


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value in tables, and in lists of tables, with its key path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for place, item in enumerate(value):
            yield from _leaves(item, f"{path}[{place}]")
    else:
        yield path, value


def _shown(value: Any) -> str:
    text = "unset" if value is None else json.dumps(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


class RunSpec(Section):
    """One federated run.

    `rotation` turns updates at random before they are encoded: "auto" does so where a mechanism
    sends one of finitely many codes for each coordinate of an L2 ball, and so has a range.
    """

    name: Annotated[str, Field(pattern=r"^[^/\\\x00-\x1f]*[^/\\.\x00-\x1f][^/\\\x00-\x1f]*$")]
    seed: Annotated[int, Field(ge=0, lt=2**128)]
    rounds: Annotated[int, Field(ge=1, lt=2**32)]
    randomness: Literal["seeded", "system"] = "system"
    checkpoint_every: Annotated[int, Field(ge=1)] = 10
    rotation: Literal["auto", "on", "off"] = "auto"
    data: DataSpec
    features: Annotated[tuple[FeatureSpec, ...], Field(strict=False)] = ()
    model: ModelSpec
    algorithm: AlgorithmSpec
    privacy: PrivacySpec
    mechanism: MechanismSpec
    sampling: SamplingSpec = SamplingSpec(kind="everyone")
    channel: ChannelSpec = ChannelSpec(kind="direct")
    runtime: RuntimeSpec = RuntimeSpec()
    deployment: DeploymentSpec = DeploymentSpec()

    def plain(self) -> dict[str, Any]:
        """As plain data. What came later is left out where it is the default: specs keep the
        hashes of their results.
        """
        plain = self.model_dump(mode="json")
        for key, default in _LATER_KEYS.items():
            if plain["runtime"][key] == default:
                del plain["runtime"][key]
        if self.deployment == DeploymentSpec():
            del plain["deployment"]
        return plain

    def _computed(self) -> dict[str, Any]:
        """Return what is computed as plain data, wherever that is."""
        plain = self.plain()
        plain["runtime"].pop("backend", None)
        return plain

    def changes_since(self, begun: Any) -> str:
        """Say which keys have other values than in the plain data that a run was begun with."""
        before, now = dict(_leaves(begun)), dict(_leaves(self._computed()))
        before.pop("runtime.backend", None)
        keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        told = [
            f"'{key}' was {_shown(before.get(key))} and is {_shown(now.get(key))}"
            for key in keys[:_CHANGES_TOLD]
        ]
        more = [f"{len(keys) - len(told)} more keys differ"] if len(keys) > len(told) else []
        return ", ".join([*told, *more]) or "no key differs, but the hash does"

    @property
    def hash(self) -> str:
        """Sixteen hex digits that stand for what is computed, wherever that is."""
        plain = self._computed()
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
