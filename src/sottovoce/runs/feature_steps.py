"""From [[features]] tables to the steps that they describe."""

from collections.abc import Sequence
from typing import assert_never

from sottovoce.learning.features import Flatten, Precondition, Scattering, Step
from sottovoce.runs.features_spec import FeatureSpec, FlattenSpec, PreconditionSpec, ScatteringSpec


def steps_of(specs: Sequence[FeatureSpec]) -> tuple[Step, ...]:
    """The steps, in the order of their tables."""
    return tuple(_step(spec) for spec in specs)


def _step(spec: FeatureSpec) -> Step:
    match spec:
        case ScatteringSpec():
            return Scattering(**spec.model_dump(exclude={"kind"}))
        case PreconditionSpec():
            return Precondition(**spec.model_dump(exclude={"kind"}))
        case FlattenSpec():
            return Flatten()
        case _:
            assert_never(spec)
