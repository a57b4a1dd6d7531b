"""What a spec may say about features: [[features]] tables, applied in the order given."""

from typing import Any, ClassVar

from sottovoce.core.registry import Register
from sottovoce.learning.features import FEATURES
from sottovoce.runs.section import OpenSection


class FeatureSpec(OpenSection):
    """A registered step; its own keys stand beside `kind`."""

    register: ClassVar[Register[Any]] = FEATURES
