"""Addresses as people write them."""

import socket

import pytest

from sottovoce.core.errors import ParameterError
from sottovoce.deployment.machines.address import Address, free_port


@pytest.mark.parametrize(
    ("text", "host", "port", "bind"),
    [
        ("link.example.org:9443", "link.example.org", 9443, "0.0.0.0"),
        ("Link.Example.org:1", "link.example.org", 1, "0.0.0.0"),
        ("10.0.0.7:65535", "10.0.0.7", 65535, "0.0.0.0"),
        ("localhost:80", "localhost", 80, "127.0.0.1"),
        ("127.0.0.1:80", "127.0.0.1", 80, "127.0.0.1"),
        ("[::1]:80", "::1", 80, "::1"),
        ("[2001:db8:0:0::7]:80", "2001:db8::7", 80, "::"),
    ],
)
def test_an_address_is_read_and_written(text: str, host: str, port: int, bind: str) -> None:
    address = Address.parse(text)
    assert (address.host, address.port, address.bind_host) == (host, port, bind)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", ":80", "host:0", "host:65536", "host:-1", "host:x", "host:\uff18\uff10",
     "https://host:80", "a b:80", "::1:80", "[host]:80", "host/path:80", "user@host:80", "ü:80"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ParameterError):
        Address.parse(text)


def test_a_port_that_is_taken_is_not_free() -> None:
    port = free_port()
    assert Address(host="127.0.0.1", port=port).is_free()
    with socket.create_server(("127.0.0.1", port)):
        assert not Address(host="127.0.0.1", port=port).is_free()
