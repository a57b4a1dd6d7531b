"""Flower's node with shorter pauses: `python -m sottovoce.deployment.supernode ARGUMENTS`."""

from flwr.supernode.cli import flower_supernode

from sottovoce.deployment.pauses import hurry_node

if __name__ == "__main__":
    hurry_node()
    flower_supernode()
