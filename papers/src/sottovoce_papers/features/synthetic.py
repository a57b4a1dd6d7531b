"""Public images that are nobody's: drawn at random, to learn the geometry of features from.

`strokes` look like handwritten glyphs, `dead_leaves` like crowded colour photographs. Their looks
were chosen by hand; no parameter is computed from a dataset. Pixels lie in [-1/2, 1/2], as those of
the datasets do.

Images come in runs of `variants` that show the same thing: a glyph in several hands, a scene in
several views. What differs within a run is nothing that a classifier should look at.
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
_CHUNK = 256  # images drawn at once: bounds the memory, and is part of what a seed gives


def strokes(count: int, size: int, generator: np.random.Generator, *, variants: int = 1) -> Images:
    """Glyphs of one to three pen strokes, bright on dark: (count, 1, size, size).

    A stroke is a cubic Bezier curve that turns one way; it mostly goes on where the last one ended.
    As in MNIST, a glyph fills 20/28 of the image and its centre of mass is the image's centre.
    """

    def draw_part(num_glyphs: int) -> Images:
        return pen.draw(num_glyphs, variants, size, generator).astype(np.float32)[:, None]

    return _in_parts(count, size, variants, draw_part)


def dead_leaves(
    count: int, size: int, generator: np.random.Generator, *, variants: int = 1
) -> Images:
    """Opaque shaded shapes fallen onto each other, in colour: (count, 3, size, size).

    Radii follow a power law, r^-3, which makes statistics independent of scale as in photographs.

    Reference: Lee, Mumford and Huang 2001, section 4; for learning, Baradad et al. 2021.
    """

    def draw_part(num_scenes: int) -> Images:
        return leaves.draw(num_scenes, variants, size, generator)

    return _in_parts(count, size, variants, draw_part)


DRAWINGS = {"strokes": strokes, "dead_leaves": dead_leaves}


def draw(
    name: str, count: int, size: int, generator: np.random.Generator, *, variants: int = 1
) -> Images:
    """`count` images of the kind called `name`."""
    if name not in DRAWINGS:
        raise UnknownNameError.among("kind of synthetic images", name, DRAWINGS)
    return DRAWINGS[name](count, size, generator, variants=variants)


def check_variants(count: int, variants: int) -> None:
    """The rule for runs of images that show the same thing."""
    parameter_rules.integer("variants", variants, low=1, high=MAX_VARIANTS)
    if count % variants:
        raise ParameterError(
            f"count must be a multiple of the {variants} variants, got {count}; "
            f"use {count + variants - count % variants}"
        )


def _in_parts(count: int, size: int, variants: int, draw_part: Callable[[int], Images]) -> Images:
    """All images, drawn a bounded number at once."""
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
