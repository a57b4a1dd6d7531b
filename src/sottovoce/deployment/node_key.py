"""A site's private key, `node.key`: it signs the calls of a node and the statements of a site."""

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from sottovoce.core.errors import DeploymentError
from sottovoce.core.files import explained


def read_node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a file, or raise DeploymentError where it cannot serve."""
    with explained("read", path):
        content = path.read_bytes()
    try:
        key = load_ssh_private_key(content, password=None)
    except TypeError:  # the only sign of a password
        raise DeploymentError(
            f"{path} is protected by a password, and a node starts without anybody to type it; "
            f"remove it: ssh-keygen -p -N '' -f {path}"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DeploymentError(
            f"{path} is not a node's private key (ECDSA, OpenSSH, without a password)"
        )
    return key
