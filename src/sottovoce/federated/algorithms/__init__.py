"""Algorithms: what a client computes and what the server does with the mean."""
