"""`Client` and `Server`: the two sides of a round, for a federated training loop of your own.

    client = Client("clinic-3", mechanism, ledger=ledger, budget=Budget(epsilon=2.0, delta=1e-5))
    message = client.send(update, round=1)  # on the client's machine

    server = Server(mechanism, clients=["clinic-1", "clinic-2", "clinic-3"])
    server.receive("clinic-3", message)  # on the server's machine
    mean = server.mean()

Client and server derive the same public plan of a round from the same arguments. The caller
transports the messages. The server sees every message and knows who sent it (the channel
'direct'), so the guarantee is local differential privacy: it does not rest on trust in the server.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from sottovoce.core import parameter_rules
from sottovoce.core.adjacency import Adjacency, Unit
from sottovoce.core.domains import L2Ball, Vector
from sottovoce.core.errors import ParameterError, UnknownNameError, WireError
from sottovoce.core.randomness import Randomness, SystemRandomness
from sottovoce.ledger.ledger import Ledger
from sottovoce.ledger.records import Budget
from sottovoce.mechanisms.encoding import flatten_update
from sottovoce.mechanisms.mechanism import Mechanism, has_finite_codes
from sottovoce.mechanisms.rotation import Rotation
from sottovoce.protocol.client import PrivatizationRequest, Refused, privatize
from sottovoce.protocol.plan import ClientPlan, RoundPlan
from sottovoce.protocol.server import RoundServer

if TYPE_CHECKING:
    from sottovoce.protocol.relayed import RelayAccess
    from sottovoce.protocol.secure.announcement import Announcement

# Whether updates are rotated at random before they are encoded, as for `rotation` in a spec.
RotationChoice = Literal["auto", "on", "off"]
RUN = "own-loop"
_WANTED = {
    "mechanism": "a mechanism, such as sottovoce.calibrate(...) returns",
    "ledger": "a sottovoce.Ledger, such as sottovoce.Ledger(path, create=True)",
    "budget": "a sottovoce.Budget(epsilon=..., delta=...)",
}


class Client:
    """A client that turns updates into private messages and charges each of them to its ledger.

    For every message it checks and clips the update, charges the privacy event durably, encodes,
    seals, and stores the message before it returns it.

    Args:
        name: The name of the client's account in the ledger, and its name at the server.
        mechanism: The mechanism that encodes updates. The server needs one with the same
            parameters. Mechanisms whose `sampling` is 'float' are for simulation only:
            floating-point noise leaks information in its last bits.
        ledger: The ledger in which every message is charged, durably, before it is encoded.
        budget: The most that the client may spend over everything in the ledger. It is written to
            the ledger once and stays in force. Default: the budget that the ledger has for the
            client; if it has none, charges are recorded, not limited.
        adjacency: The change of the data that is hidden, 'zero-out' or 'replace-one'. Default: the
            budget's, or 'zero-out' if there is no budget.
        run: The name of this training, the same at the server. A new training with the same ledger
            needs a new name: with an old name `send` returns the messages that were sent before.
        rotation: Whether updates are rotated at random before they are encoded: "on", "off", or
            "auto" (rotate if clipping is Euclidean and a coordinate is sent as one of finitely many
            codes). The same at the server.
        randomness: The source of keys. Default: the operating system.

    Attributes:
        name: The name of the client.
        mechanism: The mechanism that encodes updates.
        ledger: The ledger in which messages are charged.

    Raises:
        ParameterError: An argument has the wrong type, the adjacency differs from the budget's, the
            budget protects a unit that the mechanism does not protect, or `rotation` is "on"
            without Euclidean clipping.
        UnknownNameError: `adjacency` or `rotation` is not one of the words above.
        LedgerError: The ledger refuses the budget, for example because another one is in force.

    Examples:
        >>> import numpy as np
        >>> from sottovoce import Budget, Client, GaussHermite, L2Ball, Server
        >>> from sottovoce.ledger.ledger import temporary_ledger
        >>> domain = L2Ball(radius=1.0, dimension=4)
        >>> mechanism = GaussHermite(input_domain=domain, levels=2, noise_multiplier=5.0)
        >>> with temporary_ledger() as ledger:  # yours: Ledger("ledger.db", create=True)
        ...     budget = Budget(epsilon=2.0, delta=1e-5)
        ...     client = Client("clinic-3", mechanism, ledger=ledger, budget=budget)
        ...     message = client.send(np.array([0.3, -0.1, 0.2, 0.0]), round=1)
        >>> len(message)  # 44 bytes of header, 4 bits of payload
        45
        >>> server = Server(mechanism, clients=["clinic-1", "clinic-3"])
        >>> server.receive("clinic-3", message)
        >>> server.mean().shape
        (4,)
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
        rotation: RotationChoice = "auto",
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
        """Charge, encode and store the message of a round, and return it.

        If a message of this round is stored already, its bytes are returned again, whatever
        `update` is now, and nothing is charged: a retry after a crash or a lost connection costs no
        privacy.

        Args:
            update: Floating-point numbers from numpy or torch, in any shape, as many as the
                mechanism has dimensions. They are clipped. If the mechanism's domain has `records`
                > 1, the update must be the mean of that many records, each of which was clipped
                before; otherwise the charge does not cover it.
            round: The number of the round, starting from 1; a different one for each message.

        Returns:
            The sealed message, to be passed to `Server.receive`.

        Raises:
            DomainError: The update has the wrong size or is not finite. Nothing is charged.
            BudgetExhaustedError: One more message would exceed the budget. Nothing is charged.
            ParameterError: The round is not an integer from 1 to 2^32 - 1.
            LedgerError: The stored message of this round was made with other parameters, or the
                ledger cannot be used.
        """
        plan = _plan(self._run, round, (self._part,), self._rotated, self._adjacency, self._unit)
        values = flatten_update(update, self.mechanism.input_domain.dimension)
        request = PrivatizationRequest(part=self._part, uplink=0, values=values)
        (outcome,) = privatize(plan, [request], self.ledger, self._randomness)
        if isinstance(outcome, Refused):
            raise outcome.error
        return outcome.message

    def send_through(self, relay: "RelayAccess", update: Any) -> "Announcement":
        """Answer the round that a collector announces, through a relay that does not collude.

        The message by itself is never seen: of a sum only the sum over many clients, of a shuffle
        only the messages of many clients without senders. The charge counts on as many honest
        clients as the announcement guarantees. Asked again, the client sends the stored bytes and
        charges nothing; a new attempt at a round draws fresh codes and is charged again.

        Args:
            relay: The way to the relay, such as `sottovoce.deployment.RelayLink`.
            update: As for `send`.

        Returns:
            The announcement that was answered.

        Raises:
            DomainError: The update has the wrong size or is not finite. Nothing is charged.
            BudgetExhaustedError: The budget does not cover the message. Nothing is charged.
            PolicyError: Too few honest clients are guaranteed, or the terms of the charge are
                others than before with this client's `run`. Nothing is charged.
            WireError: The announcement is of another mechanism, not the collector's, or not open.
                Nothing is charged.
        """
        from sottovoce.protocol.relayed import RelayedClient

        return RelayedClient(
            part=self._part,
            ledger=self.ledger,
            adjacency=self._adjacency,
            unit=self._unit,
            is_rotated=self._rotated,
            run=self._run,
            randomness=self._randomness,
        ).send(relay, update)


class Server:
    """A server that checks the messages of one round after another and averages them.

    It needs no secret and is not trusted: messages are privatized before it sees them. It
    identifies the sender of a message only by the name that the caller passes, so the transport
    must authenticate clients.

    Args:
        mechanism: A mechanism with the same parameters as the clients'.
        clients: The names of the clients that may send, or a mapping from names to public weights.
        run: The name of this training, the same at the clients.
        rotation: The same as at the clients.

    Attributes:
        mechanism: The mechanism that decodes messages.

    Raises:
        ParameterError: No client is named, a name is empty or occurs twice, a weight is not
            positive, `rotation` is "on" without Euclidean clipping, or an argument has the wrong
            type.
        UnknownNameError: `rotation` is not "auto", "on" or "off".

    Examples:
        >>> from sottovoce import GaussHermite, L2Ball, Server
        >>> domain = L2Ball(radius=1.0, dimension=4)
        >>> mechanism = GaussHermite(input_domain=domain, levels=2, noise_multiplier=5.0)
        >>> server = Server(mechanism, clients={"clinic-1": 2.0, "clinic-3": 1.0})  # with weights
        >>> server.round, server.received
        (1, 0)
        >>> server.open_round(2)
        >>> server.round
        2
    """

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        clients: Iterable[str] | Mapping[str, float],
        run: str = RUN,
        rotation: RotationChoice = "auto",
    ) -> None:
        _check_name("run", run)
        _check_kind("mechanism", mechanism, hasattr(mechanism, "input_domain"))
        if isinstance(clients, str):
            raise ParameterError(f"clients must be a list of names, got the string '{clients}'")
        weights = clients.items() if isinstance(clients, Mapping) else [(n, 1.0) for n in clients]
        if not weights:
            raise ParameterError("clients must contain at least one name, got none")
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
        """The number of the open round; the first is 1."""
        return self._number

    @property
    def received(self) -> int:
        """The number of messages added in the open round."""
        return self._server.received

    def open_round(self, number: int) -> None:
        """Close the open round and open a later one; do nothing if `number` is the open round.

        Args:
            number: The number of the round to open, not smaller than `round`.

        Raises:
            ParameterError: The round is over already, or the number is out of range.
        """
        parameter_rules.integer("round", number, low=1, high=2**32 - 1)
        if number == self._number:
            return
        if number < self._number:
            raise ParameterError(
                f"round {number} is over, round {self._number} is open; open a later round, or "
                "create a new Server"
            )
        self._open(number)

    def receive(self, name: str, message: bytes) -> None:
        """Check a client's message of the open round and add it to the mean.

        Args:
            name: The client that sent the message, as the transport has authenticated it.
            message: The bytes that `Client.send` returned.

        Raises:
            WireError: The client is unknown or has answered this round already, or the message is
                not what the plan announces: of another round, mechanism, run or client, or damaged.
                Nothing is added.
        """
        if not isinstance(message, bytes | bytearray | memoryview):
            raise WireError(f"a message must be bytes, got {type(message).__name__}")
        self._server.receive(name, bytes(message))

    def mean(self) -> Vector:
        """Return the mean of the messages that have arrived in the open round.

        The mean is weighted if `clients` was a mapping to weights. It estimates the mean of the
        clipped updates of the clients that answered; it can be read repeatedly while messages
        arrive.

        Returns:
            One number for each coordinate.

        Raises:
            WireError: No message has arrived in this round.
        """
        mean = self._server.result()
        if mean is None:
            raise WireError(
                f"no message has arrived in round {self._number}, so there is no mean; call "
                "receive first"
            )
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
    # Adjacency and unit decide what a client charges. No message depends on them, so the server
    # does not need to know them.
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    unit: Unit = Unit.CLIENT,
) -> RoundPlan:
    """Return the plan of a round; a client needs only its own part, the server all of them."""
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
            return euclidean and has_finite_codes(mechanism)
        case "on" if not euclidean:
            raise ParameterError(
                "rotation = 'on' needs a mechanism with Euclidean clipping (an L2Ball), got "
                f"{mechanism.input_domain}; set rotation = 'auto' or 'off'"
            )
        case "on" | "off":
            return asked == "on"
        case _:
            raise UnknownNameError.among("rotation", asked, ["auto", "on", "off"])


def _unit(mechanism: Mechanism, budget: Budget | None) -> Unit:
    """Return the unit that a charge protects, a sample or the whole client.

    A mechanism for a mean of several records hides only one of them, so it cannot serve a budget
    that protects clients.
    """
    records = getattr(mechanism.input_domain, "records", 1)
    if budget is None:
        return Unit.CLIENT if records == 1 else Unit.SAMPLE
    if records > 1 and budget.unit is Unit.CLIENT:
        raise ParameterError(
            f"the budget protects whole clients, but the mechanism hides only one of {records} "
            "records; use Budget(..., unit='sample') to protect single records, or calibrate the "
            "mechanism with records=1, which hides the whole update with more noise"
        )
    if records == 1 and budget.unit is Unit.SAMPLE and budget.adjacency is Adjacency.ZERO_OUT:
        raise ParameterError(
            "the mechanism clips the whole update (records=1), so one sample can move it from one "
            "side of the ball to the other, and zero-out adjacency covers only half of that "
            "distance; use Budget(..., unit='client') or adjacency='replace-one', or calibrate "
            "with records > 1 and clip each record"
        )
    return budget.unit


def _adjacency(asked: str | Adjacency | None, budget: Budget | None) -> Adjacency:
    if asked is None:
        return Adjacency.ZERO_OUT if budget is None else budget.adjacency
    adjacency = Adjacency.parse(asked)
    if budget is not None and budget.adjacency is not adjacency:
        raise ParameterError(
            f"adjacency is '{adjacency}', but the client's budget has '{budget.adjacency}'; leave "
            "out the argument adjacency, or use a budget with the same adjacency"
        )
    return adjacency


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ParameterError(f"{what} must be a string that is not blank, got {name!r}")
