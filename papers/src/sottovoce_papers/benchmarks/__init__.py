"""Benchmarks of the library: speed and error, compared with baselines and the machine's limits."""
