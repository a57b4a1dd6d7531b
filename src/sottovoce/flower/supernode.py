"""A SuperNode with shorter polling intervals, run as a module with Flower's arguments."""

import os
import sys
import traceback

from flwr.supernode.cli import flower_supernode

from sottovoce.flower.pauses import patch_flower_polling

if __name__ == "__main__":
    patch_flower_polling()
    try:
        flower_supernode()
    except Exception:
        # Flower's threads would keep a process alive that takes no messages any more. The parent
        # process restarts a node that has ended.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
