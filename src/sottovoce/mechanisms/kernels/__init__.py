"""The samplers of discrete mechanisms, in numpy, C and Triton, which all give the same codes.

A code is a function of key and value only, so every kernel gives the same bits.

reference/   numpy, and arbitrary precision for what nothing else decides: the definition
C            the optional extension (src/native): fast comparisons with proven error margins, and
             float64 with 64 further random bits where these do not decide
             (docs/explanation/kernels.md)
cuda/        Triton, for tensors on NVIDIA devices: the same method, with 32 blocks of the keystream
             for each warp
"""
