"""The backend of a trusted server, which adds up clipped updates and adds noise once.

Every client that can pay is charged in every round. The sample of clients is secret, and so is
every number that depends on it: the sum is divided by the expected weight, a round for which no
client was sampled still releases noise, and one message of every client is counted as sent, because
a missing message would reveal that a client was not sampled.
"""

import numpy as np
import torch

from sottovoce.federated.algorithms.algorithm import AggregatedUplink
from sottovoce.federated.simulation.counted import Portion, PortionedBackend, UplinkAccumulator
from sottovoce.federated.simulation.draws import draw_noise, round_generator
from sottovoce.federated.simulation.roster import Positions, as_positions
from sottovoce.federated.training import Cohort, CollectedRound
from sottovoce.mechanisms.release import NoisySums
from sottovoce.protocol.broadcast import Start
from sottovoce.protocol.channels.central import noise_of_sum
from sottovoce.protocol.message import HEADER_BYTES


class CentralSums(PortionedBackend):
    """The backend of a trusted server that adds noise once; it encodes and sends no messages."""

    def replay(self, number: int, drawn: Cohort) -> None:  # noqa: ARG002
        self.tally.charge(number, self._payers(number))

    def collect(self, number: int, cohort: Cohort, start: Start) -> CollectedRound:
        payers, members = self._payers(number), as_positions(cohort)
        assert np.isin(members, payers).all(), "every client that contributes is charged"
        self.tally.charge(number, payers)
        self.begin(number)
        gathering = UplinkAccumulator(
            torch.zeros(self.dimension, dtype=torch.float64, device=self._device)
        )
        for uplink, portion in self._portions(number, members, start):
            self.add(gathering, portion, number, uplink)
        bytes_up = self._payload_bytes(payers)
        return CollectedRound(
            combined=(self._release(gathering, payers),),
            clients_asked=len(payers),
            clients_received=len(payers),
            clients_out_of_budget=0,
            payload_bytes_up=bytes_up,
            total_bytes_up=bytes_up + HEADER_BYTES * len(payers),
        )

    def begin(self, number: int) -> None:
        self._generator = round_generator(self.randomness, self.run, number, self.task.device)

    def add(self, gathering: UplinkAccumulator, portion: Portion, number: int, uplink: int) -> None:  # noqa: ARG002
        gathering.total += portion.rows.total(portion.weights)

    @property
    def _client_sampling_rate(self) -> float:
        visibility = self.channel.visibility
        assert isinstance(visibility, NoisySums), "this backend serves the channel 'central' only"
        return visibility.client_sampling_rate

    def _payers(self, number: int) -> Positions:
        """Return the clients that have budget left, which does not depend on the secret sample."""
        return as_positions(self.tally.clients_with_budget(number).nonzero()[0])

    def _release(self, gathering: UplinkAccumulator, payers: Positions) -> AggregatedUplink:
        """Return the noisy sum divided by the expected weight."""
        parts = [self.parts[i] for i in payers.tolist()]
        noise = noise_of_sum({(part.mechanism, part.weight) for part in parts})
        assert noise is not None, "a round has at least one client that can pay"
        noisy = gathering.total + draw_noise(noise, gathering.total, self._generator)
        expected = self._client_sampling_rate * sum(part.weight for part in parts)
        return AggregatedUplink(mean=(noisy / expected).cpu().numpy())
