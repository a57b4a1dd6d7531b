"""Ordered pairs of laws, known by their privacy loss: what the PLD accountant works on."""

from typing import Protocol

from sottovoce.domains import Vector


class LossPair(Protocol):
    """An ordered pair (P, Q) that dominates a release, by the laws of its loss log(dP/dQ)."""

    def masses(self, edges: Vector) -> tuple[Vector, Vector]:
        """P and Q of the loss in (-inf, e_0], (e_0, e_1], ..., (e_last, inf], one more than edges.

        Increasing edges. Infinite losses count: +inf (P alone) in the last, -inf in the first.
        """
        ...

    def reverse(self) -> "LossPair":
        """(Q, P): the other direction."""
        ...
