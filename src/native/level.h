/* What each level of instructions brings: a number of lanes, and how a comparison becomes bits.

A level is one .c file that defines SV_LEVEL and includes this and every kernel's body; bodies are
written with the vector extensions of gcc and clang, once for all levels. Where a body decides
something, it decides it exactly: levels differ in speed and never in a bit. */
#ifndef SV_LEVEL
#error "included by avx512.c, avx2.c and portable.c"
#endif

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(SV_AVX512) || defined(SV_AVX2)
#include <immintrin.h>
#endif

#ifdef SV_AVX512
#define LANES 16
#else
#define LANES 8 /* portable: two registers of 128 bits */
#endif

typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef float vf __attribute__((vector_size(4 * LANES)));
/* The same at any address. */
typedef float vf_any __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

/* Bit l is set where a[l] >= b[l]. */
INLINE uint32_t mask_ge(vf a, vf b)
{
#if defined(SV_AVX512)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ);
#elif defined(SV_AVX2)
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GE_OQ));
#else
    const vi weights = {1, 2, 4, 8, 16, 32, 64, 128};
    const vi found = (a >= b) & weights;
    uint32_t mask = 0;
    for (int l = 0; l < LANES; l++)
        mask |= (uint32_t)found[l];
    return mask;
#endif
}

/* LANES doubles, rounded to float. */
INLINE vf load_rounded(const double *values)
{
#if defined(SV_AVX512)
    const __m256 low = _mm512_cvtpd_ps(_mm512_loadu_pd(values));
    const __m256 high = _mm512_cvtpd_ps(_mm512_loadu_pd(values + 8));
    return (vf)_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
#elif defined(SV_AVX2)
    const __m128 low = _mm256_cvtpd_ps(_mm256_loadu_pd(values));
    const __m128 high = _mm256_cvtpd_ps(_mm256_loadu_pd(values + 4));
    return (vf)_mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
#else
    vf rounded;
    for (int l = 0; l < LANES; l++)
        rounded[l] = (float)values[l];
    return rounded;
#endif
}
