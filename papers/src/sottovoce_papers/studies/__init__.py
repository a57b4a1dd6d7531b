"""Experiments, one file each; found by walking this package."""
