"""Samplers. A code is a function of key and value alone, so every kernel gives the same bits.

reference/   numpy, and arbitrary precision for what nothing else decides: the definition
C            the optional extension (src/native): crude comparisons with proven margins, and float64
             with 64 random bits more where these cannot tell (docs/kernels.md)
cuda/        Triton, for tensors on NVIDIA devices: the same way, 32 blocks of the keystream a warp
"""
