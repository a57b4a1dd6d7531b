/* One bit for each coordinate, from 16 random bits and an approximate odds ratio in single
precision.

With E = e^(2z) and the halfword w, the uniform number lies in [w, w + 1) 2^-16 and the threshold is
1/(1 + E): the bit is surely 1 if w (1 + E) >= 2^16 (1 + margin), surely 0 if (w + 1)(1 + E) <= 2^16
(1 - margin), and otherwise decided in double precision with 64 more bits. (Levels with
fused multiply-adds compare differently: one_bit_neon.h.) docs/explanation/kernels.md proves both.
Every coordinate takes the same steps, whatever its value. */

#define ODDS_MARGIN 0x1p-16f

#define FOUR(x) {x, x, x, x}
static const float power_terms[5][4] = {FOUR(0.009570532f), FOUR(0.055918664f), FOUR(0.24024735f),
                                        FOUR(0.6931217f), FOUR(0.9999993f)};

/* 2^f with a relative error below 2^-18, for |f| <= 1/2. */
INLINE vf power_of_fraction(vf f)
{
    vf p = addend(power_terms[0]);
    for (int i = 1; i < 5; i++)
        p = fused(p, f, addend(power_terms[i]));
    return p;
}

/* Decides the undecided bits among up to 32 coordinates from `at` on, whose draws are in their words
   from bit `shift` on. */
static __attribute__((noinline)) uint32_t settle(const struct sv_one_bit *job, const void *tile,
                                                 int is_double, size_t at, size_t left,
                                                 size_t first, const uint32_t *words, int shift,
                                                 uint32_t mask, uint32_t differing,
                                                 struct sv_open *open)
{
    for (; differing; differing &= differing - 1) {
        const int l = __builtin_ctz(differing);
        const size_t i = at + (size_t)l;
        if (i >= left)
            continue; /* This is padding. */
        const double x = is_double ? ((const double *)tile)[i] : ((const float *)tile)[i];
        const uint32_t draw = words[l] >> shift & 0xffff;
        const uint32_t bit = (uint32_t)sv_decided_bit(job, x, draw, first + i, open);
        mask = (mask & ~(1u << l)) | bit << l;
    }
    return mask;
}

#if defined(SV_NEON)
#include "one_bit_neon.h"
#elif defined(SV_AVX2) || defined(SV_AVX512)
#include "one_bit_fused.h"
#else
/* 2^y for |y| <= 32. */
INLINE vf power_of_two(vf y)
{
    const vf magic = spread(12582912.0f); /* Adding 1.5 * 2^23 rounds to an integer. */
    const vf shifted = y + magic;
    const vf f = y - (shifted - magic); /* This is exact, in [-1/2, 1/2]. */
    return (vf)((vi)power_of_fraction(f) + ((vi)shifted << 23)); /* Add to the exponent. */
}

INLINE vf odds(vf x, vf slope)
{
    return power_of_two(clamped(x * slope, 32.0f)) + 1.0f;
}

INLINE uint32_t compare_one(vf odds, vf word, uint32_t *maybe)
{
    const vf place = word * odds;
    *maybe = mask_ge(spread(65536.0f * (1.0f - ODDS_MARGIN)), place + odds);
    *maybe ^= (uint32_t)((1ull << LANES) - 1);
    return mask_ge(place, spread(65536.0f * (1.0f + ODDS_MARGIN)));
}

INLINE void store_mask(uint8_t *out, size_t at, uint32_t mask)
{
    out[at / 8] = (uint8_t)(at % 8 ? out[at / 8] | mask << at % 8 : mask);
}

/* Computes the 128 bytes of a tile of 1024 values, of which the first `left` are used. */
INLINE void one_bit_tile(const struct sv_one_bit *job, const struct streams *streams,
                         const void *tile, int is_double, size_t first, size_t left, uint8_t *out,
                         struct sv_open *open)
{
    const vf slope = spread(job->slope);
    const uint32_t block = (uint32_t)(first / SV_TILE_DRAWS) * SV_TILE_BLOCKS;
    vu x[16];
    for (size_t group = 0; group < SV_TILE_BLOCKS; group += LANES) {
        chacha_blocks(streams, counters_from(block + (uint32_t)group), x);
        for (size_t w = 0; w < 16; w++) { /* Two draws, for coordinates 32 apart. */
            const size_t at[2] = {64 * w + group, 64 * w + 32 + group};
            const vu draws[2] = {x[w] & 0xffff, x[w] >> 16};
            uint32_t masks[2], maybe[2];
            for (int h = 0; h < 2; h++) {
                const vf word = __builtin_convertvector((vi)draws[h], vf);
                const vf value = load_floats(tile, is_double, at[h], 0.0);
                masks[h] = compare_one(odds(value, slope), word, &maybe[h]);
            }
            if (__builtin_expect(masks[0] != maybe[0] || masks[1] != maybe[1], 0))
                for (int h = 0; h < 2; h++)
                    masks[h] = settle(job, tile, is_double, at[h], left, first,
                                      (const uint32_t *)&draws[h], 0, masks[h],
                                      masks[h] ^ maybe[h], open);
            store_mask(out, at[0], masks[0]);
            store_mask(out, at[1], masks[1]);
        }
    }
}
#endif

INLINE void one_bit_tiles(const struct sv_one_bit *job, const void *values, size_t count,
                          int is_double, uint8_t *out, struct sv_open *open)
{
    const size_t size = is_double ? sizeof(double) : sizeof(float);
    size_t at = 0;
    struct streams streams;
    start_stream(&streams, job->key);
    for (; at + SV_TILE_DRAWS <= count; at += SV_TILE_DRAWS)
        one_bit_tile(job, &streams, (const char *)values + at * size, is_double, job->first + at,
                     SV_TILE_DRAWS, out + at / 8, open);
    if (at == count)
        return;
    double padded[SV_TILE_DRAWS] = {0.0};
    uint8_t bytes[SV_TILE_DRAWS / 8];
    const size_t left = count - at;
    memcpy(padded, (const char *)values + at * size, left * size);
    one_bit_tile(job, &streams, padded, is_double, job->first + at, left, bytes, open);
    if (left % 8)
        bytes[left / 8] &= (uint8_t)((1u << left % 8) - 1);
    memcpy(out + at / 8, bytes, (left + 7) / 8);
}

static void one_bit(const struct sv_one_bit *job, struct sv_values values, uint8_t *out,
                    struct sv_open *open)
{
    if (values.is_double)
        one_bit_tiles(job, values.start, values.count, 1, out, open);
    else
        one_bit_tiles(job, values.start, values.count, 0, out, open);
}
