"""The trainable tensors of a module as one flat vector, and models as rows of a matrix."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sottovoce.core.domains import Vector
from sottovoce.learning.models.modules import trainable_parameters


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """Name and shape of every trainable tensor, in the order of the flat vector."""

    shapes: Mapping[str, torch.Size]

    @classmethod
    def of(cls, module: nn.Module) -> "FlatLayout":
        """Return the layout of a module's trainable parameters."""
        return cls({name: one.shape for name, one in trainable_parameters(module).items()})

    @property
    def dimension(self) -> int:
        """The number of trainable parameters."""
        return sum(shape.numel() for shape in self.shapes.values())

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the tensors by name; those of several models with the models in front.

        Args:
            flat: A flat model, or flat models as rows.

        Returns:
            Views of the given numbers where torch can make them.
        """
        sizes = [shape.numel() for shape in self.shapes.values()]
        pieces = torch.split(flat, sizes, dim=-1)
        return {
            name: piece.reshape(*flat.shape[:-1], *shape)
            for piece, (name, shape) in zip(pieces, self.shapes.items(), strict=True)
        }

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return what `split` was given.

        Args:
            tensors: The tensors by name, all with the same dimensions in front.

        Returns:
            A new tensor, which has the same dimensions in front, and one of flat models.
        """
        found = [(tensors[name], len(shape)) for name, shape in self.shapes.items()]
        return torch.cat([one.reshape(*one.shape[: one.ndim - n], -1) for one, n in found], dim=-1)


def initial_vector(module: nn.Module) -> Vector:
    """Return the trainable parameters of a module as a new float64 vector."""
    found = [one.detach().double().cpu() for one in trainable_parameters(module).values()]
    return torch.cat([one.reshape(-1) for one in found]).numpy()


def digest_of_fixed(module: nn.Module) -> str:
    """Return a digest of the frozen parameters and persistent buffers; empty if there are none.

    Args:
        module: The module.

    Returns:
        Sixteen hex digits, or nothing.
    """
    kept, buffers = module.state_dict(), dict(module.named_buffers())
    fixed = [name for name, p in module.named_parameters() if not p.requires_grad]
    fixed += [name for name in buffers if name in kept]
    hashed = hashlib.blake2b(digest_size=8)
    for name in fixed:
        values = kept[name].detach().cpu()
        hashed.update(repr((name, tuple(values.shape), str(values.dtype))).encode())
        hashed.update(values.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest() if fixed else ""
