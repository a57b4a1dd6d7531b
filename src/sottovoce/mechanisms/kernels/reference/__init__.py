"""The samplers in numpy, which define the codes, and the decisions in arbitrary precision.

They run where no compiler was, they are the oracle of every faster kernel, and what a faster kernel
leaves open is decided here.
"""
