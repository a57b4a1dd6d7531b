"""Channels: how messages reach the server, and what the server sees of them."""
