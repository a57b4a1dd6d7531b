"""Synthetic photographs: shaded shapes that cover each other, each scene in several views."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.float32]
Floats = NDArray[np.float64]

_LEAVES = 48  # After so many leaves, little is visible of the first ones.
_RADII = 0.06, 0.6  # In units of the image's side.
_ROUND_CHANCE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaves:
    """One leaf for each image: its position, shape and colors."""

    center: Floats  # (count, 2)
    radii: Floats  # (count, 2)
    angle: Floats
    is_round: NDArray[np.bool_]  # An ellipse; otherwise a rectangle.
    color: Floats  # (count, 3)
    shade: Floats  # (count, 3), added from its middle towards one end.

    def repeated(self, times: int) -> "_Leaves":
        return _Leaves(
            center=np.repeat(self.center, times, axis=0),
            radii=np.repeat(self.radii, times, axis=0),
            angle=np.repeat(self.angle, times),
            is_round=np.repeat(self.is_round, times),
            color=np.repeat(self.color, times, axis=0),
            shade=np.repeat(self.shade, times, axis=0),
        )


def draw(num_scenes: int, variants: int, size: int, generator: np.random.Generator) -> Images:
    """Return images (num_scenes x variants, 3, size, size) in [0, 1], scene by scene."""
    scene_color = _around(0.47, 0.12, 0.05, num_scenes, generator)
    x, y = _viewpoints(num_scenes * variants, size, generator)
    ground = np.repeat(scene_color, variants, axis=0)
    images = np.broadcast_to(_per_image(ground), (len(ground), 3, size, size)).astype(np.float32)
    for _ in range(_LEAVES):
        leaves = _one_leaf_each(num_scenes, scene_color, generator).repeated(variants)
        _draw_leaves(leaves, images, x, y)
    return _add_camera_effects(images, generator)


def _around(
    middle: float, stddev: float, color_stddev: float, count: int, generator: np.random.Generator
) -> Floats:
    """Return colors: a common brightness plus a small deviation for each channel."""
    brightness = generator.normal(middle, stddev, size=(count, 1))
    return brightness + generator.normal(0, color_stddev, size=(count, 3))


def _viewpoints(
    count: int, size: int, generator: np.random.Generator
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the coordinates of each image's columns and rows in its scene; half are mirrored."""
    grid = (np.arange(size) + 0.5) / size - 0.5
    zoom = np.exp(generator.normal(0, 0.1, size=(count, 1)))
    mirror = generator.choice([-1.0, 1.0], size=(count, 1))
    shift = generator.normal(0.5, 0.06, size=(2, count, 1))
    x, y = mirror * zoom * grid + shift[0], zoom * grid + shift[1]
    return x.astype(np.float32)[:, None, :], y.astype(np.float32)[:, :, None]


def _one_leaf_each(count: int, scene_color: Floats, generator: np.random.Generator) -> _Leaves:
    smallest, largest = _RADII
    u = generator.random(count)
    # Inverse of the distribution function of a density proportional to r^-3.
    radius = (smallest**-2 - u * (smallest**-2 - largest**-2)) ** -0.5
    elongation = np.exp(generator.normal(0, 0.4, size=count))
    return _Leaves(
        center=generator.uniform(-0.15, 1.15, size=(count, 2)),
        radii=np.stack([radius * elongation, radius / elongation], axis=1),
        angle=generator.uniform(0, np.pi, size=count),
        is_round=generator.random(count) < _ROUND_CHANCE,
        color=scene_color + _around(0.0, 0.22, 0.07, count, generator),
        shade=_around(0.0, 0.1, 0.02, count, generator),
    )


def _draw_leaves(leaves: _Leaves, images: Images, x: NDArray[Any], y: NDArray[Any]) -> None:
    """Draw each leaf over its image; edges are soft over one pixel."""
    dx, dy = x - _per_image(leaves.center[:, 0]), y - _per_image(leaves.center[:, 1])
    cosine, sine = _per_image(np.cos(leaves.angle)), _per_image(np.sin(leaves.angle))
    along = (dx * cosine + dy * sine) / _per_image(leaves.radii[:, 0])
    across = (dy * cosine - dx * sine) / _per_image(leaves.radii[:, 1])
    reach = np.where(
        leaves.is_round[:, None, None],
        np.sqrt(along**2 + across**2),
        np.maximum(np.abs(along), np.abs(across)),
    )
    edge_pixels = _per_image(leaves.radii.min(axis=1) * images.shape[-1])
    cover = np.clip(edge_pixels * (1 - reach) + np.float32(0.5), 0, 1)[:, None]
    shaded = _per_image(leaves.shade) * along[:, None] + _per_image(leaves.color)
    images += cover * (shaded - images)


def _add_camera_effects(images: Images, generator: np.random.Generator) -> Images:
    """Return the images with contrast, brightness, a slight blur and sensor noise."""
    count = len(images)
    contrast = _per_image(np.exp(generator.normal(0, 0.2, size=(count, 1))))
    light = _per_image(_around(0.5, 0.08, 0.03, count, generator))
    images = contrast * (images - np.float32(0.5)) + light
    blur = _per_image(generator.uniform(0, 0.25, size=(count, 1)))
    for axis in (2, 3):
        pad = [(0, 0)] * 4
        pad[axis] = (1, 1)
        wide = np.moveaxis(np.pad(images, pad, mode="edge"), axis, 0)
        sides = np.moveaxis(wide[:-2] + wide[2:], 0, axis)
        images = (1 - 2 * blur) * images + blur * sides
    grain = np.float32(0.02) * generator.standard_normal(images.shape, dtype=np.float32)
    return np.clip(images + grain, 0, 1)


def _per_image(values: Floats) -> NDArray[Any]:
    """Return values as float32 with axes for rows and columns."""
    return values.astype(np.float32)[..., None, None]
