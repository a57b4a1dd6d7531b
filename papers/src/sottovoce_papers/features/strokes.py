"""Synthetic glyphs: random pen strokes, each glyph in several handwritings."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_MOST_STROKES = 3
_NUM_STROKES_CHANCES = (0.1, 0.4, 0.5)
_POINTS = 72  # Along a stroke: less than a pen's width apart.
_LIFTED_CHANCE = 0.2  # Probability that the pen continues elsewhere.
_SMOOTH_CHANCE = 0.7  # Otherwise, probability that it continues turning without a corner.
_TURN_STDDEV = 1.0  # In radians, three times per stroke.
_BOX = 20 / 28  # Height of a glyph in MNIST, relative to the image's side.
_MARGIN = 2 / 28
_HALF_WIDTHS = 0.9 / 28, 2.0 / 28
_SOFT_EDGE = 1.5 / 28
_WARPS = 4


def draw(num_glyphs: int, variants: int, size: int, generator: np.random.Generator) -> Floats:
    """Return ink in [0, 1], (num_glyphs x variants, size, size), glyph by glyph."""
    glyphs = _narrow(_glyphs(num_glyphs, generator), generator)
    written = _distort(np.repeat(glyphs, variants, axis=0), generator)
    return _ink(_place(written), size, generator)


def _glyphs(count: int, generator: np.random.Generator) -> Floats:
    """Return points (x, y) along the strokes of each glyph: (count, points, 2), in any unit."""
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
        curves[number][absent] = curves[0][absent]  # A stroke drawn twice is not visible.
    return np.concatenate(curves, axis=1)


def _control_points(
    starts: Floats, heading: Floats, turn: Floats, generator: np.random.Generator
) -> Floats:
    """Return four points per curve, (count, 4, 2): each of three legs turns by one angle."""
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
    """Return points along cubic Bezier curves: (count, points, 2)."""
    t = np.linspace(0, 1, _POINTS)[:, None]
    weights = np.concatenate([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], axis=1)
    points: Floats = np.einsum("pc,ncd->npd", weights, control)
    return points


def _narrow(points: Floats, generator: np.random.Generator) -> Floats:
    """Return glyphs of height 1 around their mean; characters are rarely wider than high."""
    width = generator.uniform(0.3, 1.0, size=len(points))
    target = np.stack([width, np.ones(len(points))], axis=1)
    extent = np.maximum(np.ptp(points, axis=1), 1e-9)
    shaped: Floats = (points - points.mean(axis=1, keepdims=True)) * (target / extent)[:, None, :]
    return shaped


def _distort(points: Floats, generator: np.random.Generator) -> Floats:
    """Return the shapes bent by smooth waves, rotated, stretched and slanted, like handwriting.

    Reference: the elastic distortions of Simard, Steinkraus and Platt 2003, section 2.
    """
    count = len(points)
    bent = points.copy()
    for _ in range(_WARPS):
        frequency = generator.normal(0, 4, size=(count, 2, 1))  # Radians per glyph height.
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


def _place(points: Floats) -> Floats:
    """Return glyphs that fill their box, with the mean at (1/2, 1/2) if the margin allows it."""
    extent = np.maximum(np.ptp(points, axis=1).max(axis=1), 1e-9)
    fitted = points * (_BOX / extent)[:, None, None]
    lowest = _MARGIN - fitted.min(axis=1)
    highest = 1 - _MARGIN - fitted.max(axis=1)
    placed: Floats = fitted + np.clip(0.5 - fitted.mean(axis=1), lowest, highest)[:, None, :]
    return placed


def _ink(points: Floats, size: int, generator: np.random.Generator) -> Floats:
    """Return the ink of each pixel by its distance from the path, with a soft edge."""
    grid = (np.arange(size) + 0.5) / size
    across = np.square(grid[None, :, None] - points[:, None, :, 0]).astype(np.float32)
    down = np.square(grid[None, :, None] - points[:, None, :, 1]).astype(np.float32)
    nearest = np.stack([(down[:, row, None] + across).min(axis=2) for row in range(size)], axis=1)
    half_width = generator.uniform(*_HALF_WIDTHS, size=len(points))
    ink: Floats = np.clip((half_width[:, None, None] - np.sqrt(nearest)) / _SOFT_EDGE + 0.5, 0, 1)
    return ink
