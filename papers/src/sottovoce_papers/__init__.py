"""Experiments that measure what the papers claim: studies, grids of trainings, and benchmarks."""
