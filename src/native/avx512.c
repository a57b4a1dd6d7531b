/* All kernels for AVX-512 (F, BW, DQ, VL). */
#if defined(__x86_64__) && defined(__GNUC__)
#define SV_LEVEL avx512
#define SV_AVX512 1
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,bmi2,fma,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,bmi2,fma,popcnt,prefer-vector-width=512")
#endif
#include "bodies.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int no_avx512_here;
#endif
