"""The process of a server app: Flower's own program, with a token from standard input."""

import sys

from flwr.superlink.cli.flwr_serverapp import flwr_serverapp

if __name__ == "__main__":
    # Within this process only: the system shows the command line with which it was started.
    sys.argv += ["--token", sys.stdin.readline().strip()]
    flwr_serverapp()
