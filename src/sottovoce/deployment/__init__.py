"""The Flower backend: the same rounds, between machines that do not trust each other."""

import os

# Read by Flower when it is imported: a tool for privacy tells nobody that it runs, unless asked to.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
