"""Forms in which the parameters of several models are kept while they take steps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class StackForm(Protocol):
    """An order of the parameters of a flat model, and how to compute outputs from it."""

    def enter(self, rows: Tensor) -> Tensor:
        """Return flat models, as rows, in this order of the parameters."""
        ...

    def leave(self, rows: Tensor) -> Tensor:
        """Return rows in the order of the module's parameters; the inverse of `enter`."""
        ...

    def outputs(self, rows: Tensor, features: Tensor) -> Tensor:
        """Return the outputs of models in this order, each for its own samples.

        Args:
            rows: Flat models as rows.
            features: Features of each model's samples, (models, samples, ...).

        Returns:
            The outputs, (models, samples, outputs).
        """
        ...


@dataclass(frozen=True, slots=True)
class ModuleOrder:
    """The order of the module's parameters, with a function that computes the outputs."""

    compute: Callable[[Tensor, Tensor], Tensor]

    def enter(self, rows: Tensor) -> Tensor:
        return rows

    def leave(self, rows: Tensor) -> Tensor:
        return rows

    def outputs(self, rows: Tensor, features: Tensor) -> Tensor:
        return self.compute(rows, features)
