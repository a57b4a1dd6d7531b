"""The spec of a run: the tables and keys that a TOML file may have.

An unknown key is refused with the nearest known name. A key that was added after specs were first
hashed is left out of the stored spec where it has its default, so that old hashes stay valid.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from sottovoce.core import sections
from sottovoce.core.adjacency import Adjacency
from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce.core.parameter_rules import MAX_EPSILON
from sottovoce.core.registry import Register
from sottovoce.core.sections import section_from
from sottovoce.federated.algorithms.statistics import AdaptiveClip, PrivateEvaluation
from sottovoce.federated.cohorts import SAMPLINGS, ClientSampling
from sottovoce.learning.datasets import CsvOptions
from sottovoce.learning.features import FEATURES, FeatureStep, step_of
from sottovoce.learning.models.register import MODELS, model_of
from sottovoce.learning.objectives import check_loss_name, is_function_path
from sottovoce.learning.partition import PARTITIONS, Partition
from sottovoce.learning.precision import Precision
from sottovoce.protocol.broadcast import DownlinkFormat
from sottovoce.protocol.channels.channel import CHANNELS, Channel
from sottovoce.runs.sections import OpenSection, Section, as_toml_data

if TYPE_CHECKING:  # A spec can be read where torch is not installed.
    from sottovoce.learning.models import Model

T = TypeVar("T")

_FiniteNumber = Annotated[float, Field(allow_inf_nan=False)]
_Bounds = Annotated[tuple[_FiniteNumber, _FiniteNumber], Field(strict=False)]
_Fraction = Annotated[float, Field(gt=0, lt=1)]
_Count = Annotated[int, Field(ge=1)]


class PartitionSpec(OpenSection):
    """A registered way to split the training rows among clients.

    `kind` names it, and the other keys of the table are its parameters.
    """

    register: ClassVar[Register[Any]] = PARTITIONS

    def build(self) -> Partition:
        """Return the partition; import a plug-in of that name."""
        return section_from(PARTITIONS, "data.partition", self.kind, self.parameters)


class CsvSpec(Section):
    """How the table of a data set 'csv:PATH' is read.

    Attributes:
        header: Whether the first line names the columns; otherwise they are numbered from 0.
        label_columns: The columns to predict; by default the last one that is neither the owner's
            nor ignored.
        label: Whether labels are classes ("class") or numbers ("number").
        classes: The public list of classes; by default those that occur in the file.
        owner_column: The column that names the owner of a row; None if rows have no owners.
        bounds: Public limits (low, high) of features, which are mapped to [-1/2, 1/2]; "*" is for
            all features without limits of their own. Features without limits are not scaled.
        test_fraction: The part of the rows to test on, between 0 and 1.
        decimal: The decimal separator.
        missing: Whether rows with missing values are an error ("refuse") or left out ("skip").
        ignore_columns: Columns that are not used.
        categories: The public list of words for each feature that has words as values.
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
    def _omit_newer_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out newer keys with their defaults, so that hashes of older specs stay valid."""
        found: dict[str, Any] = handler(self)
        for key in ("decimal", "missing", "ignore_columns", "categories"):
            if getattr(self, key) == type(self).model_fields[key].get_default(
                call_default_factory=True
            ):
                found.pop(key, None)
        return found

    def options(self) -> CsvOptions:
        """Return the same options for the loader of data sets.

        Raises:
            ParameterError: The options do not fit together.
        """
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
    """The data and how they are split among clients.

    Attributes:
        dataset: A name from `sottovoce data list`, or "npz:PATH", "csv:PATH", "hf:FOLDER".
        clients: The number of clients. It may be omitted where the partition determines it (one
            client per owner or per sample), or where `names` are given.
        partition: How rows are split among clients.
        num_owners: Keep this many owners of training rows, drawn at random, with all of their rows;
            None keeps all. The draw is the same for every seed, as are the next two.
        num_train: Keep this many training rows, drawn at random; None keeps all.
        num_test: Keep this many test rows, drawn at random; None keeps all.
        validation_fraction: Hold out this part of the training data and test on it instead of the
            test set, for tuning; None tests on the test set.
        csv: How a table 'csv:PATH' is read.
        names: The names of the clients; client-0000, client-0001, ... by default.
        sites: For a federation whose sites train on their own records: the names of the clients and
            the number of records of each, which is public. (At client level the number is not used;
            write 1.) The server then tests on `dataset`, which also gives the shape of the records.
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
    def _omit_newer_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out newer keys that are empty, so that hashes of older specs stay valid."""
        found: dict[str, Any] = handler(self)
        for key in ("names", "sites"):
            if not found.get(key):
                found.pop(key, None)
        return found

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if len(set(self.names)) < len(self.names):
            raise ValueError("'names' has a name twice; give every client its own")
        if self.names and self.clients not in (None, len(self.names)):
            raise ValueError(
                f"'names' has {len(self.names)} names for {self.clients} clients; give one name "
                "for each client, or leave 'clients' out"
            )
        return self

    @model_validator(mode="after")
    def _check_sites(self) -> Self:
        given = [
            name
            for name in ("clients", "names", "num_owners", "num_train", "validation_fraction")
            if getattr(self, name)
        ]
        if self.sites and (given or self.partition != PartitionSpec(kind="iid")):
            what = given[0] if given else "partition"
            raise ValueError(
                f"'sites' have their own records, so '{what}' has no effect; remove it"
            )
        if self.sites and self.csv and self.csv.label == "class" and not self.csv.classes:
            raise ValueError("a site may lack records of some class; give all in 'csv.classes'")
        return self

    @model_validator(mode="after")
    def _check_clients(self) -> Self:
        if self.sites or self.names:
            return self
        # Whether a plug-in's partition determines it is checked when the run is built.
        ours = PARTITIONS.is_ours(self.partition.kind)
        if self.clients is None and ours and not self.partition.build().determines_clients:
            raise ValueError(
                f"'clients' is missing; give the number of clients, which the partition "
                f"'{self.partition.kind}' needs"
            )
        return self

    @model_validator(mode="after")
    def _check_csv(self) -> Self:
        if self.csv is not None and not self.dataset.startswith("csv:"):
            raise ValueError(
                f"'csv' is only for data sets 'csv:PATH', not '{self.dataset}'; remove the table"
            )
        return self


AUTO = "auto"  # The kind that stands for the best mechanism.

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Epsilon = Annotated[float, Field(gt=0, le=MAX_EPSILON, allow_inf_nan=False)]
Delta = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


class FeatureSpec(OpenSection):
    """A registered transformation of the data.

    `kind` names it, and the other keys of the table are its parameters.
    """

    register: ClassVar[Register[Any]] = FEATURES

    def build(self) -> FeatureStep:
        """Return the transformation; import a plug-in of that name."""
        return step_of(self.kind, self.parameters)


class ModelSpec(OpenSection):
    """A registered model.

    `kind` names it, and the keys of the table that are not listed below are its parameters.

    Attributes:
        trainable: Which parameters are trained and sent, by the names that the module gives them;
            * stands for any text. All others are frozen. Empty: those with requires_grad=True.
        loss: The name of a loss, or a function "package.module:function" of outputs and labels that
            returns one number for each sample. None: what fits the labels.
        metric: A function, as for `loss`, whose mean over test samples is reported.

    The kind "module" is the user's own model: `factory` is "package.module:function", a function
    that is called with `arguments` and returns the model. Warning: the module is imported and the
    function called, so a spec with a factory can do whatever a program can do. Commands refuse it
    without `--allow-code`, and `simulate` without `allow_code=True` unless it is given a `RunSpec`;
    a site calls only what its own file lists under `factories`.

    The kind "in_memory" is a module that a Python program passed to `sottovoce.simulate`; it exists
    in that program only.
    """

    register: ClassVar[Register[Any]] = MODELS
    trainable: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)] = ()
    loss: str | None = None
    metric: str | None = None

    @field_validator("loss")
    @classmethod
    def _check_loss(cls, loss: str | None) -> str | None:
        if loss is not None:
            try:
                check_loss_name(loss)
            except UnknownNameError as error:
                raise ValueError(str(error)) from None
        return loss

    @field_validator("metric")
    @classmethod
    def _check_metric(cls, metric: str | None) -> str | None:
        if metric is not None and ":" not in metric:
            raise ValueError("must be a function of your own, 'package.module:function'")
        return metric

    @model_serializer(mode="wrap")
    def _omit_newer_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out newer keys with their defaults, so that hashes of older specs stay valid."""
        found: dict[str, Any] = handler(self)
        for key in set(type(self).model_fields) - {"kind"}:
            if getattr(self, key) == type(self).model_fields[key].default:
                found.pop(key, None)
        return found

    def build(self) -> "Model":
        """Return the model, which checks its own keys; import a plug-in of that name."""
        return model_of(self.kind, self.parameters)

    @property
    def user_factory(self) -> str | None:
        """The user's function that would be imported and called to build the model, or None."""
        return str(self.parameters.get("factory", "")) if self.kind == "module" else None

    @property
    def user_functions(self) -> dict[str, str]:
        """The user's functions that would be imported and called, by the key that names them."""
        given = {"factory": self.user_factory, "loss": self.loss, "metric": self.metric}
        return {
            key: path
            for key, path in given.items()
            if path is not None and (key == "factory" or is_function_path(path))
        }


class SamplingSpec(OpenSection):
    """A registered way to draw the clients of a round.

    `kind` names it, and the other keys of the table are its parameters.
    """

    register: ClassVar[Register[Any]] = SAMPLINGS

    def build(self) -> ClientSampling:
        """Return the sampling; import a plug-in of that name."""
        return section_from(SAMPLINGS, "sampling", self.kind, self.parameters)


class AlgorithmSpec(Section):
    """A registered algorithm.

    `kind` names it, and the other keys of the table are its parameters, which the algorithm's own
    class checks. The defaults of Sottovoce's own algorithms are filled in when a spec is read
    (`runs.loading`), a plug-in's when a run is built. An optional parameter can be null.
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
        return {key: None if item is None else as_toml_data(item) for key, item in value.items()}

    @property
    def parameters(self) -> dict[str, Any]:
        """All keys except `kind`, with their values."""
        return dict(self.model_extra or {})


class ChannelSpec(OpenSection):
    """The table [channel] of a spec; a spec without it has the kind "direct".

    `kind` names a registered channel, and the other keys are its parameters. A key that the kind
    lacks is refused on creation, or by `build` if the kind is a plug-in's. An unknown kind is
    refused by `check_kind` and `build`.
    """

    register: ClassVar[Register[Any]] = CHANNELS

    def build(self) -> Channel:
        """Return the channel, not yet checked against the run; import a plug-in of that name."""
        return section_from(CHANNELS, "channel", self.kind, self.parameters)


class MechanismSpec(Section):
    """A registered mechanism, or the kind "auto", which chooses one.

    `kind` names the mechanism, and the other keys of the table are its parameters.

    The kind "auto" chooses the mechanism with the smallest mean squared error that `sottovoce plan`
    predicts at the client's budget. With `randomness = "system"` it prefers mechanisms that are
    sampled exactly. Its only parameter is `bits`, the most bits per coordinate that the chosen
    mechanism may send; by default there is no limit.
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    kind: str

    @model_validator(mode="before")
    @classmethod
    def _auto(cls, value: Any) -> Any:
        return {"kind": AUTO} if value == AUTO else as_toml_data(value)

    @property
    def parameters(self) -> dict[str, Any]:
        """All keys except `kind`, with their values."""
        return dict(self.model_extra or {})


def _members(value: object) -> int | tuple[str, ...]:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(n, str) for n in value):
        return tuple(value)
    raise ValueError("must be a number of clients, 1 or more, or a list of their names")


class GroupSpec(Section):
    """Clients with their own budget or mechanism; for keys that are left out, the run's hold.

    Attributes:
        clients: A list of names, or a number n: the next n of the clients that no group names.
        epsilon: The budget of each client, over all rounds.
        delta: The failure probability of that budget.
        adjacency: May only repeat that of the run, since a run has one adjacency.
        mechanism: The mechanism of these clients.
    """

    clients: Annotated[
        int | tuple[str, ...], PlainValidator(_members), PlainSerializer(lambda value: value)
    ]
    epsilon: Epsilon | None = None
    delta: Delta | None = None
    adjacency: Annotated[Adjacency | None, Field(strict=False)] = None
    mechanism: MechanismSpec | None = None


_POSITIVE = TypeAdapter(Positive)


def _clip_norm(value: object) -> float | AdaptiveClip:
    if isinstance(value, AdaptiveClip):
        return value
    if value == AUTO:
        return AdaptiveClip()
    if isinstance(value, dict):
        return _table_of(AdaptiveClip, value, AdaptiveClip.kind)
    if isinstance(value, str):
        raise ValueError(f"must be a number above 0, '{AUTO}' or a table, got '{value}'")
    return _POSITIVE.validate_python(value, strict=True)


def _evaluation(value: object) -> PrivateEvaluation | None:
    if value is None or isinstance(value, PrivateEvaluation):
        return value
    if not isinstance(value, dict):
        raise ValueError(f"must be a table, got {value!r}")
    return _table_of(PrivateEvaluation, value)


def _table_of(section: type[T], table: dict[str, Any], kind: str | None = None) -> T:
    """Return the section with the keys of a table, which must have the `kind` if there is one."""
    given = dict(table)
    if kind is not None and given.pop("kind", None) != kind:
        raise ValueError(f"must be a table with kind = '{kind}'")
    for key in given:
        if key not in sections.keys_of(section):
            raise ValueError(str(UnknownNameError.among("key", key, sections.keys_of(section))))
    try:
        return sections.build(section, given)
    except ParameterError as error:
        raise ValueError(str(error)) from None


def _as_key(value: object) -> object:
    """Return a number as it is, and a section as a table."""
    if value is None or isinstance(value, int | float):
        return value
    kind = getattr(value, "kind", None)
    return {**({} if kind is None else {"kind": kind}), **sections.as_table(value)}


class PrivacySpec(Section):
    """What is protected, the clipping, and the budget of each client.

    Attributes:
        level: What is protected: one training "sample", or a "client" with all of its data.
        adjacency: Which data sets count as neighbors: "zero-out" (a contribution is replaced by
            zero) or "replace-one" (by any other).
        clip_norm: The norm to which a sample's gradient, or a client's update, is clipped. "auto",
            or a table with kind = "auto": at client level it follows a private quantile of the
            updates' norms (`AdaptiveClip`); at sample level gradients are normalized.
        epsilon: The budget of each client, which the ledger enforces; None for no budget. The
            mechanism's noise is calibrated so that all rounds together stay within it, unless the
            spec gives the noise. Exception: an algorithm with a published analysis of its own,
            such as 'nbafl', derives its noise from this epsilon, which is then not a budget.
        delta: The failure probability of that budget.
        record_sampling_rate: The probability with which a client uses each of its records in a
            round. The sample is secret, so below 1 a round is charged less; at sample level only.
        minimum_clients: The run halts when fewer clients than this have budget left for a round.
        groups: Clients with their own budgets or mechanisms.
    """

    level: Literal["sample", "client"]
    adjacency: Annotated[Adjacency, Field(strict=False)] = Adjacency.ZERO_OUT
    clip_norm: Annotated[float | AdaptiveClip, PlainValidator(_clip_norm), PlainSerializer(_as_key)]
    epsilon: Epsilon | None = None
    delta: Delta
    record_sampling_rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    minimum_clients: Annotated[int, Field(ge=1)] = 1
    groups: Annotated[tuple[GroupSpec, ...], Field(strict=False)] = ()

    @property
    def message_norm(self) -> float:
        """The largest norm of what is privatized: the clipping norm, or 1 if that is "auto"."""
        return 1.0 if isinstance(self.clip_norm, AdaptiveClip) else self.clip_norm


class EvaluationSpec(Section):
    """What is evaluated in addition to the test data.

    Attributes:
        private: A private estimate of the released model's accuracy or loss on the clients' own
            records (`PrivateEvaluation`); at client level only. None for none.
    """

    private: Annotated[
        PrivateEvaluation | None, PlainValidator(_evaluation), PlainSerializer(_as_key)
    ] = None


class RuntimeSpec(Section):
    """Where and how a run is computed.

    Values of `messages` other than "stored" need `randomness = "seeded"`.

    Attributes:
        backend: "fast": all clients in this process. "flower-sim": Flower's simulation engine, with
            a process for each worker. "flower": a federation of machines, see `sottovoce deploy`.
            "relay": a relay and a collector, see `sottovoce deploy init-relay`.
            Or the name of a plug-in. All compute the same if every client answers, so it is not
            part of the spec's hash.
        messages: "stored": each message is charged in the ledger, sealed, stored and opened, as in
            a deployment. "packed": the same codes, packed and unpacked, with charges counted in
            memory. "none": values drawn from the same laws with torch's generator, in float32; for
            sweeps.
        device: Where models train; "auto" is the GPU if there is one, else the CPU. "cuda" without
            a GPU is refused.
        downlink: The format in which clients receive the model they start from: "float32",
            "float16", "bfloat16", or "int8" with a scale for each 256 coordinates. It costs no
            privacy; the server's own model is not rounded.
        deterministic: Use one thread and train one client at a time, as a site does: the same bits
            on every backend.
        precision: Of the products in training, where an NVIDIA GPU computes them: "float32", or
            "tf32", which lets it round factors to 10 bits and is about twice as fast for large
            networks. CPUs compute in float32. It costs no privacy: the norms that are clipped, and
            the sums of what is clipped, are float32.
    """

    backend: str = "fast"
    messages: Literal["stored", "packed", "none"] = "stored"
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    downlink: DownlinkFormat = "float32"
    deterministic: bool = False
    precision: Precision = "float32"


_LATER_KEYS = {
    "backend": "fast",
    "downlink": "float32",
    "deterministic": False,
    "precision": "float32",
}


class DeploymentSpec(Section):
    """How long a federation of machines waits for its clients; the backend "fast" ignores it.

    Attributes:
        deadline_seconds: A round closes when every client that was asked has answered, or after
            this time. Half of it may pass until enough clients are online. Late replies are
            discarded but stay charged.
        wait_seconds: How long the start waits until all clients are online.
        oversampling: Ask this many times as many clients as the sampling says, and close the round
            when 1/oversampling of them have answered.
        minimum_replies: A round with fewer replies does not change the model. A channel that needs
            more messages asks for more replies.
        idle_rounds: The run stops after this many rounds in a row with fewer replies than
            `minimum_replies`; it can be resumed.
    """

    deadline_seconds: Positive = 600.0
    wait_seconds: Positive = 600.0
    oversampling: Annotated[float, Field(ge=1, le=10)] = 1.0
    minimum_replies: Annotated[int, Field(ge=1)] = 1
    idle_rounds: Annotated[int, Field(ge=1)] = 3


_CHANGES_TOLD = 10
_LONGEST_SHOWN = 60  # Characters of a value.


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
    """The spec of one federated run.

    Attributes:
        name: The name of the run, which can name a folder.
        seed: The seed of the partition, the initial model and the cohorts, and of all noise where
            `randomness` is "seeded".
        rounds: The number of rounds.
        randomness: "system": the noise comes from the operating system. "seeded": it comes from
            `seed`, so that the run can be repeated; for simulation only.
        checkpoint_every: Save a checkpoint after this many rounds, once a minute, and at the end;
            backends other than "fast" save one after every round.
        rotation: Whether updates are rotated at random before they are encoded: "on", "off", or
            "auto" for "on" where a mechanism sends one of finitely many codes for each coordinate
            of an L2 ball.
        data: The data and how they are split among clients.
        features: Transformations of the data.
        model: The model.
        algorithm: The training algorithm.
        privacy: What is protected, the clipping, and the budget.
        mechanism: The mechanism that privatizes updates.
        sampling: Which clients are asked in each round.
        channel: What the server sees of messages.
        runtime: Where and how the run is computed.
        deployment: How long a federation of machines waits.
        evaluation: What is evaluated in addition to the test data.
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
    evaluation: EvaluationSpec = EvaluationSpec()

    def plain(self) -> dict[str, Any]:
        """Return the spec as plain data.

        Returns:
            Nested dictionaries. Newer keys that have their default are left out, so that hashes of
            older specs stay valid.
        """
        plain = self.model_dump(mode="json")
        for key, default in _LATER_KEYS.items():
            if plain["runtime"][key] == default:
                del plain["runtime"][key]
        if self.deployment == DeploymentSpec():
            del plain["deployment"]
        if self.evaluation == EvaluationSpec():
            del plain["evaluation"]
        return plain

    def _computed(self) -> dict[str, Any]:
        """Return the plain data that determine the result, without the backend."""
        plain = self.plain()
        plain["runtime"].pop("backend", None)
        return plain

    def changes_since(self, earlier: Any) -> str:
        """Return which keys differ from the plain data with which a run was started.

        Args:
            earlier: The spec in the header of the run.

        Returns:
            The keys with their old and new values, as a text for a message. At most ten are
            listed, and `runtime.backend` is not compared.
        """
        before, now = dict(_leaves(earlier)), dict(_leaves(self._computed()))
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
        """Sixteen hexadecimal digits that identify what is computed, on whichever backend."""
        plain = self._computed()
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
