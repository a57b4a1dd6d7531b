"""The tables that are open, as whoever is registered under their kind describes them.

From [[features]] tables to the steps that they describe.
"""

from collections.abc import Sequence
from typing import TypeVar

from sottovoce.core import sections
from sottovoce.learning.features import FEATURES, Step, step_of
from sottovoce.protocol.channels.channel import CHANNELS
from sottovoce.runs.section import FeatureSpec, OpenSection, to_model
from sottovoce.runs.spec import RunSpec


def steps_of(specs: Sequence[FeatureSpec]) -> tuple[Step, ...]:
    """The steps, in the order of their tables."""
    return tuple(step_of(spec.kind, spec.parameters) for spec in specs)


T = TypeVar("T", bound=OpenSection)


def with_every_key(spec: RunSpec) -> RunSpec:
    """Return the spec with the defaults of plug-ins written out, for its hash holds them.

    Raises:
        UnknownNameError: Nobody has registered anything of that kind, or it has no such key.
    """
    features = tuple(
        _written(table, step)
        for table, step in zip(spec.features, steps_of(spec.features), strict=True)
    )
    partition = _written(spec.data.partition, spec.data.partition.opened())
    return spec.model_copy(
        update={
            "data": spec.data.model_copy(update={"partition": partition}),
            "model": _written(spec.model, to_model(spec.model)),
            "features": features,
            "sampling": _written(spec.sampling, spec.sampling.opened()),
            "channel": _written(spec.channel, spec.channel.opened()),
        }
    )


def _written(table: T, section: object) -> T:
    """Return the table with every key of its section."""
    return type(table).model_validate({"kind": table.kind, **sections.as_table(section)})


def channel_words(spec: RunSpec) -> list[str]:
    """Return the plug-in on whose word rests what is seen of messages; its name, if it is one."""
    word = CHANNELS.plug_in(spec.channel.kind)
    return [] if word is None else [word]


def feature_words(spec: RunSpec) -> list[str]:
    """Return the plug-ins whose word a run's privacy rests on: that a step learns from no record.

    Models need none: gradients are taken sample by sample, and clipped, whatever the module does.
    """
    words = (FEATURES.plug_in(table.kind) for table in spec.features)
    return [word for word in words if word is not None]
