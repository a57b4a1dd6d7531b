"""What `secure_sum` and `shuffler` share: honest clients, colluders, and who keeps the promise.

`protocol` says whether a trusted process computes what is seen (`simulated`), or a cryptographic
protocol does. What is charged is the same, because it depends on what is seen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from sottovoce.core import parameter_rules
from sottovoce.core.errors import ConfigError, ParameterError
from sottovoce.core.sections import check_keys, whole
from sottovoce.protocol.channels.channel import Channel

SIMULATED, PAIRWISE, TWO_SERVER = "simulated", "pairwise", "two_server"


@dataclass(frozen=True, slots=True, kw_only=True)
class HidingChannel(Channel):
    """A channel that hides each client among the others, by a protocol or simulated.

    Attributes:
        BACKENDS: The backend that runs each protocol.
        WIRE_KIND: The channel's name in the hash of a plan.
        minimum_clients: The number of clients that follow the protocol and hide each other; the
            accounting counts them.
        protocol: Who computes what is seen: "simulated", or one of the protocols of the channel.
        colluders: The most clients that may work together against the others. Something is seen
            only of at least `minimum_clients + colluders` clients. Default: 1 for a real protocol,
            because the model is published and every client sees it; 0 if simulated.
    """

    LEFT_OUT_AS_DEFAULT: ClassVar[tuple[str, ...]] = ("protocol", "colluders")
    BACKENDS: ClassVar[Mapping[str, str]] = {}
    WIRE_KIND: ClassVar[str] = ""

    minimum_clients: int
    protocol: str = SIMULATED
    colluders: int | None = field(default=None, metadata=whole(0, 2**20))

    def __post_init__(self) -> None:
        check_keys(self)
        _ = self.visibility  # Checks the number.
        known = (SIMULATED, *self.BACKENDS)
        if self.protocol not in known:
            raise ParameterError(
                f"channel.protocol must be one of {', '.join(known)}, got {self.protocol!r}"
            )
        if self.protocol == SIMULATED:
            return
        parameter_rules.integer("channel.colluders", self.most_colluders, low=1, high=2**20)
        if self.minimum_clients < 2:
            raise ParameterError(
                f"channel.minimum_clients = {self.minimum_clients}: one honest client hides among "
                "no others; set it to at least 2"
            )

    @property
    def most_colluders(self) -> int:
        """The value of `colluders` or its default, which depends on the protocol."""
        if self.colluders is None:
            return int(self.protocol != SIMULATED)
        return self.colluders

    @property
    def wire_name(self) -> str:
        """The text that stands for the channel in the hash of a plan; it never changes."""
        if self.protocol == SIMULATED and not self.most_colluders:
            return f"{self.WIRE_KIND}(minimum_clients={self.minimum_clients})"
        return (
            f"{self.WIRE_KIND}(minimum_clients={self.minimum_clients}, protocol={self.protocol}, "
            f"colluders={self.most_colluders})"
        )

    @property
    def trusts_server(self) -> bool:
        """Whether the cost relies on the server's promise: only where it is simulated."""
        return self.protocol == SIMULATED

    def check_federation(self, backend: str) -> None:
        served = self.BACKENDS.get(self.protocol)
        if served is not None and backend != served:
            raise ConfigError(
                f"the protocol '{self.protocol}' runs between real machines, and "
                f"runtime.backend = '{backend}' has none; use 'sottovoce deploy run', or simulate "
                "the same with channel.protocol = 'simulated'"
            )
