"""Adapters to Flower: apps, mod, strategy, link, node, gate. Nothing else imports flwr."""
