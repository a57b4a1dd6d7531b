"""SCAFFOLD: local steps corrected by control variates, for clients whose data differ.

Client k steps along its own gradient, minus the typical gradient c_k of its data, plus the average
c over all clients:

    y <- y - r (gradient_k(y) - c_k + c),    K_k times from y = x
    c_k' = c_k - c + (x - y)/(K_k r)         (option II)
    x <- x + s mean_k(y_k - x),    c <- c + |S|/N mean_k(c_k' - c_k).

`Scaffold` protects whole clients. Both y_k - x and c_k' - c_k leave the client as two uplinks, each
clipped and each charged. c_k itself stays with its client, which moves it by the *clipped* change,
so that c remains an unbiased estimate of the mean of all c_k. Only changes are sent, so the error
of c is the sum of the noise of all rounds so far: the noise that control variates add grows with
the rounds, and they are worth it where clients are many and differ much.

`SampleScaffold` protects samples, with one clipped step a round. Here a client's control variate is
the last message that it released, which the server knows: it costs no uplink and no charge.

    x <- x + s (mean_S(m_k - c_k) + c),    c <- c + sum_S w_k (m_k - c_k)/sum_all w_k,    c_k <- m_k

with means weighted by public weights. If all clients take part this is x <- x + s mean(m_k), which
is federated SGD. If few do, c stands for the others, and m_k - c_k has the noise of two messages.

References: Karimireddy et al. 2020, algorithm 1; Defazio, Bach and Lacoste-Julien 2014 (SAGA, of
which `SampleScaffold` is an instance).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Unit
from sottovoce.core.domains import ROUNDING_HEADROOM, L2Ball, SteppedBall, Vector
from sottovoce.core.errors import ParameterError
from sottovoce.federated.algorithms.algorithm import AggregatedUplink, Block, ClientStepInput, State
from sottovoce.federated.algorithms.fedavg import (
    SampleClippedGradient,
    update_domain,
    yield_update_blocks,
)
from sottovoce.learning.clients import ClientData, DenseRows, clip_rows, names_of, sizes_of
from sottovoce.learning.minibatches import LocalSchedule
from sottovoce.learning.task import Task

ControlRows = NDArray[np.float32]
# Rows are float32 because gradients have no more digits, and there is one row per client.
BYTES_PER_COORDINATE = 4
SERVER_CONTROL, CLIENT_CONTROLS = "control", "client_controls"  # Keys in checkpoints.


class ControlVariates(NamedTuple):
    """The server's control variate c, and a row c_k for each client."""

    server: NDArray[np.float64]
    clients: ControlRows

    @classmethod
    def zeros(cls, clients: int, dimension: int) -> "ControlVariates":
        """Return control variates of zero."""
        return cls(np.zeros(dimension), np.zeros((clients, dimension), dtype=np.float32))

    @classmethod
    def of(cls, state: State) -> "ControlVariates":
        """Return the control variates in an algorithm's state."""
        return cls(state[SERVER_CONTROL], state[CLIENT_CONTROLS])

    def state(self) -> State:
        """Return the control variates as an algorithm's state, which checkpoints keep."""
        return {SERVER_CONTROL: self.server, CLIENT_CONTROLS: self.clients}

    def with_rows(
        self, server: NDArray[np.float64], places: Sequence[int], rows: ControlRows
    ) -> "ControlVariates":
        """Return a copy with a new server variate and new rows of some clients.

        Args:
            server: The server's new control variate.
            places: Indices of the rows to replace, one for each of these clients.
            rows: The new rows, in the order of `places`.

        Returns:
            The copy; this object is not changed.
        """
        clients = self.clients.copy()
        clients[np.asarray(places, dtype=np.int64)] = rows
        return ControlVariates(server, clients)


def rows_by_client(names: Sequence[str]) -> Mapping[str, int]:
    """Return the row of each client in the state: its place in `names`."""
    return {name: place for place, name in enumerate(names)}


class PendingControls:
    """New control variates of simulated clients, held until the server has completed their round.

    They never leave a client. If a round releases nothing or is interrupted, the next round
    discards them, so a repeated round starts from the checkpoint.
    """

    def __init__(self) -> None:
        self._round = 0
        self._rows: dict[str, ControlRows] = {}

    def put(self, number: int, clients: Sequence[str], rows: ControlRows) -> None:
        """Store new rows of some clients for round `number`; discard rows of any other round."""
        if number != self._round:
            self._round, self._rows = number, {}
        self._rows.update(zip(clients, rows, strict=True))

    def take(self) -> dict[str, ControlRows]:
        """Return all stored rows by client name and forget them."""
        taken, self._rows = self._rows, {}
        return taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffold:
    """SCAFFOLD at client level, with two clipped and charged uplinks per client and round.

    Both uplinks share a domain and a mechanism: control changes are scaled by the public factor
    clip_norm/control_clip_norm before they are sent, and scaled back by the server.

    Attributes:
        clip_norm: The clipping norm of model changes.
        control_clip_norm: The clipping norm of changes of control variates.
        local_steps: Number K_k of local steps of each client.
        local_learning_rate: Their step size r.
        local_epochs: Number of passes over the client's records, instead of `local_steps`.
        batch_size: Number of records of a step; None for all of them.
        server_learning_rate: Step size s of the server.
        clients: Names of all clients of the run, in the order of their rows in the state.

    Raises:
        ParameterError: If a value is out of range or a client is named twice.

    Reference: Karimireddy et al. 2020, algorithm 1, option II.
    """

    clip_norm: float
    control_clip_norm: float
    local_steps: int = 1
    local_learning_rate: float
    local_epochs: int | None = None
    batch_size: int | None = None
    server_learning_rate: float
    clients: tuple[str, ...]
    _drafts: PendingControls = field(
        default_factory=PendingControls, init=False, repr=False, compare=False
    )
    record_sampling_rate: ClassVar[float] = 1.0
    unit: ClassVar[Unit] = Unit.CLIENT
    uplinks: ClassVar[int] = 2
    shared_state: ClassVar[tuple[str, ...]] = (SERVER_CONTROL,)
    gathers: ClassVar[bool] = False

    def __post_init__(self) -> None:
        parameter_rules.clip_norm("clip_norm", self.clip_norm)
        parameter_rules.clip_norm("control_clip_norm", self.control_clip_norm)
        assert self.schedule, "building it checks the numbers"
        parameter_rules.positive("local_learning_rate", self.local_learning_rate)
        parameter_rules.positive("server_learning_rate", self.server_learning_rate)
        _check_named_once(self.clients)

    @property
    def schedule(self) -> LocalSchedule:
        """How many steps a client takes, and on which of its records."""
        return LocalSchedule(
            steps=self.local_steps, epochs=self.local_epochs, batch_size=self.batch_size
        )

    def domain(self, dimension: int, num_samples: int) -> L2Ball:  # noqa: ARG002
        return L2Ball(dimension=dimension, radius=self.clip_norm)

    def weight(self, num_samples: int) -> float:  # noqa: ARG002
        """Return 1 for every number of samples, because that number is private at client level.

        Args:
            num_samples: Number of the client's records; not used.

        Returns:
            One.
        """
        return 1.0

    def initialize(self, model: Vector) -> State:
        return ControlVariates.zeros(len(self.clients), len(model)).state()

    def client_steps(
        self, task: Task, clients: Sequence[ClientData], step: ClientStepInput
    ) -> Iterator[Block]:
        controls, places = ControlVariates.of(step.state), rows_by_client(self.clients)
        names, sizes, schedule = names_of(clients), sizes_of(clients), self.schedule
        own = torch.from_numpy(controls.clients[[places[name] for name in names]]).to(task.device)
        shared = torch.from_numpy(controls.server).to(task.device)
        models = task.local_models(
            step.model,
            clients,
            steps=schedule.draw(step.randomness, step.run, step.round, names, sizes),
            learning_rate=self.local_learning_rate,
            corrections=shared.float() - own,
        )
        # A client without records takes no step.
        steps = [max(1, schedule.num_steps(size)) for size in sizes]
        origin = torch.from_numpy(step.model).to(task.device)
        for start, rows in models:
            changes = rows.to(torch.float64) - origin
            part = slice(start, start + len(rows))
            control_changes = self._control_changes(changes, shared, steps[part])
            kept = (own[part].to(torch.float64) + control_changes).float().cpu().numpy()
            self._drafts.put(step.round, names[part], kept)
            sent = DenseRows(control_changes * self._factor)
            yield Block(start=start, uplinks=(DenseRows(changes), sent))

    def server_step(
        self, model: Vector, combined: Sequence[AggregatedUplink], state: State
    ) -> tuple[Vector, State]:
        change, control_change = combined[0].mean, combined[1].mean / self._factor
        drafts, places = self._drafts.take(), rows_by_client(self.clients)
        controls = ControlVariates.of(state)
        share = len(drafts) / len(self.clients)  # Public, like the cohort itself.
        moved = controls.with_rows(
            controls.server + share * control_change,
            [places[name] for name in drafts],
            np.stack(list(drafts.values())),
        )
        return model + self.server_learning_rate * change, moved.state()

    @property
    def _factor(self) -> float:
        return self.clip_norm / self.control_clip_norm

    def _control_changes(self, changes: Tensor, shared: Tensor, steps: Sequence[int]) -> Tensor:
        """Return c_k' - c_k = (x - y)/(K_k r) - c, clipped; zero for a client that diverged."""
        rates = torch.tensor(steps, dtype=changes.dtype) * self.local_learning_rate
        wanted = DenseRows(-changes / rates.to(changes.device)[:, None] - shared)
        limit = self.control_clip_norm * (1.0 - ROUNDING_HEADROOM)
        (rows,) = clip_rows(wanted, limit).blocks(len(wanted))
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleScaffold:
    """SCAFFOLD at sample level, whose control variates are messages that were released before.

    Attributes:
        local_work: The clipped gradient that each client computes.
        server_learning_rate: Step size s of the server.
        clients: Names of all clients of the run, in the order of their rows in the state.
        total_weight: The sum of all clients' public weights.
    """

    local_work: SampleClippedGradient
    server_learning_rate: float
    clients: tuple[str, ...]
    total_weight: float
    unit: ClassVar[Unit] = Unit.SAMPLE
    uplinks: ClassVar[int] = 1
    shared_state: ClassVar[tuple[str, ...]] = ()  # Only the server uses the control variates.
    gathers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        parameter_rules.positive("server_learning_rate", self.server_learning_rate)
        parameter_rules.positive("total_weight", self.total_weight)
        _check_named_once(self.clients)

    @property
    def record_sampling_rate(self) -> float:
        return self.local_work.sampling_rate

    def domain(self, dimension: int, num_samples: int) -> L2Ball | SteppedBall:
        return update_domain(self.local_work, dimension, num_samples)

    def weight(self, num_samples: int) -> float:
        """Return the public number of records behind the client's mean."""
        return float(self.local_work.records(num_samples))

    def initialize(self, model: Vector) -> State:
        return ControlVariates.zeros(len(self.clients), len(model)).state()

    def client_steps(
        self, task: Task, clients: Sequence[ClientData], step: ClientStepInput
    ) -> Iterator[Block]:
        yield from yield_update_blocks(self.local_work, task, clients, step)

    def server_step(
        self, model: Vector, combined: Sequence[AggregatedUplink], state: State
    ) -> tuple[Vector, State]:
        each = combined[0].each
        assert each is not None, "gathers is true"
        controls, places = ControlVariates.of(state), rows_by_client(self.clients)
        who = [places[name] for name in each.clients]
        before = controls.clients[who].astype(np.float64)
        kept = each.rows.astype(np.float32)
        step = each.weights @ (each.rows - before) / each.weights.sum() + controls.server
        # Uses the rounded rows, so that c stays the mean of the rows that are stored.
        server = controls.server + each.weights @ (kept - before) / self.total_weight
        return model + self.server_learning_rate * step, controls.with_rows(
            server, who, kept
        ).state()


def _check_named_once(clients: Sequence[str]) -> None:
    if not clients or len(set(clients)) != len(clients):
        raise ParameterError(
            f"SCAFFOLD keeps one control variate per client, but got {len(clients)} names with "
            f"{len(set(clients))} distinct ones; name every client of the run once"
        )
