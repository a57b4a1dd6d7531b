"""Decoded values drawn from the mechanisms' laws with torch's generator: for sweeps."""

import torch
from torch import Tensor

from sottovoce.core.errors import ConfigError
from sottovoce.federated.simulation.counted import CountedClients, Gathering, Portion
from sottovoce.federated.simulation.draws import (
    DrawnLaw,
    RowLaws,
    RowRotation,
    drawn_rows,
    generator_of_round,
    has_small_law,
    rows_together,
    turned_total,
)
from sottovoce.mechanisms.coordinate_laws import Coordinatewise
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.registry import kind_of


def law_of(mechanism: Mechanism) -> DrawnLaw:
    """Return what the mechanism does to a coordinate: what it says, or else its finite law."""
    if isinstance(mechanism, Coordinatewise):
        return mechanism.coordinate_law()
    if has_small_law(mechanism):
        return RowLaws(mechanism=mechanism)
    raise ConfigError(
        f"mechanism '{kind_of(mechanism)}' does not say what it does to a coordinate, so "
        "nothing can be drawn for it; set runtime.messages = 'packed'"
    )


class DrawnMessages(CountedClients):
    """Nothing is encoded or sent."""

    def begin(self, number: int) -> None:
        device = self.task.device
        self._generator = generator_of_round(self.randomness, self.run, number, device)
        rotation = self.rotation(number)
        self._turn = None if rotation is None else RowRotation(rotation, self.task.device)

    def add(self, gathering: Gathering, portion: Portion, number: int, uplink: int) -> None:  # noqa: ARG002
        law = law_of(portion.mechanism)
        gathering.weight += portion.weight
        rows, weights, generator = portion.rows, portion.weights, self._generator
        if not self.algorithm.gathers:
            gathering.total += turned_total(law, rows, weights, generator, self._turn)
            return
        together = rows_together(self.task.dimension, self.task.device)
        for number_of_block, block in enumerate(rows.blocks(together)):
            decoded = self._turned_back(self._drawn(law, block.float()))
            self._add_rows(gathering, portion, number_of_block * together, decoded)

    def _drawn(self, law: DrawnLaw, block: Tensor) -> Tensor:
        values = block if self._turn is None else self._turn.forward(block)
        return drawn_rows(law, values, self._generator)

    def _turned_back(self, rows: Tensor) -> Tensor:
        return rows if self._turn is None else self._turn.inverse(rows)

    def _add_rows(
        self, gathering: Gathering, portion: Portion, start: int, decoded: Tensor
    ) -> None:
        weights = portion.weights[start : start + len(decoded)]
        gathering.total += weights @ decoded
        gathering.rows += list(decoded.to("cpu", torch.float64).numpy())
        own = portion.clients[start : start + len(decoded)]
        gathering.clients += [part.client for part in own]
        gathering.weights += weights.tolist()
