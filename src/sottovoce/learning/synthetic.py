"""Public images that are nobody's: drawn at random, to learn the geometry of features from.

`strokes` look like handwritten glyphs, `dead_leaves` like crowded colour photographs. Neither was
fitted to a dataset. Pixels lie in [-1/2, 1/2], as those of the datasets do.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce import parameters
from sottovoce.errors import UnknownNameError

Images = NDArray[np.float32]
Floats = NDArray[np.float64]

MAX_IMAGES = 10**7
_CHUNK = 200  # images drawn at once: bounds the memory, and is part of what a seed gives
_MOST_STROKES = 3
_LIFTED, _SMOOTH, _NUM_STROKES = 0.25, 0.5, (0.2, 0.4, 0.4)
_ASPECT, _SLANT, _SOFT, _HALF_WIDTH = (0.25, 1.0), (0.15, 0.2), 1.5, (0.9, 2.0)
_POINTS = 48  # along a stroke: less than a pen's width apart
_LEAVES = 64  # after so many leaves little is seen of the first ones


def strokes(count: int, size: int, generator: np.random.Generator) -> Images:
    """Glyphs of one to three pen strokes, bright on dark: (count, 1, size, size).

    A stroke is a cubic Bezier curve that turns one way; it mostly goes on where the last one ended.
    As in MNIST, a glyph fills 20/28 of the image and its centre of mass is the image's centre.
    """
    images = np.empty((count, 1, size, size), dtype=np.float32)
    for part in _chunks(count, size):
        paths = _centred(_glyphs(part.stop - part.start, generator), generator)
        images[part, 0] = _inked(paths, size, generator) - 0.5
    return images


def dead_leaves(count: int, size: int, generator: np.random.Generator) -> Images:
    """Opaque shaded shapes fallen onto each other, in colour: (count, 3, size, size).

    Radii follow a power law, r^-3, which makes statistics independent of scale as in photographs.

    Reference: Lee, Mumford and Huang 2001, section 4; for learning, Baradad et al. 2021.
    """
    images = np.empty((count, 3, size, size), dtype=np.float32)
    for part in _chunks(count, size):
        images[part] = _photographed(_fallen(part.stop - part.start, size, generator), generator)
    return images


Drawing = Callable[[int, int, np.random.Generator], Images]
DRAWINGS: dict[str, Drawing] = {"strokes": strokes, "dead_leaves": dead_leaves}


def draw(name: str, count: int, size: int, generator: np.random.Generator) -> Images:
    """`count` images of the kind called `name`."""
    if name not in DRAWINGS:
        raise UnknownNameError.among("kind of synthetic images", name, DRAWINGS)
    return DRAWINGS[name](count, size, generator)


def _chunks(count: int, size: int) -> Iterator[slice]:
    parameters.integer("count", count, low=1, high=MAX_IMAGES)
    parameters.integer("size", size, low=4, high=1024)
    return (slice(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK))


def _glyphs(count: int, generator: np.random.Generator) -> Floats:
    """Points (x, y) along the strokes of each glyph: (count, points, 2), in arbitrary units."""
    starts = np.zeros((count, 2))
    heading = generator.uniform(0, 2 * np.pi, size=count)
    turn = generator.normal(0, 1.0, size=count)
    curves = []
    for _ in range(_MOST_STROKES):
        control = _control_points(starts, heading, turn, generator)
        curves.append(_bezier(control))
        ends, before = control[:, 3], control[:, 2]
        lifted = generator.random(count) < _LIFTED
        jump = generator.normal(0, 0.7, size=(count, 2))
        starts = np.where(lifted[:, None], curves[0].mean(axis=1) + jump, ends)
        smooth = generator.random(count) < _SMOOTH  # goes on turning as it did
        fresh_turn = generator.normal(0, 1.0, size=count)
        last_heading = np.arctan2(*(ends - before)[:, ::-1].T)
        corner = np.where(lifted, np.pi, 1.0) * generator.normal(0, 1, size=count)
        smooth &= ~lifted
        heading = last_heading + np.where(smooth, turn, corner)
        turn = np.where(smooth, turn, fresh_turn)
    drawn = generator.choice(_MOST_STROKES, p=_NUM_STROKES, size=count)
    for number in range(1, _MOST_STROKES):
        absent = drawn < number
        curves[number][absent] = curves[0][absent]  # drawn twice: not to be seen
    return np.concatenate(curves, axis=1)


def _control_points(
    starts: Floats, heading: Floats, turn: Floats, generator: np.random.Generator
) -> Floats:
    """Four points a curve, (count, 4, 2): three legs, each turned from the last by one angle."""
    count = len(starts)
    points = [starts]
    for leg in range(3):
        angle = heading + leg * turn + generator.normal(0, 0.2, size=count)
        length = generator.uniform(0.4, 1.0, size=count)
        step = np.stack([length * np.cos(angle), length * np.sin(angle)], axis=1)
        points.append(points[-1] + step)
    return np.stack(points, axis=1)


def _bezier(control: Floats) -> Floats:
    """Points along cubic Bezier curves: (count, points, 2)."""
    t = np.linspace(0, 1, _POINTS)[:, None]
    weights = np.concatenate(
        [(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], axis=1
    )
    return np.einsum("pc,ncd->npd", weights, control)


def _centred(points: Floats, generator: np.random.Generator) -> Floats:
    """Glyphs stretched and slanted into a box of height 20/28, their mean at (1/2, 1/2)."""
    count = len(points)
    extent = np.maximum(np.ptp(points, axis=1), 1e-9)
    narrowness = generator.uniform(*_ASPECT, size=count)
    target = np.stack([narrowness, np.ones(count)], axis=1)
    shaped = points * (target / extent)[:, None, :]
    shaped[:, :, 0] -= generator.normal(*_SLANT, size=(count, 1)) * shaped[:, :, 1]
    fitted = shaped * (20 / 28 / np.ptp(shaped, axis=1).max(axis=1))[:, None, None]
    return np.clip(fitted - fitted.mean(axis=1, keepdims=True) + 0.5, 0, 1)


def _inked(points: Floats, size: int, generator: np.random.Generator) -> Floats:
    """Ink in [0, 1], by the distance of each pixel from the path, softened over a pixel."""
    grid = np.arange(size) + 0.5
    across = np.square(grid[None, :, None] - size * points[:, None, :, 0]).astype(np.float32)
    down = np.square(grid[None, :, None] - size * points[:, None, :, 1]).astype(np.float32)
    nearest = np.stack([(down[:, row, None] + across).min(axis=2) for row in range(size)], axis=1)
    half_width = size / 28 * generator.uniform(*_HALF_WIDTH, size=len(points))
    ink: Floats = np.clip((half_width[:, None, None] - np.sqrt(nearest)) / _SOFT + 0.5, 0, 1)
    return ink


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaves:
    """One leaf for each image: where it lies, its shape and its colours."""

    centre: Floats  # (count, 2), in pixels
    radii: Floats  # (count, 2), in pixels
    angle: Floats
    roundness: Floats  # the exponent of a superellipse: 2 is an ellipse, large a rectangle
    colour: Floats  # (count, 3)
    shade: Floats  # (count, 3), added from one end to the other


def _one_leaf_each(count: int, size: int, mood: Floats, generator: np.random.Generator) -> _Leaves:
    smallest, largest = 0.04 * size, 0.6 * size
    u = generator.random(count)
    # Inverse of the distribution function of a density proportional to r^-3.
    radius = (smallest**-2 - u * (smallest**-2 - largest**-2)) ** -0.5
    elongation = np.exp(generator.normal(0, 0.4, size=count))
    brightness = generator.normal(0, 0.22, size=(count, 1))
    return _Leaves(
        centre=generator.uniform(0, size, size=(count, 2)),
        radii=np.stack([radius * elongation, radius / elongation], axis=1),
        angle=generator.uniform(0, np.pi, size=count),
        roundness=generator.choice([2.0, 8.0], p=[0.7, 0.3], size=count),
        colour=mood + brightness + generator.normal(0, 0.07, size=(count, 3)),
        shade=generator.normal(0, 0.1, size=(count, 1)) + generator.normal(0, 0.02, (count, 3)),
    )


def _fallen(count: int, size: int, generator: np.random.Generator) -> Floats:
    """Images (count, 3, size, size) in about [0, 1]: leaves over leaves over a plain ground."""
    mood = generator.normal(0.47, 0.12, size=(count, 1)) + generator.normal(0, 0.05, (count, 3))
    images = np.broadcast_to(mood[:, :, None, None], (count, 3, size, size)).copy()
    for _ in range(_LEAVES):
        leaves = _one_leaf_each(count, size, mood, generator)
        along, across = _coordinates(leaves, size)
        power = leaves.roundness[:, None, None]
        reach = (np.abs(along) ** power + np.abs(across) ** power) ** (1 / power)
        edge = leaves.radii.min(axis=1)[:, None, None]
        cover = np.clip(edge * (1 - reach) + 0.5, 0, 1)[:, None]
        shade = leaves.shade[:, :, None, None] * np.clip(along, -1, 1)[:, None]
        images += cover * (leaves.colour[:, :, None, None] + shade - images)
    return images


def _coordinates(leaves: _Leaves, size: int) -> tuple[Floats, Floats]:
    """Each pixel along and across each leaf, in units of its radii: (count, size, size)."""
    grid = np.arange(size) + 0.5
    x = (grid[None, None, :] - leaves.centre[:, 0, None, None])
    y = (grid[None, :, None] - leaves.centre[:, 1, None, None])
    cosine, sine = (f(leaves.angle)[:, None, None] for f in (np.cos, np.sin))
    along = (x * cosine + y * sine) / leaves.radii[:, 0, None, None]
    across = (y * cosine - x * sine) / leaves.radii[:, 1, None, None]
    return along, across


def _photographed(images: Floats, generator: np.random.Generator) -> Floats:
    """Slightly out of focus, with the grain of a sensor, and in [-1/2, 1/2]."""
    blur = generator.uniform(0, 0.25, size=(len(images), 1, 1, 1))
    for axis in (2, 3):
        pad = [(0, 0)] * 4
        pad[axis] = (1, 1)
        wide = np.moveaxis(np.pad(images, pad, mode="edge"), axis, 0)
        beside = np.moveaxis(wide[:-2] + wide[2:], 0, axis)
        images = (1 - 2 * blur) * images + blur * beside
    grain = generator.normal(0, 0.02, size=images.shape)
    return np.clip(images + grain - 0.5, -0.5, 0.5)
