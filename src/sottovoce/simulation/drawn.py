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
        for start, block in enumerate(portion.rows.blocks(together)):
            self._add_rows(gathering, portion, start * together, self._decoded(law, block))

    def _decoded(self, law: CoordinateLaw, block: Tensor) -> Tensor:
        if self._turn is None:
            return drawn_rows(law, block.float(), self._generator)
        turned = drawn_rows(law, self._turn.forward(block.float()), self._generator)
        return self._turn.inverse(turned)

    def _add_rows(
        self, gathering: Gathering, portion: Portion, start: int, decoded: Tensor
    ) -> None:
        weights = portion.weights[start : start + len(decoded)]
        gathering.total += weights @ decoded
        if self.algorithm.gathers:
            gathering.rows += list(decoded.to("cpu", torch.float64).numpy())
            own = portion.clients[start : start + len(decoded)]
            gathering.clients += [part.client for part in own]
            gathering.weights += weights.tolist()
