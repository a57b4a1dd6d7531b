"""Rounds of training, wherever the clients are."""
