"""Synthetic public images, drawn at random, from which the geometry of features is learned.

`strokes` look like handwritten glyphs, `dead_leaves` like crowded color photographs. Their
parameters were chosen by hand; none is computed from a data set. Pixels lie in [-1/2, 1/2], like
those of the data sets.

Images come in runs of `variants` that show the same object: a glyph in several handwritings, or a
scene in several views. A classifier should ignore what differs within a run.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ParameterError, UnknownNameError
from sottovoce_papers.features import dead_leaves as leaves
from sottovoce_papers.features import strokes as pen

Images = NDArray[np.float32]

MAX_IMAGES = 10**7
MAX_VARIANTS = 1000
_CHUNK = 256  # Images drawn at a time; it bounds the memory, and changes what a seed gives.


def strokes(count: int, size: int, generator: np.random.Generator, *, variants: int = 1) -> Images:
    """Return glyphs of one to three pen strokes, bright on dark: (count, 1, size, size).

    A stroke is a cubic Bezier curve that turns one way and usually starts where the last one ended.
    As in MNIST, a glyph fills 20/28 of the image and its center of mass is the center of the image.
    """

    def draw_part(num_glyphs: int) -> Images:
        return pen.draw(num_glyphs, variants, size, generator).astype(np.float32)[:, None]

    return _in_parts(count, size, variants, draw_part)


def dead_leaves(
    count: int, size: int, generator: np.random.Generator, *, variants: int = 1
) -> Images:
    """Return opaque shaded shapes that cover each other, in color: (count, 3, size, size).

    Radii follow the power law r^-3, which makes the statistics independent of scale, as in
    photographs.

    Reference: Lee, Mumford and Huang 2001, section 4; for learning, Baradad et al. 2021.
    """

    def draw_part(num_scenes: int) -> Images:
        return leaves.draw(num_scenes, variants, size, generator)

    return _in_parts(count, size, variants, draw_part)


DRAWINGS = {"strokes": strokes, "dead_leaves": dead_leaves}


def draw(
    name: str, count: int, size: int, generator: np.random.Generator, *, variants: int = 1
) -> Images:
    """Return `count` images of the kind called `name`."""
    if name not in DRAWINGS:
        raise UnknownNameError.among("kind of synthetic images", name, DRAWINGS)
    return DRAWINGS[name](count, size, generator, variants=variants)


def check_variants(count: int, variants: int) -> None:
    """Check that the images can be divided into runs that show the same object."""
    parameter_rules.integer("variants", variants, low=1, high=MAX_VARIANTS)
    if count % variants:
        raise ParameterError(
            f"count must be a multiple of the {variants} variants, got {count}; "
            f"use {count + variants - count % variants}"
        )


def _in_parts(count: int, size: int, variants: int, draw_part: Callable[[int], Images]) -> Images:
    """Return all images, drawn a bounded number at a time."""
    parameter_rules.integer("count", count, low=1, high=MAX_IMAGES)
    parameter_rules.integer("size", size, low=4, high=1024)
    check_variants(count, variants)
    together = max(1, _CHUNK // variants)
    left = count // variants
    parts = []
    while left:
        parts.append(draw_part(min(together, left)) - np.float32(0.5))
        left -= min(together, left)
    return np.concatenate(parts)
