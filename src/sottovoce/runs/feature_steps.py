"""From [[features]] tables to the steps that they describe."""

from collections.abc import Sequence

from sottovoce.learning.features import Step, step_of
from sottovoce.runs.features_spec import FeatureSpec


def steps_of(specs: Sequence[FeatureSpec]) -> tuple[Step, ...]:
    """The steps, in the order of their tables."""
    return tuple(step_of(spec.kind, spec.parameters) for spec in specs)
