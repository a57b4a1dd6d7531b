"""A client in a process of its own that sends updates through a relay when it is told to.

Arguments: its folder, and 'sum' or 'shuffle'.
"""

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from mortal import die_after_commits
from party_process import obey, write_down_what_leaves
from relayed_mechanisms import ADJACENCY, DIMENSION, MECHANISMS

from sottovoce import Client, Ledger
from sottovoce.deployment.operators.device import DeviceFolder, RelayLink
from sottovoce.ledger.ledger import LEDGER_NAME
from sottovoce.mechanisms.packing import pack
from sottovoce.protocol.secure import two_server_client
from sottovoce.protocol.secure.announcement import Announcement
from sottovoce.protocol.secure.encoding import Protocol
from sottovoce.protocol.secure.masks import MaskedSum
from sottovoce.protocol.secure.two_server_client import TwoServerClient, mask_key


def remember_secrets() -> list[bytes]:
    """Return a list to which everything is added that this client must not keep."""
    found: list[bytes] = []
    token_bytes = secrets.token_bytes
    encode = TwoServerClient._encode

    def remembered(size: int | None = None) -> bytes:
        found.append(token_bytes(size))
        return found[-1]

    def encoding(client: TwoServerClient, ann: Announcement, drawn: Sequence[Any]) -> bytes:
        report = encode(client, ann, drawn)
        key = mask_key(found[-1], ann.ann, client.name, 0)
        mask = MaskedSum(ann.attempt.dimension, ann.attempt.bits)
        mask.add_mask(key)
        codes = np.asarray(drawn[0], dtype=np.uint8)
        found.extend([key, mask.packed(), codes.tobytes(), pack(codes, 1)])
        return report

    class_of_client: Any = TwoServerClient
    class_of_client._encode = encoding
    vars(two_server_client)["secrets"] = SimpleNamespace(token_bytes=remembered)
    return found


def main(folder: Path, protocol: Protocol) -> None:
    path = folder / LEDGER_NAME
    die_after_commits(folder)
    write_down_what_leaves(folder)
    hidden = remember_secrets()
    with (
        RelayLink(DeviceFolder.read(folder)) as link,
        Ledger(path, create=not path.exists()) as ledger,
    ):
        client = Client(
            link.name, MECHANISMS[protocol], ledger=ledger, adjacency=ADJACENCY[protocol]
        )

        def send() -> str:
            return f"answered {client.send_through(link, np.full(DIMENSION, 0.1)).place}"

        def confirm(seconds: float) -> str:
            link.confirm(timeout_seconds=seconds)
            return "confirmed"

        def spent() -> dict[str, Any]:
            return {"charges": ledger.num_charges, "problems": len(ledger.verify())}

        def secret() -> list[str]:
            return [each.hex() for each in hidden]

        obey({"send": send, "confirm": confirm, "spent": spent, "secret": secret})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Protocol(sys.argv[2]))
