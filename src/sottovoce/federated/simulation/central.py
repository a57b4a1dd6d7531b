"""A trusted server's rounds: clipped updates added up as they are, and noise added once.

Every client that can pay is charged in every round. Who was sampled is secret and so are all
numbers that depend on it: the sum is divided by the expected weight, a round that nobody was
sampled for releases noise all the same, and what is counted as sent is a message of every client,
for silence would tell who was not sampled.
"""

from collections.abc import Sequence

import torch

from sottovoce.federated.algorithms.algorithm import Combined
from sottovoce.federated.simulation.counted import CountedClients, Gathering, Portion
from sottovoce.federated.simulation.draws import added_noise, generator_of_round
from sottovoce.federated.training import Collected
from sottovoce.mechanisms.release import NoisySums
from sottovoce.protocol.broadcast import Start
from sottovoce.protocol.channels.central import noise_of_sum
from sottovoce.protocol.message import HEADER_BYTES


class CentralSums(CountedClients):
    """Nothing is encoded or sent."""

    def replay(self, number: int, drawn: Sequence[int]) -> None:  # noqa: ARG002
        self.tally.charge(number, self._payers(number))

    def collect(self, number: int, cohort: Sequence[int], start: Start) -> Collected:
        payers = self._payers(number)
        assert set(cohort) <= set(payers)  # whoever contributes has paid
        self.tally.charge(number, payers)
        self.begin(number)
        gathering = Gathering(
            torch.zeros(self.task.dimension, dtype=torch.float64, device=self._device)
        )
        for uplink, portion in self._portions(number, cohort, start):
            self.add(gathering, portion, number, uplink)
        bytes_up = self._payload_bytes(payers)
        return Collected(
            combined=(self._released(gathering, payers),),
            clients_asked=len(payers),
            clients_received=len(payers),
            clients_out_of_budget=0,
            payload_bytes_up=bytes_up,
            total_bytes_up=bytes_up + HEADER_BYTES * len(payers),
        )

    def begin(self, number: int) -> None:
        self._generator = generator_of_round(self.randomness, self.run, number, self.task.device)

    def add(self, gathering: Gathering, portion: Portion, number: int, uplink: int) -> None:  # noqa: ARG002
        gathering.total += portion.rows.total(portion.weights)

    @property
    def _client_sampling_rate(self) -> float:
        visibility = self.channel.visibility
        assert isinstance(visibility, NoisySums), "books chooses by that"
        return visibility.client_sampling_rate

    def _payers(self, number: int) -> list[int]:
        """Everyone who has budget left: a public matter, which no coin decides."""
        return [int(i) for i in self.tally.able(number).nonzero()[0]]

    def _released(self, gathering: Gathering, payers: Sequence[int]) -> Combined:
        parts = [self.parts[i] for i in payers]
        noise = noise_of_sum({(part.mechanism, part.weight) for part in parts})
        assert noise is not None  # a round has at least one client that can pay
        noisy = gathering.total + added_noise(noise, gathering.total, self._generator)
        expected = self._client_sampling_rate * sum(part.weight for part in parts)
        return Combined(mean=(noisy / expected).cpu().numpy())
