"""Samplers. The numpy reference defines the codes; faster kernels must give the same bits."""
