"""Attacks on a model or on the messages of clients: one module for each attack."""
