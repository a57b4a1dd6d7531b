"""Glyphs that nobody wrote: random pen strokes, each glyph in several hands."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_MOST_STROKES = 3
_NUM_STROKES_CHANCES = (0.1, 0.4, 0.5)
_POINTS = 72  # along a stroke: less than a pen's width apart
_LIFTED_CHANCE = 0.2  # the pen goes on elsewhere
_SMOOTH_CHANCE = 0.7  # otherwise: goes on turning as it did, without a corner
_TURN_STDDEV = 1.0  # radians, three times a stroke
_BOX = 20 / 28  # of the image's side, the height of a glyph in MNIST
_MARGIN = 2 / 28
_HALF_WIDTHS = 0.9 / 28, 2.0 / 28
_SOFT_EDGE = 1.5 / 28
_WARPS = 4


def draw(num_glyphs: int, variants: int, size: int, generator: np.random.Generator) -> Floats:
    """Ink in [0, 1], (num_glyphs x variants, size, size), the variants of a glyph together."""
    glyphs = _narrowed(_glyphs(num_glyphs, generator), generator)
    written = _by_hand(np.repeat(glyphs, variants, axis=0), generator)
    return _inked(_placed(written), size, generator)


def _glyphs(count: int, generator: np.random.Generator) -> Floats:
    """Points (x, y) along the strokes of each glyph: (count, points, 2), in arbitrary units."""
    starts = np.zeros((count, 2))
    heading = generator.uniform(0, 2 * np.pi, size=count)
    turn = generator.normal(0, _TURN_STDDEV, size=count)
    curves: list[Floats] = []
    for _ in range(_MOST_STROKES):
        control = _control_points(starts, heading, turn, generator)
        curves.append(_bezier(control))
        lifted = generator.random(count) < _LIFTED_CHANCE
        smooth = (generator.random(count) < _SMOOTH_CHANCE) & ~lifted
        elsewhere = curves[0].mean(axis=1) + generator.normal(0, 0.7, size=(count, 2))
        starts = np.where(lifted[:, None], elsewhere, control[:, 3])
        corner = np.where(lifted, np.pi, 1.0) * generator.normal(0, 1, size=count)
        heading = _end_heading(control) + np.where(smooth, turn, corner)
        turn = np.where(smooth, turn, generator.normal(0, _TURN_STDDEV, size=count))
    last = generator.choice(_MOST_STROKES, p=_NUM_STROKES_CHANCES, size=count)
    for number in range(1, _MOST_STROKES):
        absent = last < number
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
        points.append(points[-1] + np.stack([length * np.cos(angle), length * np.sin(angle)], 1))
    return np.stack(points, axis=1)


def _end_heading(control: Floats) -> Floats:
    x, y = (control[:, 3] - control[:, 2]).T
    heading: Floats = np.arctan2(y, x)
    return heading


def _bezier(control: Floats) -> Floats:
    """Points along cubic Bezier curves: (count, points, 2)."""
    t = np.linspace(0, 1, _POINTS)[:, None]
    weights = np.concatenate([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], axis=1)
    points: Floats = np.einsum("pc,ncd->npd", weights, control)
    return points


def _narrowed(points: Floats, generator: np.random.Generator) -> Floats:
    """Glyphs of height 1, about their middle: letters and digits are rarely wider than high."""
    width = generator.uniform(0.3, 1.0, size=len(points))
    target = np.stack([width, np.ones(len(points))], axis=1)
    extent = np.maximum(np.ptp(points, axis=1), 1e-9)
    shaped: Floats = (points - points.mean(axis=1, keepdims=True)) * (target / extent)[:, None, :]
    return shaped


def _by_hand(points: Floats, generator: np.random.Generator) -> Floats:
    """The same shapes bent by smooth waves, rotated, stretched and slanted, as hands do.

    Reference: the elastic distortions of Simard, Steinkraus and Platt 2003, section 2.
    """
    count = len(points)
    bent = points.copy()
    for _ in range(_WARPS):
        frequency = generator.normal(0, 4, size=(count, 2, 1))  # radians a glyph's height
        phase = generator.uniform(0, 2 * np.pi, size=(count, 1, 1))
        bent += generator.normal(0, 0.06, size=(count, 1, 2)) * np.sin(points @ frequency + phase)
    angle = generator.normal(0, 0.12, size=count)
    stretch = np.exp(generator.normal(0, 0.12, size=count))
    slant = generator.normal(0.15, 0.2, size=count)
    x, y = bent[:, :, 0], bent[:, :, 1]
    cosine, sine = np.cos(angle)[:, None], np.sin(angle)[:, None]
    down = x * sine + y * cosine
    across = stretch[:, None] * (x * cosine - y * sine) - slant[:, None] * down
    return np.stack([across, down], axis=2)


def _placed(points: Floats) -> Floats:
    """Glyphs that fill their box, with the mean at (1/2, 1/2) as far as the margin allows."""
    extent = np.maximum(np.ptp(points, axis=1).max(axis=1), 1e-9)
    fitted = points * (_BOX / extent)[:, None, None]
    lowest = _MARGIN - fitted.min(axis=1)
    highest = 1 - _MARGIN - fitted.max(axis=1)
    placed: Floats = fitted + np.clip(0.5 - fitted.mean(axis=1), lowest, highest)[:, None, :]
    return placed


def _inked(points: Floats, size: int, generator: np.random.Generator) -> Floats:
    """Ink by the distance of each pixel from the path, softened at the edge."""
    grid = (np.arange(size) + 0.5) / size
    across = np.square(grid[None, :, None] - points[:, None, :, 0]).astype(np.float32)
    down = np.square(grid[None, :, None] - points[:, None, :, 1]).astype(np.float32)
    nearest = np.stack([(down[:, row, None] + across).min(axis=2) for row in range(size)], axis=1)
    half_width = generator.uniform(*_HALF_WIDTHS, size=len(points))
    ink: Floats = np.clip((half_width[:, None, None] - np.sqrt(nearest)) / _SOFT_EDGE + 0.5, 0, 1)
    return ink
