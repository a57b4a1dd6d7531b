"""Build the training of a resolved run, charged in a ledger or counted in memory."""

import contextlib
from collections.abc import Callable, Iterator

from sottovoce.core.randomness import SeededRandomness
from sottovoce.federated.rounds import StoredMessages
from sottovoce.federated.simulation.central import CentralSums
from sottovoce.federated.simulation.draws import DrawnMessages
from sottovoce.federated.simulation.packed import PackedMessages
from sottovoce.federated.training import RoundBackend, Training
from sottovoce.ledger.ledger import Ledger, temporary_ledger
from sottovoce.ledger.tally import Tally
from sottovoce.privacy.events import PrivacyEvent
from sottovoce.protocol.plan import message_dimension
from sottovoce.runs.inputs import randomness_of
from sottovoce.runs.resolve import Resolved

BackendFactory = Callable[[Resolved, Ledger], RoundBackend]


def build(
    resolved: Resolved,
    ledger: Ledger | None = None,
    make_backend: BackendFactory | None = None,
    schedule: SeededRandomness | None = None,
) -> Training:
    """Return the training of a run, with its clients' budgets set; nothing is charged yet.

    Args:
        resolved: The run, checked and calibrated.
        ledger: Where messages are charged and stored, and where the budgets are written; None to
            count charges in memory and store no message.
        make_backend: A function of the run and its ledger that returns the object which collects
            the messages of each round; only with a ledger. By default all clients are in this
            process.
        schedule: The randomness of the cohorts; by default that of the spec's seed.

    Returns:
        The training; its methods train round by round.
    """
    backend: RoundBackend
    if ledger is None:
        assert make_backend is None, "messages of clients elsewhere are stored"
        backend = _counted_here(resolved)
        backend.record.set_budgets(resolved.budgets)
    else:
        ledger.set_budgets(resolved.budgets)
        backend = (make_backend or make_stored_backend)(resolved, ledger)
    return Training(
        run=resolved.run,
        task=resolved.task,
        clients=resolved.clients,
        algorithm=resolved.algorithm,
        sampling=resolved.sampling,
        schedule=schedule or SeededRandomness(resolved.spec.seed),
        backend=backend,
        downlink=resolved.spec.runtime.downlink,
        minimum_clients=resolved.spec.privacy.minimum_clients,
    )


@contextlib.contextmanager
def temporary_training(resolved: Resolved) -> Iterator[Training]:
    """Yield the training of a run (see `build`) of which nothing is kept.

    Where the run stores messages, they go to a ledger that exists only within the context.
    """
    stored = resolved.spec.runtime.messages == "stored"
    with temporary_ledger() if stored else contextlib.nullcontext() as ledger:
        yield build(resolved, ledger)


def make_stored_backend(resolved: Resolved, ledger: Ledger) -> RoundBackend:
    """Return the backend that stores all messages in a ledger; all clients are in this process."""
    assert not resolved.channel.noise_at_server  # Such a channel has no messages to store.
    spec = resolved.spec
    return StoredMessages(
        run=resolved.run,
        dimension=message_dimension(resolved.parts),
        task=resolved.task,
        clients=resolved.clients,
        parts=resolved.parts,
        algorithm=resolved.algorithm,
        adjacency=spec.privacy.adjacency,
        randomness=randomness_of(spec),
        ledger=ledger,
        rotated=spec.rotation == "on",
        channel=resolved.channel,
        together=1 if spec.runtime.deterministic else None,
    )


def _counted_here(resolved: Resolved) -> RoundBackend:
    """Return the backend that counts charges in memory and stores nothing."""
    spec = resolved.spec
    kind: Callable[..., RoundBackend]
    if resolved.channel.noise_at_server:
        kind = CentralSums
    else:
        kind = DrawnMessages if spec.runtime.messages == "none" else PackedMessages
    return kind(
        run=resolved.run,
        task=resolved.task,
        clients=resolved.clients,
        parts=resolved.parts,
        algorithm=resolved.algorithm,
        randomness=SeededRandomness(spec.seed),
        tally=tally_of(resolved),
        rotated=spec.rotation == "on",
        channel=resolved.channel,
    )


def tally_of(resolved: Resolved) -> Tally:
    """Return an empty record of charges in memory; it knows what a message costs each client."""
    made: dict[int, PrivacyEvent] = {}
    charged = []
    for part in resolved.parts:
        key = id(part.mechanism)
        if key not in made:
            made[key] = resolved.terms(part.mechanism)
        charged.append(made[key])
    names = [part.client for part in resolved.parts]
    return Tally(names, charged, uplinks=resolved.algorithm.uplinks)
