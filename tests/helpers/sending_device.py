"""A client in a process of its own that sends updates through a relay when it is told to.

Arguments: its folder, and 'sum' or 'shuffle'.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from party_process import obey, write_down_what_leaves
from relayed_mechanisms import ADJACENCY, DIMENSION, MECHANISMS

from sottovoce import Client, Ledger
from sottovoce.deployment.operators.device import DeviceFolder, RelayLink
from sottovoce.ledger.ledger import LEDGER_NAME
from sottovoce.protocol.secure.encoding import Protocol


def main(folder: Path, protocol: Protocol) -> None:
    path = folder / LEDGER_NAME
    write_down_what_leaves(folder)
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

        obey({"send": send, "confirm": confirm, "spent": spent})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Protocol(sys.argv[2]))
