/* All kernels for AVX2. */
#if defined(__x86_64__) && defined(__GNUC__)
#define SV_LEVEL avx2
#define SV_AVX2 1
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi2,fma,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx2,bmi2,fma,popcnt")
#endif
#include "bodies.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int no_avx2_here;
#endif
