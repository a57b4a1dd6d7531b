"""A shuffle of 16-byte payloads through a relay of real processes: rates and bytes.

The relay has one core, the devices and the collector have another. In the first round reports are
made before they are sent, in the others as they are sent. Every report is checked, and on disk when
it is answered. The machine may be busy with other work, so rates count a process's own seconds;
those on the clock are shown, too.

    python benchmarks/relay_shuffle.py [--devices 5000] [--connections 64]
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from relay_devices import (
    CONTENT,
    Devices,
    KeptConnections,
    ask_on_new_connections,
    count_bytes,
    cpu_seconds,
    create_operators,
    leaf_of,
    post,
    random_payloads,
    root_request,
    running_relay,
    shuffle_attempt,
)

from sottovoce.deployment.operators.calls import RefusedError, RelayCalls
from sottovoce.deployment.operators.collecting import CollectorLink, ReportWindow, open_collector
from sottovoce.deployment.operators.folders import RelayFolder
from sottovoce.deployment.operators.routes import Route
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.shuffle_messages import ShuffleReport

SPARE_SECONDS = 3
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a step took: its messages, and seconds of the clock, the relay and this process."""

    count: int
    wall: float
    relay: float
    here: float

    def __str__(self) -> str:
        """Return the rates as text."""
        here = f"{self.count / max(self.here, 0.01):6.0f} of this process"
        clock = f"{self.count / self.wall:6.0f} a second"
        if not self.relay:
            return f"{here}, {clock}"
        return f"{self.count / self.relay:6.0f} a CPU-second of the relay, {here}, {clock}"


@dataclass(slots=True, kw_only=True)
class ShuffleFederation:
    """Both operators, a running relay, its collector and its devices.

    Attributes:
        relay: The relay's folder.
        pid: The relay's process.
        link: The collector.
        devices: The clients.
        connections: The number of connections that are kept.
        spent: What each step took, by its name.
    """

    relay: RelayFolder
    pid: int
    link: CollectorLink
    devices: Devices
    connections: int
    spent: dict[str, Spent] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str, count: int) -> Iterator[None]:
        """Write down what a block takes."""
        wall, relay, here = time.monotonic(), cpu_seconds(self.pid), time.process_time()
        yield
        self.spent[name] = Spent(
            count=count,
            wall=time.monotonic() - wall,
            relay=cpu_seconds(self.pid) - relay,
            here=time.process_time() - here,
        )

    def register(self) -> None:
        """Send the certificate of each client, once."""
        with (
            KeptConnections(self.relay, self.connections) as kept,
            self.timed("certificates", len(self.devices.keys)),
        ):
            _exhaust(kept.ask(post("register", each) for each in self.devices.admissions))

    def shuffle(
        self,
        run: str,
        number: int,
        payloads: Sequence[bytes],
        *,
        report_seconds: float,
        confirm_seconds: float,
        attempt: int = 1,
        mechanism: str = "{}",
        send: Callable[[Announcement, Iterable[ShuffleReport]], object] | None = None,
    ) -> list[bytes]:
        """Bring the payload of each client through a confirmed shuffle; return what is opened.

        Args:
            run: Name of the run.
            number: Number of the round.
            payloads: What each client sends.
            report_seconds: How long the relay takes reports.
            confirm_seconds: How long it takes confirmations after that; 0 for none.
            attempt: Number of the attempt at the round.
            mechanism: The mechanism, in the announcement.
            send: Sends the reports; by default over kept connections, each as it is made.
        """
        clients = len(payloads)
        asked = shuffle_attempt(
            self.devices.operators,
            run=run,
            place=(number, attempt),
            clients=clients,
            mechanism=mechanism,
        )
        window = ReportWindow(
            report_seconds=int(report_seconds) + SPARE_SECONDS,
            confirm_seconds=int(confirm_seconds) + SPARE_SECONDS if confirm_seconds else 0,
        )
        found = self.link.announce(asked, CONTENT, window, payload_bytes=len(payloads[0]))
        leaves = list[bytes]()

        def made() -> Iterator[ShuffleReport]:
            for report in self.devices.reports(found, payloads):
                leaves.append(leaf_of(report))
                yield report

        if send is None:
            with (
                KeptConnections(self.relay, self.connections) as kept,
                self.timed("reports", clients),
            ):
                _exhaust(kept.ask(post("report", each.to_bytes()) for each in made()))
        else:
            send(found, made())
        return self._collect(found, leaves)

    def _collect(self, found: Announcement, leaves: Sequence[bytes]) -> list[bytes]:
        """Let the collector open the list, and the clients confirm it before."""
        used: list[float] = []

        def collect() -> list[bytes]:
            began = time.thread_time()
            opened = self.link.payloads()
            used.append(time.thread_time() - began)
            return opened

        with ThreadPoolExecutor(1) as thread:
            opening = thread.submit(collect)
            if found.is_confirmed:
                self._confirm(found, leaves)
            opened = opening.result()
        one = Spent(count=len(leaves), wall=used[0], relay=0.0, here=used[0])
        self.spent["collector"] = one
        return opened

    def _confirm(self, found: Announcement, leaves: Sequence[bytes]) -> None:
        time.sleep(max(0.0, found.closes - time.time()))
        self._wait_for_root(leaves[0])
        with (
            KeptConnections(self.relay, self.connections) as asking,
            KeptConnections(self.relay, self.connections) as telling,
            self.timed("confirmations", len(leaves)),
        ):
            proofs = asking.ask(map(root_request, leaves))
            signed = self.devices.confirmations(found, leaves, proofs)
            _exhaust(telling.ask(post("confirmation", each) for each in signed))

    def _wait_for_root(self, leaf: bytes) -> None:
        with RelayCalls(self.relay.address, self.relay.card.certificate) as calls:
            while True:
                try:
                    calls.ask(Route.ROOT_OF, of=leaf.hex())
                    return
                except RefusedError as refused:
                    if not refused.is_too_early:
                        raise
                time.sleep(_POLL_SECONDS)


@contextmanager
def running_federation(
    folder: Path, devices: int, connections: int, *, pinned: bool = True
) -> Iterator[ShuffleFederation]:
    """Run a relay on one core, with a collector and registered devices in this process."""
    relay, collector, _ = create_operators(folder)
    cores = sorted(os.sched_getaffinity(0))
    alone = cores[0] if pinned and len(cores) > 1 else None
    with running_relay(relay, alone) as pid, open_collector(collector) as link:
        if alone is not None:
            os.sched_setaffinity(0, cores[1:2])
        try:
            yield ShuffleFederation(
                relay=relay,
                pid=pid,
                link=link,
                devices=Devices.admit(relay, collector, devices),
                connections=connections,
            )
        finally:
            os.sched_setaffinity(0, cores)


def _exhaust(answers: Iterable[bytes]) -> None:
    for _ in answers:
        pass


def measure(federation: ShuffleFederation) -> None:
    """Measure registration, reports and confirmations, and print the figures."""
    count = len(federation.devices.keys)
    federation.register()
    print(f"certificates:             {federation.spent['certificates']}")
    guess = 2 * federation.spent["certificates"].wall
    payloads = random_payloads(count)

    def send(_: Announcement, made: Iterable[ShuffleReport]) -> None:
        reports = [each.to_bytes() for each in made]
        first = [(Route.REPORT, each, "") for each in reports[:2]]
        new, kept = count_bytes(federation.relay, first)
        print(f"bytes of a report:        {kept} kept, {new} new; {len(reports[0])} is the report")
        cut = max(2, count - count // 5)
        with (
            KeptConnections(federation.relay, federation.connections) as connections,
            federation.timed("kept", cut - 2),
        ):
            _exhaust(connections.ask(post("report", each) for each in reports[2:cut]))
        print(f"reports, kept:            {federation.spent['kept']}")
        with federation.timed("new", count - cut):
            ask_on_new_connections(federation.relay, [post("report", r) for r in reports[cut:]])
        print(f"reports, new connections: {federation.spent['new']}")

    for number, confirmed in ((1, False), (2, True), (3, True)):
        opened = federation.shuffle(
            "benchmark",
            number,
            payloads,
            report_seconds=2 * guess,
            confirm_seconds=guess if confirmed else 0,
            send=send if number == 1 else None,
        )
        assert opened == sorted(payloads), "what was opened is not what was sent"
        for step in ("reports", "confirmations", "collector"):
            if step in federation.spent and (confirmed or step == "collector"):
                print(f"round {number}, {step + ':':<16} {federation.spent[step]}")


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=5000)
    parser.add_argument("--connections", type=int, default=64)
    asked = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="sottovoce-") as name,
        running_federation(Path(name), asked.devices, asked.connections) as federation,
    ):
        measure(federation)


if __name__ == "__main__":
    main(sys.argv[1:])
