"""Random flips and shifted crops of images, which local training applies in each step.

A crop shifts an image by up to four pixels in each direction; what comes in from outside is zero. A
flip mirrors it from left to right. Each record of each local step has a change of its own. It is
drawn from the client's own randomness for the round, a keystream that is used for nothing else:
("augmentation", run, client, round). The records of a step do not depend on it, and it does not
depend on the other clients.

A change is written as one number: 81 flip + 9 (4 + rows up) + (4 + columns to the left). The shift
is applied after the flip.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.core.errors import ConfigError
from sottovoce.core.randomness import Randomness
from sottovoce.learning.minibatches import NO_RECORD, Minibatches

_PADDING = 4  # Pixels, as usual for images with 32 pixels per side.
_SHIFTS = 2 * _PADDING + 1
_PLACES = _SHIFTS * _SHIFTS
UNCHANGED = _PLACES // 2

Draws = TypeVar("Draws", NDArray[Any], Tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """Random changes of images.

    Attributes:
        flips: Whether images are mirrored with probability one half.
        crops: Whether images are shifted by -4 to 4 pixels in each direction.

    Examples:
        >>> Augmentation.of("flip").changes(np.array([4, 5])).tolist()
        [40, 121]
    """

    flips: bool
    crops: bool

    @classmethod
    def of(cls, kind: str) -> "Augmentation":
        """Return the augmentation "flip", "crop" or "flip_and_crop"."""
        return cls(flips=kind != "crop", crops=kind != "flip")

    def check(self, shape: tuple[int, ...], where: str) -> None:
        """Refuse samples that are not images.

        Args:
            shape: The shape of a sample.
            where: The key of the spec.

        Raises:
            ConfigError: The shape is not (channels, height, width) with sides above four pixels.
        """
        if len(shape) != 3 or min(shape[1:]) <= _PADDING:
            raise ConfigError(
                f"'{where}' changes images (channels, height, width) with more than {_PADDING} "
                f"pixels per side, but samples have the shape {shape}; drop it, or give the data "
                "as images"
            )

    def draw(
        self,
        randomness: Randomness,
        run: str,
        number: int,
        clients: Sequence[str],
        steps: Minibatches,
    ) -> Minibatches:
        """Draw a change of each record of each step.

        Args:
            randomness: The clients' own randomness.
            run: Name of the run.
            number: The round, counted from 1.
            clients: Names of the clients.
            steps: Their minibatches.

        Returns:
            The same minibatches with changes. Those of a client do not depend on the others.
        """
        used = steps.records != NO_RECORD
        found = np.full((len(used), steps.repeats, *used.shape[1:]), UNCHANGED, dtype=np.uint8)
        for client, own, changes in zip(clients, used, found, strict=True):
            stream = randomness.stream("augmentation", run, client, number)
            draws = stream.draws(32, steps.repeats * int(own.sum()))
            changes[:, own] = self.changes(draws).reshape(steps.repeats, -1)
        return replace(steps, changes=found)

    def changes(self, draws: Draws) -> Draws:
        """Return changes from uniform integers below 2^32, as an array or tensor of them.

        They are uniform up to a share of 2^-24; privacy does not depend on that.
        """
        if not self.flips:
            return draws % _PLACES
        return draws % (2 * _PLACES) if self.crops else draws % 2 * _PLACES + UNCHANGED


def changed_images(images: Tensor, changes: Tensor) -> Tensor:
    """Return each image with its change.

    Args:
        images: The images, (..., channels, height, width).
        changes: A change for each image, as integers (...), on the same device.

    Returns:
        New images of the same shape.
    """
    *_, channels, height, width = images.shape
    numbers = changes.reshape(-1, 1).long()
    place = numbers % _PLACES
    rows = torch.arange(height, device=images.device) + place // _SHIFTS - _PADDING
    columns = torch.arange(width, device=images.device) + place % _SHIFTS - _PADDING
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[
        :, None
    ]
    columns = torch.where(numbers >= _PLACES, width - 1 - columns, columns)
    pixels = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]
    flat = images.reshape(-1, channels, height * width)
    taken = flat.gather(2, pixels.reshape(-1, 1, height * width).expand_as(flat))
    kept = torch.where(inside.reshape(-1, 1, height * width), taken, 0)
    return kept.reshape(images.shape)
