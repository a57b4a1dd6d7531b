"""Kernels for CUDA devices, in Triton: the same bits as on the CPU."""
