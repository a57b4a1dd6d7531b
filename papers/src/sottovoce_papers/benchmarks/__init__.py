"""Benchmarks: one file for each thing that is measured, each checked before it is timed."""
