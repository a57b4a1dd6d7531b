"""The process of a ServerApp: Flower's own program, with a token from standard input."""

import sys

from flwr.superlink.cli.flwr_serverapp import flwr_serverapp

if __name__ == "__main__":
    # Only inside this process: all users of the machine can read its original command line.
    sys.argv += ["--token", sys.stdin.readline().strip()]
    flwr_serverapp()
