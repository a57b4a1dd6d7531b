"""The collector in a process of its own, which holds attempts when it is told to.

Argument: its folder.
"""

import sys
from pathlib import Path
from typing import Any

from mortal import die_after_commits
from party_process import obey
from relayed_mechanisms import CONTENT, PAYLOAD_BYTES, SHUFFLER, attempt_of

from sottovoce.deployment.operators.collecting import ReportWindow, open_collector
from sottovoce.deployment.operators.folders import CollectorFolder
from sottovoce.protocol.secure.encoding import Protocol


def main(folder: Path) -> None:
    die_after_commits(folder)
    collector = CollectorFolder.read(folder)
    with open_collector(collector) as link:

        def announce(protocol: str, seconds: int, confirm_seconds: int = 0, **changed: Any) -> str:
            attempt = attempt_of(link.keys, Protocol(protocol), **changed)
            size = PAYLOAD_BYTES if attempt.protocol is SHUFFLER else 0
            window = ReportWindow(report_seconds=seconds, confirm_seconds=confirm_seconds)
            return link.announce(attempt, CONTENT, window, payload_bytes=size).ann.hex()

        def sums() -> dict[str, Any]:
            (total,), clients = link.sums()
            return {"total": total.tolist(), "clients": clients}

        def payloads() -> list[str]:
            return [payload.hex() for payload in link.payloads()]

        def secret() -> str:
            found = link._collector._open
            assert found is not None
            return found.key.secret.hex()

        obey({"announce": announce, "sums": sums, "payloads": payloads, "secret": secret})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
