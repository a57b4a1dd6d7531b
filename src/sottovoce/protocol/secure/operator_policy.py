"""What an operator refuses: too few clients, too large vectors, clients not on its list."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from sottovoce.core import parameter_rules
from sottovoce.core.errors import WireError
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.operators import Admission
from sottovoce.protocol.secure.two_server_messages import MAX_VECTOR_BYTES, vector_bytes

_LEAST_HONEST = 2
# Returns the keys of the clients whom an operator admits at present, by name.
ListedClients: TypeAlias = Callable[[], Mapping[str, bytes]]


def check_operator_policy(announcement: Announcement, minimum: int, colluders: int) -> None:
    """Raise unless an operator may take part in an attempt.

    Raises:
        WireError: Its minimum is below the operator's, or leaves fewer than two honest clients, or
            the vectors of one client are too large to be kept.
    """
    least = max(minimum, colluders + _LEAST_HONEST)
    if announcement.attempt.threshold < least:
        raise WireError(
            f"expected at least {least} clients, got {announcement.attempt.threshold} in an "
            "announcement"
        )
    if announcement.attempt.protocol is not Protocol.TWO_SERVER_SUM:
        return
    size = announcement.attempt.uplinks * vector_bytes(announcement)
    if size > MAX_VECTOR_BYTES:
        raise WireError(
            f"expected vectors of at most {MAX_VECTOR_BYTES} bytes of each client, got {size} in "
            "an announcement; use fewer coordinates, levels or uplinks"
        )


def check_operator_numbers(minimum: int, colluders: int) -> None:
    """Raise ParameterError unless an operator's policy is one."""
    parameter_rules.integer("colluders", colluders, low=1, high=2**31)
    parameter_rules.integer("minimum", minimum, low=colluders + _LEAST_HONEST, high=2**31)


def check_listed(listed: Mapping[str, bytes] | None, admission: Admission) -> None:
    """Raise unless a client is on the list that an operator read for an attempt; None lists all.

    Raises:
        WireError: The client was removed, or was admitted after the announcement.
    """
    if listed is not None and listed.get(admission.name) != admission.key:
        raise WireError(
            f"the client '{admission.name}' is not on the operator's list of this announcement; "
            "if it was admitted since, it counts from the next one on"
        )
