"""Features as a list of fixed steps between a dataset and a model.

Each step turns a sample into features by itself; what a step learns, it learns from public images
only. So no step spends privacy. Results are cached on disk, by what they were made of.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_never

import numpy as np
import torch
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError
from sottovoce.learning import preconditioning, public_images, synthetic, views
from sottovoce.learning.datasets import Dataset
from sottovoce.learning.feature_cache import FeatureCache, digest_of, key_of, let_go
from sottovoce.learning.preconditioning import Preconditioner, PublicGeometry
from sottovoce.learning.scattering import (
    Geometry,
    Scattering2d,
    group_normalise,
    logarithms,
    opponent_colours,
)
from sottovoce.learning.views import View

Array = NDArray[Any]
Part = Literal["train", "test", "public"]

CHUNK_SAMPLES = 256  # transformed at once: bounds the memory, and paces the progress reports


@dataclass(frozen=True, slots=True, kw_only=True)
class Scattering:
    """Scattering coefficients of second order, normalised in groups of channels.

    The interpolated MVU experiments use 8 angles and 27 groups, those of MVU 11 angles and 6.
    Each of the `views` brings its own channels: the coefficients ("plain"), their logarithms
    ("log"), or those of a colour image in opponent colours ("opponent").
    """

    scales: int = 2
    angles: int = 8
    groups: int = 27
    views: tuple[View, ...] = views.ONLY_PLAIN

    def __post_init__(self) -> None:
        parameter_rules.integer("scales", self.scales, low=1, high=8)
        parameter_rules.integer("angles", self.angles, low=1, high=64)
        parameter_rules.integer("groups", self.groups, low=1, high=2**20)
        views.check(self.views)


@dataclass(frozen=True, slots=True, kw_only=True)
class Precondition:
    """Few, centred and rescaled coordinates, learned from public images.

    `images` are "strokes", "dead_leaves" or the path of an .npz file; `count` of them are used.
    With `variants` of 2 or more, synthetic images show each thing so many times, and coordinates
    are those along which things differ beside their variants; with 1, the principal ones.
    """

    images: str
    count: int
    components: int
    variants: int = 1
    exponent: float = 0.5
    bias: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        public_images.check_source(self.images)
        parameter_rules.integer("count", self.count, low=2, high=synthetic.MAX_IMAGES)
        synthetic.check_variants(self.count, self.variants)
        if self.variants > 1 and public_images.is_file(self.images):
            raise ParameterError(
                f"variants must be 1 with images from a file, got {self.variants}; which of them "
                "show the same thing is known of synthetic images only"
            )
        parameter_rules.integer(
            "components",
            self.components,
            low=1,
            high=max(1, self.count // self.variants - 1),
            remedy="use more public images",
        )
        preconditioning.check(exponent=self.exponent, bias=self.bias)
        parameter_rules.integer("seed", self.seed, low=0, high=2**128 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flatten:
    """One row of values a sample."""


Step = Scattering | Precondition | Flatten


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgress:
    """How far a step is with one part of the data."""

    step: Step
    part: Part
    samples_done: int
    samples_total: int


OnStep = Callable[[StepProgress], None]


def _in_silence(_: StepProgress) -> None:
    """Tell no one."""


def apply(
    steps: Sequence[Step],
    dataset: Dataset,
    cache_dir: Path,
    on_step: OnStep = _in_silence,
    *,
    device: str = "cpu",
) -> Dataset:
    """The dataset with its features taken through the steps.

    Scattering gives float16 arrays mapped from disk, preconditioning float32 ones. What is in the
    cache is not made again; `on_step` hears only of what is.
    """
    if not steps:
        return dataset
    pipeline = _Pipeline(tuple(steps), dataset, FeatureCache(cache_dir), on_step, device)
    train = pipeline.run("train", _Features.of(dataset.train_features))
    test = pipeline.run("test", _Features.of(dataset.test_features))
    return dataclasses.replace(dataset, train_features=train.values, test_features=test.values)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Features:
    """Values, and a digest that stands for them."""

    values: Array
    digest: str

    @classmethod
    def of(cls, values: Array) -> "_Features":
        return cls(values=values, digest=digest_of(values))


class _Pipeline:
    """The steps, with what they need beside a sample."""

    def __init__(
        self,
        steps: tuple[Step, ...],
        dataset: Dataset,
        cache: FeatureCache,
        on_step: OnStep,
        device: str,
    ) -> None:
        self._steps, self._cache, self._on_step, self._device = steps, cache, on_step, device
        self._sample_shape = dataset.train_features.shape[1:]
        self._public = {
            number: _PublicSource.named(step, dataset)
            for number, step in enumerate(steps)
            if isinstance(step, Precondition)
        }
        self._geometry = functools.cache(self._learn)  # once for training and test data

    def run(self, part: Part, features: _Features, num_steps: int | None = None) -> _Features:
        for number, step in enumerate(self._steps[:num_steps]):
            match step:
                case Scattering():
                    features = self._scattered(step, part, features)
                case Precondition():
                    features = self._preconditioned(step, number, part, features)
                case Flatten():
                    values = features.values
                    rows = values.reshape(len(values), math.prod(values.shape[1:]))
                    features = dataclasses.replace(features, values=rows)
                case _:
                    assert_never(step)
        return features

    def _scattered(self, step: Scattering, part: Part, features: _Features) -> _Features:
        images = features.values
        if images.ndim != 4:
            raise ParameterError(
                "scattering takes images (samples, channels, height, width), got shape "
                f"{images.shape}; make it the first step, on a dataset of images"
            )
        count, channels, height, width = images.shape
        if "opponent" in step.views and channels != 3:
            raise ParameterError(
                f"the view 'opponent' takes images of 3 colours, got {channels}; leave it out"
            )
        geometry = Geometry(height=height, width=width, scales=step.scales, angles=step.angles)
        transform = Scattering2d(geometry, self._device)

        def fill(out: Array) -> None:
            for start in range(0, count, CHUNK_SAMPLES):
                rows = slice(start, min(start + CHUNK_SAMPLES, count))
                seen = _viewed(step, transform, torch.from_numpy(images[rows].astype(np.float32)))
                out[rows] = seen.numpy()
                let_go(out)
                self._report(step, part, rows.stop, count)

        key = key_of("scattering", _identity(step), features.digest)
        shape = (count, len(step.views) * channels * geometry.num_channels, *geometry.output)
        return _Features(values=self._cache.array(key, shape, np.float16, fill), digest=key)

    def _preconditioned(
        self, step: Precondition, number: int, part: Part, features: _Features
    ) -> _Features:
        count, *shape_of_one = features.values.shape
        num_features = math.prod(shape_of_one)

        def fill(out: Array) -> None:
            preconditioner = Preconditioner(
                geometry=self._geometry(number, num_features),
                exponent=step.exponent,
                bias=step.bias,
            )
            for rows, coordinates in preconditioner.chunks(features.values):
                out[rows] = coordinates
                self._report(step, part, rows.stop, count)

        # The earlier steps, through which public images go too, are in the features' digest.
        identity = self._public[number].identity
        key = key_of("precondition", dataclasses.asdict(step), identity, features.digest)
        shape = (count, step.components + 1)
        return _Features(values=self._cache.array(key, shape, np.float32, fill), digest=key)

    def _learn(self, number: int, num_features: int) -> PublicGeometry:
        """Kept on disk with more directions than a step uses: the next may use more of them."""
        step = self._steps[number]
        assert isinstance(step, Precondition)
        size = step.components
        if step.variants > 1:
            runs = step.count // step.variants
            size = preconditioning.num_principal(step.components, runs, num_features)
            parameter_rules.integer(
                "components", step.components, low=1, high=size, remedy="use more public images"
            )

        def fill(out: Array) -> None:
            geometry = self._learned(step, number, size)
            out[0], out[1, :size], out[2:] = (
                geometry.mean,
                geometry.eigenvalues,
                geometry.directions.T,
            )

        identity = [
            self._public[number].identity,
            step.count,
            step.variants,
            step.seed,
            number,
            size,
        ]
        earlier = [[type(one).__name__, _identity(one)] for one in self._steps[:number]]
        key = key_of("geometry", identity, earlier, list(self._sample_shape))
        # No more directions than features: eigenvalues fit into a row.
        kept = self._cache.array(key, (size + 2, num_features), np.float32, fill)
        return PublicGeometry(
            mean=kept[0], eigenvalues=kept[1, :size].astype(np.float64), directions=kept[2:].T
        ).leading(step.components)

    def _learned(self, step: Precondition, number: int, size: int) -> PublicGeometry:
        public = self.run("public", _Features.of(self._public[number].images()), number)
        self._report(step, "public", 0, step.count)
        generator = np.random.default_rng([step.seed, number])
        if step.variants == 1:
            geometry = preconditioning.learn(public.values, size, generator)
        else:
            geometry = preconditioning.learn_discriminants(
                public.values, size, step.variants, generator
            )
        self._report(step, "public", step.count, step.count)
        return geometry

    def _report(self, step: Step, part: Part, done: int, total: int) -> None:
        self._on_step(StepProgress(step=step, part=part, samples_done=done, samples_total=total))


def _viewed(step: Scattering, transform: Scattering2d, images: torch.Tensor) -> torch.Tensor:
    """The channels of each view, normalised by themselves, one view after the other."""
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
                maps = transform(opponent_colours(images))
            case _:
                assert_never(view)
        found.append(group_normalise(maps.flatten(start_dim=1, end_dim=2), step.groups))
    return torch.cat(found, dim=1)


def _identity(step: Step) -> dict[str, Any]:
    """What stands for a step in keys; without its views where they are what always was there."""
    identity = dataclasses.asdict(step)
    if isinstance(step, Scattering) and step.views == views.ONLY_PLAIN:
        del identity["views"]
    return identity


@dataclass(frozen=True, slots=True, kw_only=True)
class _PublicSource:
    """Public images: what stands for them, and a way to have them if they are needed."""

    identity: str
    images: Callable[[], Array]

    @classmethod
    def named(cls, step: Precondition, dataset: Dataset) -> "_PublicSource":
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
