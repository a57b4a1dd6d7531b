"""`Client` and `Server`: the two sides of a federated loop of one's own.

    client = Client("clinic-3", mechanism, ledger=ledger, budget=Budget(epsilon=2.0, delta=1e-5))
    message = client.send(update, round=1)  # on the client's machine

    server = Server(mechanism, clients=["clinic-1", "clinic-2", "clinic-3"])
    server.receive("clinic-3", message)  # on the server's
    mean = server.mean()

Both make the same public plan of a round; what they do with it is in `client` and `server`. How
messages travel is up to the caller. The server sees every message and knows who sent it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball, Vector
from sottovoce.core.errors import ParameterError, UnknownNameError, WireError
from sottovoce.core.randomness import Randomness, SystemRandomness
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Budget
from sottovoce.mechanisms.encoding import flat
from sottovoce.mechanisms.mechanism import Mechanism, has_a_range
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.protocol.client import Refused, Request, privatise
from sottovoce.protocol.plan import ClientPlan, RoundPlan
from sottovoce.protocol.server import RoundServer

# Whether updates are rotated at random before they are encoded, as `rotation` in a spec.
WhetherRotated = Literal["auto", "on", "off"]
RUN = "own-loop"
_WANTED = {
    "mechanism": "a mechanism, such as sottovoce.calibrate(...) returns",
    "ledger": "a sottovoce.Ledger, such as sottovoce.Ledger(path, create=True)",
    "budget": "a sottovoce.Budget(epsilon=..., delta=...)",
}


class Client:
    """One client: it checks and clips an update, charges its ledger, encodes, seals and stores.

    Args:
        name: Whose account it is in the ledger, and what the server calls it.
        mechanism: What encodes; the server must have one with the same parameters. One whose
            `sampling` is 'float' is for simulation: its last bits leak.
        ledger: Where every message is charged, durably, before anything of it is encoded.
        budget: The most that the client may spend over everything in the ledger; set once, and
            kept there. Without one charges are only recorded.
        adjacency: Which change of the data is hidden [the budget's, or zero-out].
        run: The name of this training, the same for the server. A new training with the same ledger
            needs a new name: the same one would send what was sent before.
        rotation: "on", "off", or "auto": where the mechanism gains by it. The same for the server.
        randomness: Where keys come from [the operating system].
    """

    def __init__(
        self,
        name: str,
        mechanism: Mechanism,
        *,
        ledger: Ledger,
        budget: Budget | None = None,
        adjacency: str | Adjacency | None = None,
        run: str = RUN,
        rotation: WhetherRotated = "auto",
        randomness: Randomness | None = None,
    ) -> None:
        _check_name("a client's name", name)
        _check_name("run", run)
        _check_kind("mechanism", mechanism, hasattr(mechanism, "input_domain"))
        _check_kind("ledger", ledger, isinstance(ledger, Ledger))
        _check_kind("budget", budget, isinstance(budget, Budget | None))
        self.name, self.mechanism, self.ledger = name, mechanism, ledger
        self._run, self._randomness = run, randomness or SystemRandomness()
        self._rotated = _is_rotated(mechanism, rotation)
        self._part = ClientPlan(client=name, mechanism=mechanism, weight=1.0)
        limit = budget or ledger.budget(name)
        self._unit = _unit(mechanism, limit)
        self._adjacency = _adjacency(adjacency, limit)
        if budget is not None:
            ledger.set_budget(name, budget)

    def send(self, update: Any, *, round: int) -> bytes:
        """Return the sealed message of a round, which is charged and stored before it is returned.

        A round that was sent before gives the stored bytes again, whatever `update` is now, and
        charges nothing: a retry after a crash or a lost connection costs no privacy.

        Args:
            update: Floating-point numbers, as many as the mechanism has dimensions, in any shape,
                from numpy or torch. It is clipped; a mean of several records (`records` of the
                domain) is one only if each record was clipped before.
            round: The round's number, from 1; another one for each message.

        Raises:
            DomainError: The update has another size, or is not finite. Nothing is charged.
            BudgetExhaustedError: The budget has no room for one more message. Nothing is charged.
        """
        plan = _plan(self._run, round, (self._part,), self._rotated, self._adjacency, self._unit)
        values = flat(update, self.mechanism.input_domain.dimension)
        request = Request(part=self._part, uplink=0, values=values)
        (outcome,) = privatise(plan, [request], self.ledger, self._randomness)
        if isinstance(outcome, Refused):
            raise outcome.error
        return outcome.message


class Server:
    """The server: it opens messages of one round after another, and adds them up.

    Args:
        mechanism: With the same parameters as the clients'.
        clients: The names of those who may send, or a mapping from names to public weights.
        run: The name of this training, the same for the clients.
        rotation: The same as the clients'.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        clients: Iterable[str] | Mapping[str, float],
        run: str = RUN,
        rotation: WhetherRotated = "auto",
    ) -> None:
        _check_name("run", run)
        _check_kind("mechanism", mechanism, hasattr(mechanism, "input_domain"))
        if isinstance(clients, str):
            raise ParameterError(f"clients must be several names, got '{clients}'; use a list")
        weights = clients.items() if isinstance(clients, Mapping) else [(n, 1.0) for n in clients]
        if not weights:
            raise ParameterError("clients must name at least one client")
        for name, _ in weights:
            _check_name("a client's name", name)
        self.mechanism = mechanism
        self._run, self._rotated = run, _is_rotated(mechanism, rotation)
        self._parts = tuple(
            ClientPlan(client=name, mechanism=mechanism, weight=weight) for name, weight in weights
        )
        self._open(1)

    @property
    def round(self) -> int:
        """The number of the open round: 1 to begin with."""
        return self._number

    @property
    def received(self) -> int:
        """How many messages of the open round have been added up."""
        return self._server.received

    def open_round(self, number: int) -> None:
        """Close the open round and open a later one; the open one's own number changes nothing."""
        parameter_rules.integer("round", number, low=1, high=2**32 - 1)
        if number == self._number:
            return
        if number < self._number:
            raise ParameterError(
                f"round {number} is over: round {self._number} is open; go on from there, or make "
                "a new Server"
            )
        self._open(number)

    def receive(self, name: str, message: bytes) -> None:
        """Add a client's message of the open round.

        Raises:
            WireError: The client is unknown or has answered the round already, or the message is
                not exactly what was announced (of another round, mechanism or run, or damaged).
                Nothing is added.
        """
        if not isinstance(message, bytes | bytearray | memoryview):
            raise WireError(f"a message is bytes, got {type(message).__name__}")
        self._server.receive(name, bytes(message))

    def mean(self) -> Vector:
        """Return the mean of what has arrived in the open round, weighted if clients are.

        Raises:
            WireError: Nothing has arrived.
        """
        mean = self._server.result()
        if mean is None:
            raise WireError(f"no message has arrived in round {self._number}; there is no mean")
        return mean

    def _open(self, number: int) -> None:
        plan = _plan(self._run, number, self._parts, self._rotated)
        self._server = RoundServer(plan, dimension=self.mechanism.input_domain.dimension)
        self._number = number


def _plan(
    run: str,
    number: int,
    parts: tuple[ClientPlan, ...],
    rotated: bool,
    # What is charged is the client's to know: no message says it, and the server needs neither.
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    unit: Unit = Unit.CLIENT,
) -> RoundPlan:
    """Return the plan of a round; a client needs its own part only, the server all of them."""
    dimension = parts[0].mechanism.input_domain.dimension
    parameter_rules.integer("round", number, low=1, high=2**32 - 1)
    return RoundPlan(
        run=run,
        round=number,
        unit=unit,
        adjacency=adjacency,
        clients=parts,
        rotation=Rotation.of_round(run, number, dimension) if rotated else None,
    )


def _check_kind(what: str, given: object, is_right: bool) -> None:
    if not is_right:
        raise ParameterError(f"{what} must be {_WANTED[what]}, got {given!r}")


def _is_rotated(mechanism: Mechanism, asked: str) -> bool:
    euclidean = isinstance(mechanism.input_domain, L2Ball)
    match asked:
        case "auto":
            return euclidean and has_a_range(mechanism)
        case "on" if not euclidean:
            raise ParameterError(
                "rotation can only be 'on' with Euclidean clipping (an L2Ball), and the mechanism "
                f"has {mechanism.input_domain}; leave it out"
            )
        case "on" | "off":
            return asked == "on"
        case _:
            raise UnknownNameError.among("rotation", asked, ["auto", "on", "off"])


def _unit(mechanism: Mechanism, budget: Budget | None) -> Unit:
    """Return what a charge protects: of a mean of several records, one of them and no more."""
    records = getattr(mechanism.input_domain, "records", 1)
    if budget is None:
        return Unit.CLIENT if records == 1 else Unit.SAMPLE
    if records > 1 and budget.unit is Unit.CLIENT:
        raise ParameterError(
            f"the budget is per client, and the mechanism hides one of {records} records; give "
            "Budget(..., unit='sample'), or calibrate the mechanism for records=1"
        )
    if records == 1 and budget.unit is Unit.SAMPLE and budget.adjacency is Adjacency.ZERO_OUT:
        raise ParameterError(
            "the whole update is clipped, so one sample may turn it around, and zero-out counts "
            "half of that: give Budget(..., unit='client') or adjacency='replace-one', or "
            "calibrate for several records and clip each of them"
        )
    return budget.unit


def _adjacency(asked: str | Adjacency | None, budget: Budget | None) -> Adjacency:
    if asked is None:
        return Adjacency.ZERO_OUT if budget is None else budget.adjacency
    adjacency = Adjacency.parse(asked)
    if budget is not None and budget.adjacency is not adjacency:
        raise ParameterError(
            f"adjacency is {adjacency}, and the client's budget is {budget.adjacency}; give one of "
            "them"
        )
    return adjacency


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ParameterError(f"{what} must be a word, got {name!r}")
