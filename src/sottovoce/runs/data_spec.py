"""The section `[data]` of a spec: which data, how much of it, and how it is spread over clients."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from sottovoce.core.registry import Register
from sottovoce.core.sections import section_from
from sottovoce.learning.datasets import CsvOptions
from sottovoce.learning.partition import PARTITIONS, Partition
from sottovoce.runs.section import OpenSection, Section

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
