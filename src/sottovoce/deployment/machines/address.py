"""The address of a link: a host and a port."""

import ipaddress
import re
import socket
from dataclasses import dataclass

from sottovoce.core.errors import ParameterError

LOOPBACK = "127.0.0.1"
_NAME = re.compile(r"[a-z0-9_]([a-z0-9._-]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The host and port of a link, written `host:port`; an IPv6 host is written in brackets.

    Attributes:
        host: A lower-case DNS name or an IP address, without brackets.
        port: The TCP port, from 1 to 65535.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *, where: str = "") -> "Address":
        """Return the address that a text gives as HOST:PORT.

        Args:
            text: A DNS name, an IPv4 address or an IPv6 address in brackets, then a colon and a
                port from 1 to 65535.
            where: A prefix for the error message that says where the text comes from.

        Returns:
            The address. Its host is a DNS name in lower case, or an IP address in short form and
            without brackets.

        Raises:
            ParameterError: The text has another form.
        """
        host, _, port = text.rpartition(":")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        # Brackets are required around an IPv6 host and forbidden around any other.
        is_valid = (":" in bare) == (bare != host) and port.isascii() and port.isdecimal()
        if not is_valid or len(port) > 5 or not 0 < int(port) < 65536:
            raise ParameterError(
                f"{where}an address must be HOST:PORT, such as link.example.org:9443 or "
                f"[2001:db8::1]:9443, with a port from 1 to 65535, got '{text}'"
            )
        return cls(host=host_name(bare, where=where), port=int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine can connect to the address."""
        ip = ip_address(self.host)
        return self.host == "localhost" or (ip is not None and ip.is_loopback)

    @property
    def bind_host(self) -> str:
        """The host on which a server must listen so that this address reaches it."""
        if self.is_loopback:
            return "::1" if ":" in self.host else LOOPBACK
        return "::" if ":" in self.host else "0.0.0.0"  # noqa: S104  (chosen by the operator)

    def is_free(self) -> bool:
        """Return whether a server could listen here now."""
        with socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.bind_host, self.port))
            except OSError:
                return False
        return True


def host_name(text: str, *, where: str = "") -> str:
    """Return a host as certificates write it: a lower-case name, or an IP address in short form.

    Args:
        text: A DNS name or an IP address.
        where: A prefix for the error message that says where the text comes from.

    Raises:
        ParameterError: The text is neither.
    """
    ip = ip_address(text)
    if ip is not None:
        return str(ip)
    if not _NAME.fullmatch(text.lower()):
        raise ParameterError(f"{where}a host must be a DNS name or an IP address, got '{text}'")
    return text.lower()


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the host as an IP address; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def free_port() -> int:
    """Return a port of this machine on which no program listens."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
