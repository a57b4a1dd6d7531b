"""The register of figures: what was asked of Sottovoce, and how each of it is measured.

A theme is a module with a tuple FIGURES. `make figures` (benchmarks/measure_figures.py) measures
them and writes results/figures.md.
"""
