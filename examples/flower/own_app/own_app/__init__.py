"""A Flower app: digits, shared out over the clients."""
