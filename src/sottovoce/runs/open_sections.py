"""The tables of models and features as whoever is registered under their kind describes them."""

from sottovoce.core import sections
from sottovoce.learning.features import FEATURES
from sottovoce.runs.feature_steps import steps_of
from sottovoce.runs.features_spec import FeatureSpec
from sottovoce.runs.model_spec import ModelSpec, to_model
from sottovoce.runs.spec import RunSpec


def with_every_key(spec: RunSpec) -> RunSpec:
    """Return the spec with the defaults of plug-ins written out, for its hash holds them.

    Raises:
        UnknownNameError: Nobody has registered a model or a step of that kind, or it has no such
            key.
    """
    model = {"kind": spec.model.kind, **sections.as_table(to_model(spec.model))}
    features = tuple(
        FeatureSpec.model_validate({"kind": table.kind, **sections.as_table(step)})
        for table, step in zip(spec.features, steps_of(spec.features), strict=True)
    )
    return spec.model_copy(update={"model": ModelSpec.model_validate(model), "features": features})


def feature_words(spec: RunSpec) -> list[str]:
    """Return the plug-ins whose word a run's privacy rests on: that a step learns from no record.

    Models need none: gradients are taken sample by sample, and clipped, whatever the module does.
    """
    words = (FEATURES.plug_in(table.kind) for table in spec.features)
    return [word for word in words if word is not None]
