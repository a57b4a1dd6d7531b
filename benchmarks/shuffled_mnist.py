"""MNIST by one shuffle of all clients a round, with real clients end to end for a part of them.

The row of the experiment `shuffled-mnist` at epsilon 1, one seed. The messages of the first clients
go as a device's go: each is encrypted, signed, posted over HTTPS to a relay, confirmed, listed, and
opened by the collector. The simulator makes those of the other clients. It fails unless what is
opened is exactly what the simulator has for the same clients, and each round's mean has its bits.

    SOTTOVOCE_DATA=FOLDER python benchmarks/shuffled_mnist.py [--clients 2000] [--seed 1] [--fast]
"""

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from relay_shuffle import ShuffleFederation, running_federation

from sottovoce.core.errors import SottovoceError
from sottovoce.federated.algorithms.algorithm import AggregatedUplink
from sottovoce.federated.simulation.packed import PackedMessages
from sottovoce.federated.simulation.roster import Positions
from sottovoce.federated.training import Halted, Training
from sottovoce.mechanisms.encoding import PackedRows
from sottovoce.protocol.broadcast import Start
from sottovoce.protocol.relayed import canonical_parameters
from sottovoce.runs.build import build
from sottovoce.runs.inputs import load_inputs
from sottovoce.runs.outcome import metrics_row, result_of
from sottovoce.runs.resolve import resolve
from sottovoce.runs.spec import RunSpec
from sottovoce_papers.grid_files import EPSILON, MECHANISM, fast_grid, full_grid, read_grid_files
from sottovoce_papers.sweep import Choice, expand

NAME, ASKED_EPSILON, CHOSEN_RATE = "shuffled-mnist", 1.0, 700.0
_ATTEMPTS = 3
_SPARE = 2.0  # How many times as long a window is open as the step took before.
_REPORT_STEPS = 1.0  # A report takes less than half as long as a registration does,
_CONFIRM_STEPS = 1.0  # and so do the two trips of a confirmation.


def grid_spec(seed: int, *, fast: bool) -> RunSpec:
    """Return the spec of the grid's shuffle at epsilon 1."""
    (found,) = [each for each in read_grid_files() if each.name == NAME]
    grid = fast_grid(found) if fast else full_grid(found)
    asked = {
        MECHANISM: found.experiment.favorite,
        EPSILON: ASKED_EPSILON,
        "learning_rate": CHOSEN_RATE,
    }
    axes = {
        name: [one for one in choices if one.value == asked[name]]
        for name, choices in grid.axes.items()
    }
    axes["seed"] = [Choice(value=seed, overrides={"seed": seed})]
    (trial,) = expand(grid.base, axes)
    return trial.spec


class RelayedMessages(PackedMessages):
    """The simulator, but the first clients' messages come from a relay and its collector."""

    federation: ShuffleFederation
    seconds: list[float]
    windows: tuple[float, float]

    @classmethod
    def in_place_of(cls, old: PackedMessages, federation: ShuffleFederation) -> "RelayedMessages":
        """Return the simulator's backend with a relay."""
        names = ("run", "task", "clients", "parts", "algorithm", "randomness", "tally", "rotated")
        made = cls(**{name: getattr(old, name) for name in names}, channel=old.channel)
        took = federation.spent["certificates"].wall
        made.federation, made.seconds = federation, []
        made.windows = _REPORT_STEPS * took, _CONFIRM_STEPS * took
        return made

    def combine(self, number: int, cohort: Positions, start: Start) -> tuple[AggregatedUplink, ...]:
        self._kept: list[PackedRows] = []
        (simulated,) = super().combine(number, cohort, start)
        count, packed = len(self.federation.devices.keys), self._kept[0]
        payloads = np.concatenate([one.on_cpu() for one in self._kept])
        opened = self._through_relay(number, [row.tobytes() for row in payloads[:count]])
        rows = np.frombuffer(b"".join(opened), dtype=np.uint8).reshape(-1, payloads.shape[1])
        sums = self._sums_of(self.parts[0].mechanism)()
        for some in (rows, payloads[count:]):
            if len(some):
                sums.add(dataclasses.replace(packed, payloads=some), np.ones(len(some)))
        mean = sums.mean(float(len(cohort)), self.rotation(number))
        assert np.array_equal(mean, simulated.mean), "the round's mean is not the simulator's"
        return (AggregatedUplink(mean=mean),)

    def _encode(self, *given: Any) -> Iterator[Any]:
        for some, groups in super()._encode(*given):
            self._kept += [one.packed for one in groups]
            yield some, groups

    def _through_relay(self, number: int, payloads: Sequence[bytes]) -> list[bytes]:
        began, federation, opened = time.monotonic(), self.federation, None
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                opened = federation.shuffle(
                    self.run,
                    number,
                    payloads,
                    report_seconds=self.windows[0] * attempt,
                    confirm_seconds=self.windows[1] * attempt,
                    attempt=attempt,
                    mechanism=canonical_parameters(self.parts[0].mechanism),
                )
                break
            except SottovoceError as error:  # The machine was too busy for the window.
                print(f"round {number}: attempt {attempt} is lost: {error}", flush=True)
        assert opened is not None, "every attempt was lost"
        assert opened == sorted(payloads), "what was opened is not what the simulator has"
        self.seconds.append(time.monotonic() - began)
        steps = [federation.spent[name].wall for name in ("reports", "confirmations")]
        self.windows = _SPARE * steps[0], _SPARE * steps[1]
        took = self.seconds[-1]
        print(f"round {number}: {len(opened)} opened payloads are the simulator's, {took:.0f} s")
        for name in ("reports", "confirmations", "collector"):
            print(f"  {name + ':':<15} {federation.spent[name]}")
        return opened


def train(spec: RunSpec, clients: int, connections: int) -> None:
    """Train with some clients behind a relay, and print the figures."""
    began = time.monotonic()
    resolved = resolve(load_inputs(spec))
    training = build(resolved)
    assert isinstance(training.backend, PackedMessages)
    loaded = time.monotonic() - began
    count = min(clients, len(resolved.parts))
    print(f"{len(resolved.parts)} clients, {count} of them by the relay; features {loaded:.0f} s")
    with (
        tempfile.TemporaryDirectory(prefix="sottovoce-") as name,
        running_federation(Path(name), count, connections, pinned=False) as federation,
    ):
        federation.register()
        print(f"certificates:     {federation.spent['certificates']}")
        backend = RelayedMessages.in_place_of(training.backend, federation)
        _rounds(dataclasses.replace(training, backend=backend), resolved)
    total, relayed = time.monotonic() - began, sum(backend.seconds)
    print(f"all rounds through the relay {relayed:.0f} s of {total:.0f} s in all")
    rate = count * len(backend.seconds) / relayed
    print(f"{rate:.0f} messages a second through relay and collector, waits included")


def _rounds(training: Training, resolved: Any) -> None:
    progress, rows = training.start(), []
    while progress.rounds_done < resolved.spec.rounds:
        outcome = training.step(progress)
        assert not isinstance(outcome, Halted), outcome
        progress, record = outcome
        rows.append(metrics_row(resolved, training.record, progress, record))
        print(f"round {progress.rounds_done}: accuracy {rows[-1]['accuracy']:.4f}", flush=True)
    result = result_of(resolved, training, rows, progress, None)
    honest = resolved.channel.minimum_clients
    print(
        f"accuracy {result['accuracy']:.4f}; epsilon {result['epsilon']:.4f} if at least {honest} "
        f"of {len(resolved.parts)} clients are honest and relay and collector do not collude; "
        f"local epsilon {result['local_epsilon']:.2f}"
    )


def main(arguments: Sequence[str]) -> None:
    """Train, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fast", action="store_true", help="the reduced grid: 12,000 clients")
    asked = parser.parse_args(arguments)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the start")
    spec = grid_spec(asked.seed, fast=asked.fast)
    train(spec, asked.clients, asked.connections)


if __name__ == "__main__":
    main(sys.argv[1:])
