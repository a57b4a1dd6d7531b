"""Flower's node with shorter pauses: started as a module, with the arguments of Flower's own."""

import os
import sys
import traceback

from flwr.supernode.cli import flower_supernode

from sottovoce.flower.pauses import hurry_node

if __name__ == "__main__":
    hurry_node()
    try:
        flower_supernode()
    except Exception:
        # Flower's threads would keep a node alive that takes no orders any more; its keeper starts
        # one again that has ended.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
