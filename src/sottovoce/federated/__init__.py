"""Algorithms, the training loop and simulation backends: what needs torch."""
