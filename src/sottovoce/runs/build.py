"""The training of a run, charged in a ledger or counted in memory."""

import contextlib
from collections.abc import Callable, Iterator

from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.rounds import StoredMessages
from sottovoce.federated.simulation.central import CentralSums
from sottovoce.federated.simulation.draws import DrawnMessages
from sottovoce.federated.simulation.packed import PackedMessages
from sottovoce.federated.training import Backend, Training
from sottovoce.ledger.ledger import Ledger, temporary_ledger
from sottovoce.ledger.tally import Tally
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.runs.inputs import randomness_of
from sottovoce.runs.parts import Assembly

BackendOf = Callable[[Assembly, Ledger], Backend]


def training_of(
    assembly: Assembly, ledger: Ledger | None = None, backend_of: BackendOf | None = None
) -> Training:
    """Return the training of a run, with its budgets entered.

    Args:
        assembly: The parts of the run.
        ledger: Where messages are charged and stored; None to count charges in memory.
        backend_of: Makes what collects the rounds from a ledger; by default all clients are here.
    """
    backend: Backend
    if ledger is None:
        assert backend_of is None, "messages of clients elsewhere are stored"
        backend = _counted_here(assembly)
        backend.record.set_budgets(assembly.budgets)
    else:
        ledger.set_budgets(assembly.budgets)
        backend = (backend_of or stored_here)(assembly, ledger)
    return Training(
        run=assembly.run,
        task=assembly.task,
        clients=assembly.clients,
        algorithm=assembly.algorithm,
        sampling=assembly.sampling,
        schedule=SeededRandomness(assembly.spec.seed),
        backend=backend,
        downlink=assembly.spec.runtime.downlink,
        minimum_clients=assembly.spec.privacy.minimum_clients,
    )


@contextlib.contextmanager
def temporary_training(assembly: Assembly) -> Iterator[Training]:
    """Yield a training of which nothing is kept; stored messages have a ledger for its duration."""
    stored = assembly.spec.runtime.messages == "stored"
    with temporary_ledger() if stored else contextlib.nullcontext() as ledger:
        yield training_of(assembly, ledger)


def stored_here(assembly: Assembly, ledger: Ledger) -> Backend:
    """Return the backend that stores every message, with all clients in this process."""
    assert not assembly.channel.noise_at_server  # it has no messages to store
    spec = assembly.spec
    return StoredMessages(
        run=assembly.run,
        dimension=assembly.task.dimension,
        task=assembly.task,
        clients=assembly.clients,
        parts=assembly.parts,
        algorithm=assembly.algorithm,
        adjacency=spec.privacy.adjacency,
        randomness=randomness_of(spec),
        ledger=ledger,
        rotated=spec.rotation == "on",
        channel=assembly.channel,
        together=1 if spec.runtime.deterministic else None,
    )


def _counted_here(assembly: Assembly) -> Backend:
    """Return the backend that counts charges in memory and stores nothing."""
    spec = assembly.spec
    kind: Callable[..., Backend]
    if assembly.channel.noise_at_server:
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
        tally=tally_of(assembly),
        rotated=spec.rotation == "on",
        channel=assembly.channel,
    )


def tally_of(assembly: Assembly) -> Tally:
    """Return a record in memory of what each client is charged for a message."""
    made: dict[int, PrivacyEvent] = {}
    charged = []
    for part in assembly.parts:
        key = id(part.mechanism)
        if key not in made:
            made[key] = assembly.terms(part.mechanism)
        charged.append(made[key])
    names = [part.client for part in assembly.parts]
    return Tally(names, charged, uplinks=assembly.algorithm.uplinks)
