"""A client's node in a process of its own, which writes down what leaves it.

Argument: its folder.
"""

import sys
import time
from pathlib import Path

from party_process import write_down_what_leaves

from sottovoce.deployment.operators.device import DeviceFolder
from sottovoce.deployment.operators.participant import keep_participant


def main(folder: Path) -> None:
    write_down_what_leaves(folder)
    keep_participant(
        DeviceFolder.read(folder),
        on_ready=lambda: print("ready", flush=True),
        pause=lambda _: time.sleep(0.3),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
