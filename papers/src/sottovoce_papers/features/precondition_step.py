"""The feature step "precondition": few coordinates, learned from public images."""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.features import (
    Array,
    FeatureContext,
    Features,
    Part,
    Transform,
    digest_of,
    key_of,
    register_feature,
)
from sottovoce_papers.features import public_images, synthetic

if TYPE_CHECKING:
    from sottovoce_papers.features.preconditioning import PublicGeometry


def check_scale(*, exponent: float, bias: float) -> None:
    """Check the parameters of a preconditioner."""
    if not 0 <= parameter_rules.finite("exponent", exponent) <= 2:
        raise ParameterError(
            f"exponent must lie between 0 and 2, got {exponent!r}; use 0 to keep the public "
            "variances, 1 to equalize them"
        )
    if not 0 <= parameter_rules.finite("bias", bias) <= 1e3:
        raise ParameterError(
            f"bias must lie between 0 and 1000, got {bias!r}; features have norm 1, so a bias near "
            "0.1 is usual"
        )


@register_feature(
    "precondition", summary="few, centered and rescaled coordinates, from public images"
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Precondition:
    """A few centered and rescaled coordinates, learned from public images.

    `images` are "strokes", "dead_leaves" or the path of an .npz file; `count` of them are used.
    With `variants` of 2 or more, synthetic images show each object that many times, and the
    coordinates are those along which objects differ most relative to their variants; with 1, they
    are the principal ones. The result is a float32 array mapped from disk.
    """

    images: str
    count: int
    components: int
    variants: int = 1
    exponent: float = 0.5
    bias: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        public_images.check_source(parameter_rules.text("images", self.images))
        parameter_rules.integer("count", self.count, low=2, high=synthetic.MAX_IMAGES)
        synthetic.check_variants(self.count, self.variants)
        if self.variants > 1 and public_images.is_file(self.images):
            raise ParameterError(
                f"variants must be 1 with images from a file, got {self.variants}; only synthetic "
                "images are known to show the same object"
            )
        parameter_rules.integer(
            "components",
            self.components,
            low=1,
            high=max(1, self.count // self.variants - 1),
            remedy="use more public images",
        )
        check_scale(exponent=self.exponent, bias=self.bias)
        parameter_rules.integer("seed", self.seed, low=0, high=2**128 - 1)

    def files(self) -> tuple[str, ...]:
        """Return the file of public images, if they come from one."""
        return (self.images,) if public_images.is_file(self.images) else ()

    def prepare(self, setting: FeatureContext) -> Transform:
        """Read the public images, refuse private ones among them, and return the transform."""
        work = _Preconditioning(self, setting, _PublicSource.named(self, setting.dataset))
        return work.apply


@dataclass(frozen=True, slots=True, kw_only=True)
class _PublicSource:
    """Public images: an identity for cache keys, and a function that returns them when needed."""

    identity: str
    images: Callable[[], Array]

    @classmethod
    def named(cls, step: Precondition, dataset: Dataset) -> "_PublicSource":
        """Return the source that the step names; refuse a file that holds private images."""
        sample_shape = dataset.train_features.shape[1:]
        if not public_images.is_file(step.images):
            return cls(
                identity=step.images,
                images=lambda: public_images.drawn(
                    step.images, step.count, sample_shape, step.seed, variants=step.variants
                ),
            )
        path = Path(step.images)
        everything = public_images.read(path, sample_shape)
        private = {"training": dataset.train_features, "test": dataset.test_features}
        for whose, values in private.items():
            public_images.refuse_overlap(everything, values, whose=whose, path=path)
        images = public_images.chosen(everything, step.count, step.seed, path)
        return cls(identity=digest_of(images), images=lambda: images)


class _Preconditioning:
    """The step applied to one data set."""

    def __init__(self, step: Precondition, setting: FeatureContext, public: _PublicSource) -> None:
        self._step, self._setting, self._public = step, setting, public
        self._geometry = functools.cache(self._learn)  # Learned once for training and test data.

    def apply(self, part: Part, features: Features) -> Features:
        from sottovoce_papers.features.preconditioning import Preconditioner

        step, setting = self._step, self._setting
        count, *shape_of_one = features.values.shape
        num_features = math.prod(shape_of_one)

        def fill(out: Array) -> None:
            preconditioner = Preconditioner(
                geometry=self._geometry(num_features), exponent=step.exponent, bias=step.bias
            )
            for rows, coordinates in preconditioner.chunks(features.values):
                out[rows] = coordinates
                setting.report(part, rows.stop, count)

        # The digest of the features covers the earlier steps, which public images pass as well.
        identity = self._public.identity
        key = key_of("precondition", dataclasses.asdict(step), identity, features.digest)
        shape = (count, step.components + 1)
        return Features(values=setting.cache.array(key, shape, np.float32, fill), digest=key)

    def _learn(self, num_features: int) -> "PublicGeometry":
        """Return the geometry, cached on disk with more directions than this step uses."""
        from sottovoce_papers.features import preconditioning

        step, setting = self._step, self._setting
        size = step.components
        if step.variants > 1:
            runs = step.count // step.variants
            size = preconditioning.num_principal(step.components, runs, num_features)
            parameter_rules.integer(
                "components", step.components, low=1, high=size, remedy="use more public images"
            )

        def fill(out: Array) -> None:
            geometry = self._learn_geometry(size)
            out[0], out[1, :size], out[2:] = (
                geometry.mean,
                geometry.eigenvalues,
                geometry.directions.T,
            )

        identity = [
            self._public.identity,
            step.count,
            step.variants,
            step.seed,
            setting.number,
            size,
        ]
        sample_shape = setting.dataset.train_features.shape[1:]
        key = key_of("geometry", identity, list(setting.earlier), list(sample_shape))
        # There are no more directions than features, so the eigenvalues fit into a row.
        kept = setting.cache.array(key, (size + 2, num_features), np.float32, fill)
        return preconditioning.PublicGeometry(
            mean=kept[0], eigenvalues=kept[1, :size].astype(np.float64), directions=kept[2:].T
        ).leading(step.components)

    def _learn_geometry(self, size: int) -> "PublicGeometry":
        """Learn the geometry from public images that went through the earlier steps."""
        from sottovoce_papers.features import preconditioning

        step, setting = self._step, self._setting
        public = setting.apply_earlier(Features.of(self._public.images()))
        setting.report("public", 0, step.count)
        generator = np.random.default_rng([step.seed, setting.number])
        if step.variants == 1:
            geometry = preconditioning.learn(public.values, size, generator)
        else:
            geometry = preconditioning.learn_discriminants(
                public.values, size, step.variants, generator
            )
        setting.report("public", step.count, step.count)
        return geometry
