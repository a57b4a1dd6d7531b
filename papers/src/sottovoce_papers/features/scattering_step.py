"""The feature step "scattering": scattering coefficients of images."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, assert_never

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.learning.features import (
    Array,
    FeatureContext,
    Features,
    Part,
    Transform,
    key_of,
    register_feature,
    release_pages,
    step_identity,
)
from sottovoce_papers.features import views
from sottovoce_papers.features.views import View

if TYPE_CHECKING:
    import torch

    from sottovoce_papers.features.scattering import Scattering2d

CHUNK_SAMPLES = 256  # Transformed at a time; bounds the memory, and sets the pace of reports.


@register_feature("scattering", summary="scattering coefficients of images, normalized in groups")
@dataclass(frozen=True, slots=True, kw_only=True)
class Scattering:
    """Scattering coefficients of second order, normalized in groups of channels.

    The interpolated MVU experiments use 8 angles and 27 groups, those of MVU 11 angles and 6
    groups. Each of the `views` adds its own channels: the coefficients ("plain"), their logarithms
    ("log"), or those of a color image in opponent colors ("opponent"). The result is a float16
    array mapped from disk.
    """

    LEFT_OUT_AS_DEFAULT: ClassVar[tuple[str, ...]] = ("views",)
    scales: int = 2
    angles: int = 8
    groups: int = 27
    views: tuple[View, ...] = views.ONLY_PLAIN

    def __post_init__(self) -> None:
        parameter_rules.integer("scales", self.scales, low=1, high=8)
        parameter_rules.integer("angles", self.angles, low=1, high=64)
        parameter_rules.integer("groups", self.groups, low=1, high=2**20)
        views.check(self.views)

    def prepare(self, setting: FeatureContext) -> Transform:
        """Return the transform, which computes a part of the data or finds it in the cache."""
        return lambda part, features: self._scattered(setting, part, features)

    def _scattered(self, setting: FeatureContext, part: Part, features: Features) -> Features:
        import torch

        from sottovoce_papers.features.scattering import Geometry, Scattering2d

        images = features.values
        if images.ndim != 4:
            raise ParameterError(
                "scattering takes images (samples, channels, height, width), got shape "
                f"{images.shape}; make it the first step, on a dataset of images"
            )
        count, channels, height, width = images.shape
        if "opponent" in self.views and channels != 3:
            raise ParameterError(
                f"the view 'opponent' takes images of 3 colors, got {channels}; leave it out"
            )
        geometry = Geometry(height=height, width=width, scales=self.scales, angles=self.angles)
        transform = Scattering2d(geometry, setting.device)

        def fill(out: Array) -> None:
            for start in range(0, count, CHUNK_SAMPLES):
                rows = slice(start, min(start + CHUNK_SAMPLES, count))
                seen = _viewed(self, transform, torch.from_numpy(images[rows].astype(np.float32)))
                out[rows] = seen.numpy()
                release_pages(out)
                setting.report(part, rows.stop, count)

        key = key_of("scattering", step_identity(self), features.digest)
        shape = (count, len(self.views) * channels * geometry.num_channels, *geometry.output)
        return Features(values=setting.cache.array(key, shape, np.float16, fill), digest=key)


def _viewed(step: Scattering, transform: "Scattering2d", images: "torch.Tensor") -> "torch.Tensor":
    """Return the channels of each view, normalized separately, one view after the other."""
    import torch

    from sottovoce_papers.features.scattering import group_normalize, logarithms, opponent_colors

    plain = transform(images) if {"plain", "log"} & set(step.views) else None
    found = []
    for view in step.views:
        match view:
            case "plain":
                assert plain is not None
                maps = plain
            case "log":
                assert plain is not None
                maps = logarithms(plain)
            case "opponent":
                maps = transform(opponent_colors(images))
            case _:
                assert_never(view)
        found.append(group_normalize(maps.flatten(start_dim=1, end_dim=2), step.groups))
    return torch.cat(found, dim=1)
