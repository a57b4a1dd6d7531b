"""Flower's node with shorter pauses: started as a module, with the arguments of Flower's own."""

from flwr.supernode.cli import flower_supernode

from sottovoce.deployment.pauses import hurry_node

if __name__ == "__main__":
    hurry_node()
    flower_supernode()
