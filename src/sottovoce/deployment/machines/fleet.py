"""What a site tells the link itself, signed with its key, while no node of its is running."""

from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from sottovoce.deployment.machines.address import Address


def deactivate(node_id: int, address: Address, authority: Path, private_key: Path) -> None:
    """Take a node offline; a link that is away, or has forgotten it already, is as good."""
    key = load_ssh_private_key(private_key.read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # checked before a node starts
    with FleetHttpClient.from_server_address(
        str(address),
        False,
        str(authority),
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="sottovoce"),
            NodeAuthHttpInterceptor(key, key.public_key()),
        ],
    ) as client:
        try:
            client.DeactivateNode(DeactivateNodeRequest(node_id=node_id))
        except httpx.HTTPError:
            return
