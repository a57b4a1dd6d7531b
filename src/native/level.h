/* The definitions of each instruction level: the number of lanes, and how comparisons become bits.

A level is one .c file that defines SV_LEVEL and includes this and every kernel's body; bodies are
written with the vector extensions of gcc and clang, once for all levels. Every decision of a body
is exact: levels differ in speed, but never in a bit. */
#ifndef SV_LEVEL
#error "included by avx512.c, avx2.c, neon.c and portable.c"
#endif

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD < 0 || FLT_EVAL_METHOD == 1 || FLT_EVAL_METHOD == 2
#error "floats and doubles must be rounded as they are written (no -ffast-math, no x87); numpy does the rest"
#endif

#if defined(SV_AVX512) || defined(SV_AVX2)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#elif defined(SV_NEON)
#include <arm_neon.h>
#endif

#if defined(SV_AVX512)
#define LANES 16
#elif defined(SV_AVX2)
#define LANES 8
#else
#define LANES 4
#endif

typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef float vf __attribute__((vector_size(4 * LANES)));
/* The same types without alignment. */
typedef float vf_any __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t vu_any __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

/* Puts the same number into every lane. (Adding it to zeros would change -0.) */
INLINE vf spread(float x)
{
#if defined(SV_AVX512)
    return (vf)_mm512_set1_ps(x);
#elif defined(SV_AVX2)
    return (vf)_mm256_set1_ps(x);
#else
    return (vf){x, x, x, x};
#endif
}

INLINE vi spread_int(int32_t x)
{
    return (vi){0} + x;
}

/* Bit l is set where a[l] >= b[l]. */
INLINE uint32_t mask_ge(vf a, vf b)
{
#if defined(SV_AVX512)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ);
#elif defined(SV_AVX2)
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GE_OQ));
#elif defined(__SSE2__)
    return (uint32_t)_mm_movemask_ps(_mm_cmpge_ps((__m128)a, (__m128)b));
#else
    const vi found = (a >= b) & (vi){1, 2, 4, 8};
    return (uint32_t)(found[0] | found[1] | found[2] | found[3]);
#endif
}

#if defined(SV_AVX512) || defined(SV_AVX2)
/* Bit l is the sign of a[l]. */
INLINE uint32_t signs_of(vf a)
{
#if defined(SV_AVX512)
    return _mm512_movepi32_mask((__m512i)a);
#else
    return (uint32_t)_mm256_movemask_ps((__m256)a);
#endif
}
#endif

/* Subtracts `shift` from LANES doubles, and rounds to float. */
INLINE vf load_rounded(const double *values, double shift)
{
#if defined(SV_AVX512)
    const __m512d less = _mm512_set1_pd(shift);
    const __m256 low = _mm512_cvtpd_ps(_mm512_sub_pd(_mm512_loadu_pd(values), less));
    const __m256 high = _mm512_cvtpd_ps(_mm512_sub_pd(_mm512_loadu_pd(values + 8), less));
    return (vf)_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
#elif defined(SV_AVX2)
    const __m256d less = _mm256_set1_pd(shift);
    const __m128 low = _mm256_cvtpd_ps(_mm256_sub_pd(_mm256_loadu_pd(values), less));
    const __m128 high = _mm256_cvtpd_ps(_mm256_sub_pd(_mm256_loadu_pd(values + 4), less));
    return (vf)_mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
#else
    vf rounded;
    for (int l = 0; l < LANES; l++)
        rounded[l] = (float)(values[l] - shift);
    return rounded;
#endif
}

/* Subtracts `shift` from LANES values, in single precision. */
INLINE vf load_floats(const void *values, int is_double, size_t at, double shift)
{
    if (is_double)
        return load_rounded((const double *)values + at, shift);
    return *(const vf_any *)((const float *)values + at) - spread((float)shift);
}

/* a b + c, rounded once or twice; only for numbers whose error a margin covers. */
INLINE vf fused(vf a, vf b, vf c)
{
#if defined(SV_AVX512)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(SV_AVX2)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(SV_NEON)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* A constant for `fused` to add to, given in four lanes. NEON's multiply-add overwrites what it adds
   to, so a constant in a register would be copied; reading it again takes no arithmetic. */
INLINE vf addend(const float four[4])
{
#if defined(SV_NEON)
    __asm__("" : "+r"(four)); /* Or the compiler would keep it in a register. */
    return *(const vf_any *)four;
#else
    return spread(four[0]);
#endif
}

/* Limits x to [-reach, reach]. */
INLINE vf clamped(vf x, float reach)
{
    const vf high = spread(reach), low = -high;
    (void)low;
#if defined(SV_AVX512)
    return (vf)_mm512_range_ps((__m512)x, (__m512)high, 2); /* The smaller size, x's sign. */
#elif defined(SV_AVX2)
    return (vf)_mm256_min_ps(_mm256_max_ps((__m256)x, (__m256)low), (__m256)high);
#elif defined(SV_NEON)
    return (vf)vminq_f32(vmaxq_f32((float32x4_t)x, (float32x4_t)low), (float32x4_t)high);
#else
    const vi below = x < low, above = x > high;
    return (vf)(((vi)x & ~(below | above)) | ((vi)low & below) | ((vi)high & above));
#endif
}
