"""The tables that are open, as whoever is registered under their kind describes them."""

from sottovoce.core import sections
from sottovoce.learning.features import FEATURES
from sottovoce.protocol.channels.channel import CHANNELS
from sottovoce.runs.feature_steps import steps_of
from sottovoce.runs.features_spec import FeatureSpec
from sottovoce.runs.model_spec import ModelSpec, to_model
from sottovoce.runs.spec import ChannelSpec, RunSpec, SamplingSpec


def with_every_key(spec: RunSpec) -> RunSpec:
    """Return the spec with the defaults of plug-ins written out, for its hash holds them.

    Raises:
        UnknownNameError: Nobody has registered anything of that kind, or it has no such key.
    """
    model = {"kind": spec.model.kind, **sections.as_table(to_model(spec.model))}
    features = tuple(
        FeatureSpec.model_validate({"kind": table.kind, **sections.as_table(step)})
        for table, step in zip(spec.features, steps_of(spec.features), strict=True)
    )
    sampling = {"kind": spec.sampling.kind, **sections.as_table(spec.sampling.opened())}
    channel = {"kind": spec.channel.kind, **sections.as_table(spec.channel.opened())}
    return spec.model_copy(
        update={
            "model": ModelSpec.model_validate(model),
            "features": features,
            "sampling": SamplingSpec.model_validate(sampling),
            "channel": ChannelSpec.model_validate(channel),
        }
    )


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
