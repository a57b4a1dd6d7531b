/* All kernels for NEON, which every 64-bit ARM processor has. */
#if defined(__aarch64__) && defined(__GNUC__)
#define SV_LEVEL neon
#define SV_NEON 1
#if !defined(__clang__)
/* Rotations use one of the two pipes; rounds of ChaCha20 are faster if the compiler does not place
   them all together. */
#pragma GCC optimize("no-schedule-insns")
#endif
#include "bodies.h"
#else
typedef int no_neon_here;
#endif
