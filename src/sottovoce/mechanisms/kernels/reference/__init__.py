"""The samplers in numpy, which define the codes, and the decisions in arbitrary precision.

They run where no C compiler was available, they are the oracle for the tests of every faster
kernel, and they decide what a faster kernel leaves undecided.
"""
