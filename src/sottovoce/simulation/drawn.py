"""Decoded values drawn from the mechanisms' laws with torch's generator: for sweeps."""

import torch
from torch import Tensor

from sottovoce.errors import ConfigError
from sottovoce.mechanisms.coordinate_laws import CoordinateLaw, Coordinatewise
from sottovoce.mechanisms.mechanism import Mechanism
from sottovoce.mechanisms.registry import kind_of
from sottovoce.simulation.counted import CountedClients, Gathering, Portion
from sottovoce.simulation.draws import RowRotation, drawn_rows, drawn_total, rows_together


def law_of(mechanism: Mechanism) -> CoordinateLaw:
    """What the mechanism does to a coordinate, if it says so."""
    if not isinstance(mechanism, Coordinatewise):
        raise ConfigError(
            f"mechanism '{kind_of(mechanism)}' does not say what it does to a coordinate, so "
            "nothing can be drawn for it; set runtime.messages = 'packed'"
        )
    return mechanism.coordinate_law()


class DrawnMessages(CountedClients):
    """Nothing is encoded or sent. Every round has its own seed, so a run can go on anywhere."""

    def begin(self, number: int) -> None:
        seed = int(self.randomness.generator("draws", self.run, number).integers(2**62))
        self._generator = torch.Generator(device=self.task.device).manual_seed(seed)
        rotation = self.rotation(number)
        self._turn = None if rotation is None else RowRotation(rotation, self.task.device)

    def add(self, gathering: Gathering, portion: Portion, number: int, uplink: int) -> None:  # noqa: ARG002
        law = law_of(portion.mechanism)
        gathering.weight += portion.weight
        if not self.algorithm.gathers and self._turn is None:
            gathering.total += drawn_total(law, portion.rows, portion.weights, self._generator)
            return
        together = rows_together(self.task.dimension, self.task.device)
        turned = torch.zeros(self.task.dimension, device=self.task.device)
        for start, block in enumerate(portion.rows.blocks(together)):
            first = start * together
            decoded = self._drawn(law, block.float())
            if self.algorithm.gathers:
                self._add_rows(gathering, portion, first, self._turned_back(decoded))
            else:
                turned += portion.weights[first : first + len(decoded)] @ decoded
        gathering.total += self._turned_back(turned[None])[0]  # turning is linear: once for all

    def _drawn(self, law: CoordinateLaw, block: Tensor) -> Tensor:
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
