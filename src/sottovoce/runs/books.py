"""Where a run's charges are kept, and the training that keeps them there."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.backend import Backend
from sottovoce.federated.simulation.central import CentralSums
from sottovoce.federated.simulation.drawn import DrawnMessages
from sottovoce.federated.simulation.packed import PackedMessages
from sottovoce.federated.simulation.stored import StoredMessages
from sottovoce.federated.training import Training
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.tally import Tally
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.protocol.channels.channel import Central
from sottovoce.protocol.plan import charged_event
from sottovoce.runs.ground import randomness_of
from sottovoce.runs.parts import Assembly

Books = Ledger | Tally
BackendOf = Callable[["Assembly", Books], Backend]


def tally_of(assembly: Assembly) -> Tally:
    """Charges counted in memory, for a run that stores no messages."""
    spec = assembly.spec
    made: dict[int, PrivacyEvent] = {}
    charged = []
    for part in assembly.parts:
        key = id(part.mechanism)
        if key not in made:
            made[key] = charged_event(
                assembly.channel,
                part.mechanism,
                spec.privacy.adjacency,
                assembly.algorithm.record_sampling_rate,
            )
        charged.append(made[key])
    names = [part.client for part in assembly.parts]
    budgets = [assembly.budgets.get(name) for name in names]
    return Tally(names, charged, budgets, uplinks=assembly.algorithm.uplinks)


@contextlib.contextmanager
def passing_books(assembly: Assembly) -> Iterator[Books]:
    """A tally, or a ledger that is thrown away where messages are stored."""
    if assembly.spec.runtime.messages != "stored":
        yield tally_of(assembly)
        return
    with (
        tempfile.TemporaryDirectory(prefix="sottovoce-") as folder,
        Ledger(Path(folder) / "ledger.sqlite", create=True) as ledger,
    ):
        yield ledger


def training_of(assembly: Assembly, books: Books, backend_of: BackendOf | None = None) -> Training:
    """The run, with whatever collects its rounds; first, budgets are entered into the ledger."""
    if isinstance(books, Ledger):
        with books.transaction():
            for client, budget in assembly.budgets.items():
                books.set_budget(client, budget)
    return Training(
        run=assembly.run,
        task=assembly.task,
        clients=assembly.clients,
        algorithm=assembly.algorithm,
        sampling=assembly.sampling,
        schedule=SeededRandomness(assembly.spec.seed),
        backend=(backend_of or backend_here)(assembly, books),
        downlink=assembly.spec.runtime.downlink,
        minimum_clients=assembly.spec.privacy.minimum_clients,
    )


def backend_here(assembly: Assembly, books: Books) -> Backend:
    """All clients in this process."""
    spec = assembly.spec
    rotated = spec.rotation == "on"
    if isinstance(books, Ledger):
        assert not isinstance(assembly.channel, Central)  # it has no messages to store
        return StoredMessages(
            run=assembly.run,
            dimension=assembly.task.dimension,
            task=assembly.task,
            clients=assembly.clients,
            parts=assembly.parts,
            algorithm=assembly.algorithm,
            adjacency=spec.privacy.adjacency,
            randomness=randomness_of(spec),
            ledger=books,
            rotated=rotated,
            channel=assembly.channel,
            together=1 if spec.runtime.deterministic else None,
        )
    kind: Callable[..., Backend]
    if isinstance(assembly.channel, Central):
        kind = CentralSums
    else:
        kind = DrawnMessages if spec.runtime.messages == "none" else PackedMessages
    return kind(
        run=assembly.run,
        task=assembly.task,
        clients=assembly.clients,
        parts=assembly.parts,
        algorithm=assembly.algorithm,
        randomness=SeededRandomness(spec.seed),
        tally=books,
        rotated=rotated,
        channel=assembly.channel,
    )
