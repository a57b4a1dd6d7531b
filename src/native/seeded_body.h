/* Signs of seeds, stored or multiplied with weights.

Scores: each lane has a seed, so a register has the same word of LANES streams, the signs of the
same 32 coordinates. SPAN signs are a number below 2^SPAN; for SPAN adjacent weights there is a
table of their sums with all possible signs, which every lane uses for every seed. A block of the
streams is 512 coordinates, and its tables stay in the L1 cache while all seeds are processed. */

#if defined(SV_AVX2)
#define SPAN 3 /* A table of eight sums fits into a register. */
#else
#define SPAN 4
#endif
#define SUMS (1 << SPAN)
#define SPANS ((32 + SPAN - 1) / SPAN) /* In a word; the last may be short. */
#define TOGETHER 128                   /* The seeds at a time, which take 10 KiB. */

INLINE void prepare(struct streams *streams, const struct sv_seeds *seeds, size_t first)
{
    uint32_t words[4][LANES] = {{0}};
    for (size_t l = 0; l < LANES && first + l < seeds->count; l++)
        for (size_t w = 0; w < 4; w++)
            memcpy(&words[w][l], seeds->start + SV_SEED_BYTES * (first + l) + 4 * w, 4);
    memcpy(streams->key, words, sizeof words);
    for (int w = 0; w < 4; w++) {
        uint32_t tag;
        memcpy(&tag, seeds->tag + 4 * w, sizeof tag);
        streams->key[4 + w] = all(tag);
    }
    start_streams(streams);
}

#if defined(SV_NEON)
#include "seeded_neon.h"
#else
#define REGISTERS 1

struct sums {
    int32_t of[16][SPANS][SUMS];
} __attribute__((aligned(64)));

#if defined(SV_AVX512) || defined(SV_AVX2)
/* Two adjacent weights in every lane. */
INLINE vi two_weights(const int16_t *weights)
{
    int32_t both;
    memcpy(&both, weights, sizeof both);
    return spread_int(both);
}

/* The sum of two products of 16 bits in every lane. */
INLINE vi two_products(vi a, vi b)
{
#if defined(SV_AVX512)
    return (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#else
    return (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#endif
}
#endif

/* sums->of[w][s][m] = the sum of weights 32 w + SPAN s ... with the signs in the bits of m. */
static void fill_sums(const int16_t weights[SV_BLOCK_BITS], struct sums *sums)
{
#if defined(SV_AVX512) || defined(SV_AVX2)
    int16_t signs[2][SUMS][2];
    for (int m = 0; m < SUMS; m++)
        for (int i = 0; i < 4; i++)
            signs[i / 2][m][i % 2] = (int16_t)(i >= SPAN ? 0 : m >> i & 1 ? 1 : -1);
    vi low, high;
    memcpy(&low, signs[0], sizeof low);
    memcpy(&high, signs[1], sizeof high);
    for (size_t w = 0; w < 16; w++)
        for (size_t s = 0; s < SPANS; s++) {
            const int16_t *first = weights + 32 * w + SPAN * s;
            vi found = two_products(two_weights(first), low);
            if (SPAN * s + 2 < 32)
                found += two_products(two_weights(first + 2), high);
            memcpy(sums->of[w][s], &found, sizeof found);
        }
#else
    for (size_t w = 0; w < 16; w++)
        for (size_t s = 0; s < SPANS; s++) {
            const int16_t *first = weights + 32 * w + SPAN * s;
            const int32_t a = first[0], b = first[1], c = first[2], d = first[3];
            const vi low = {-a - b, a - b, b - a, a + b};
            const int32_t high[4] = {-c - d, c - d, d - c, c + d};
            for (int m = 0; m < 4; m++) {
                const vi found = low + high[m];
                memcpy(sums->of[w][s] + 4 * m, &found, sizeof found);
            }
        }
#endif
}

/* In each lane, the sum of a block's weights with its signs, at most 2^24. */
INLINE vi lane_sums(const struct sums *sums, const vu x[16])
{
#if defined(SV_AVX512) || defined(SV_AVX2)
    vi total = {0};
    for (int w = 0; w < 16; w++)
        for (int s = 0; s < SPANS; s++) {
            const vu signs = x[w] >> (uint32_t)(SPAN * s); /* Higher bits are ignored. */
            const void *table = sums->of[w][s];
#if defined(SV_AVX512)
            total += (vi)_mm512_permutexvar_epi32((__m512i)signs, _mm512_load_si512(table));
#else
            total += (vi)_mm256_permutevar8x32_epi32(_mm256_load_si256(table), (__m256i)signs);
#endif
        }
    return total;
#else
    int32_t totals[LANES] = {0};
    for (int w = 0; w < 16; w++)
        for (int l = 0; l < LANES; l++) {
            uint32_t signs = x[w][l];
            for (int s = 0; s < SPANS; s++, signs >>= SPAN)
                totals[l] += sums->of[w][s][signs % SUMS];
        }
    vi total;
    memcpy(&total, totals, sizeof total);
    return total;
#endif
}

INLINE void add_sums(const struct sums *sums, vu x[REGISTERS][16], int64_t *totals)
{
    const vi found = lane_sums(sums, x[0]);
    for (int l = 0; l < LANES; l++)
        totals[l] += found[l];
}
#endif

static void score_signs(const struct sv_seeds *seeds, const int16_t *weights, size_t count,
                        int64_t *out)
{
    struct sums sums;
    struct streams streams[TOGETHER / LANES];
    int64_t totals[TOGETHER];
    int16_t padded[SV_BLOCK_BITS];
    for (size_t first = 0; first < seeds->count; first += TOGETHER) {
        const size_t left = seeds->count - first, some = left < TOGETHER ? left : TOGETHER;
        const size_t groups = (some + REGISTERS * LANES - 1) / (REGISTERS * LANES) * REGISTERS;
        memset(totals, 0, sizeof totals);
        for (size_t g = 0; g < groups; g++)
            prepare(&streams[g], seeds, first + LANES * g);
        for (size_t at = 0; at < count; at += SV_BLOCK_BITS) {
            const int16_t *here = weights + at;
            if (count - at < SV_BLOCK_BITS) {
                memset(padded, 0, sizeof padded);
                memcpy(padded, here, (count - at) * sizeof *here);
                here = padded;
            }
            fill_sums(here, &sums);
            for (size_t g = 0; g < groups; g += REGISTERS) {
                vu x[REGISTERS][16];
                for (size_t r = 0; r < REGISTERS; r++)
                    chacha_blocks(&streams[g + r], all((uint32_t)(at / SV_BLOCK_BITS)), x[r]);
                add_sums(&sums, x, totals + LANES * g);
            }
        }
        memcpy(out + first, totals, some * sizeof *totals);
    }
}

/* Exchanges squares of `by` words: a step of the transpose of LANES registers. */
INLINE void exchange(vu *a, vu *b, int by)
{
    const vu first = *a, second = *b;
#if defined(SV_AVX512)
    static const uint32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vu low, high;
    memcpy(&low, numbers, sizeof low);
    const vu moved = (vu)((low & (uint32_t)by) != 0);
    high = low + ((uint32_t)by & ~moved) + (16 & moved);
    low += (16u - (uint32_t)by) & moved;
    *a = (vu)_mm512_permutex2var_epi32((__m512i)first, (__m512i)low, (__m512i)second);
    *b = (vu)_mm512_permutex2var_epi32((__m512i)first, (__m512i)high, (__m512i)second);
#elif defined(SV_AVX2)
    const __m256i x = (__m256i)first, y = (__m256i)second;
    if (by == 4) {
        *a = (vu)_mm256_permute2x128_si256(x, y, 0x20);
        *b = (vu)_mm256_permute2x128_si256(x, y, 0x31);
    } else if (by == 2) {
        *a = (vu)_mm256_unpacklo_epi64(x, y);
        *b = (vu)_mm256_unpackhi_epi64(x, y);
    } else {
        *a = (vu)_mm256_blend_epi32(x, _mm256_slli_epi64(y, 32), 0xaa);
        *b = (vu)_mm256_blend_epi32(_mm256_srli_epi64(x, 32), y, 0xaa);
    }
#elif defined(SV_NEON)
    const uint64x2_t x = (uint64x2_t)first, y = (uint64x2_t)second;
    *a = by == 2 ? (vu)vtrn1q_u64(x, y) : (vu)vtrn1q_u32((uint32x4_t)first, (uint32x4_t)second);
    *b = by == 2 ? (vu)vtrn2q_u64(x, y) : (vu)vtrn2q_u32((uint32x4_t)first, (uint32x4_t)second);
#else
    if (by == 2) {
        *a = (vu){first[0], first[1], second[0], second[1]};
        *b = (vu){first[2], first[3], second[2], second[3]};
    } else {
        *a = (vu){first[0], second[0], first[2], second[2]};
        *b = (vu){first[1], second[1], first[3], second[3]};
    }
#endif
}

/* Stores LANES blocks of a stream, one after the other. */
INLINE void stream_blocks(const struct streams *streams, uint32_t first, uint8_t *out)
{
    vu x[16];
    chacha_blocks(streams, counters_from(first), x);
    for (int by = LANES / 2; by; by /= 2)
        for (int pair = 0; pair < 8; pair++) {
            const int i = pair / by * 2 * by + pair % by;
            exchange(&x[i], &x[i + by], by);
        }
    for (size_t l = 0; l < LANES; l++)
        for (size_t part = 0; part < 16 / LANES; part++)
            memcpy(out + 64 * l + part * sizeof x[0], &x[LANES * part + l], sizeof x[0]);
}

static void expand_signs(const struct sv_seeds *seeds, size_t count, uint8_t *out)
{
    const size_t size = (count + 7) / 8, step = 64 * LANES;
    uint32_t key[8];
    uint8_t last[64 * LANES];
    struct streams streams;
    memcpy(key + 4, seeds->tag, sizeof seeds->tag);
    for (size_t k = 0; k < seeds->count; k++, out += size) {
        memcpy(key, seeds->start + SV_SEED_BYTES * k, SV_SEED_BYTES);
        start_stream(&streams, key);
        size_t at = 0;
        for (; at + step <= size; at += step)
            stream_blocks(&streams, (uint32_t)(at / 64), out + at);
        if (at < size) {
            stream_blocks(&streams, (uint32_t)(at / 64), last);
            memcpy(out + at, last, size - at);
        }
        if (count % 8)
            out[size - 1] &= (uint8_t)((1u << count % 8) - 1);
    }
}
