/* A tile of one-bit codes for AVX2 and AVX-512, decided as in one_bit_neon.h.

With the odds O = 1 + E, the rest is 2^16 - (w + 1/2) O: its sign is the bit unless its size is below
O. The draws of a tile are stored first. Each step is done for some registers before the next one, so
that few instructions wait for others. */

#define ABREAST 4

/* -(w + 1/2) for the draws w in the low halves of words (the high ones if `high`). */
INLINE vf minus_middles(vu words, int high)
{
    const vu draws = high ? words >> 16 : words & 0xffff;
    return 8388607.5f - (vf)(draws | 0x4b000000); /* The exponent of 2^23, whose unit is 1. */
}

/* Decides ABREAST * LANES coordinates from `at` on; those where *open has a 1 are undecided. The
   first word of their row is words[0], and they begin with coordinate `from` of it. */
INLINE uint64_t decide(const struct sv_one_bit *job, const void *tile, int is_double, size_t at,
                       const uint32_t *words, size_t from, uint64_t *open)
{
    /* Adding 1.5 * 2^23 rounds to an integer; with 127 more, it is the exponent of its power. */
    const vf magic = spread(12582912.0f + 127.0f), slope = spread(job->slope);
    vf x[ABREAST], power[ABREAST], shifted[ABREAST], fraction[ABREAST];
    uint64_t bits = 0, undecided = 0;
    for (size_t k = 0; k < ABREAST; k++)
        x[k] = clamped(load_floats(tile, is_double, at + k * LANES, 0.0), 32.0f / job->slope);
    for (size_t k = 0; k < ABREAST; k++)
        shifted[k] = fused(x[k], slope, magic);
    for (size_t k = 0; k < ABREAST; k++)
        fraction[k] = fused(x[k], slope, magic - shifted[k]); /* in [-1/2, 1/2] */
    for (size_t k = 0; k < ABREAST; k++)
        power[k] = fused(spread(power_terms[0][0]), fraction[k], spread(power_terms[1][0]));
    for (size_t i = 2; i < 5; i++)
        for (size_t k = 0; k < ABREAST; k++)
            power[k] = fused(power[k], fraction[k], spread(power_terms[i][0]));
    for (size_t k = 0; k < ABREAST; k++) {
        const size_t first = from + k * LANES;
        const vu drawn = *(const vu_any *)(words + first % 32);
        const vf odds = fused(power[k], (vf)((vi)shifted[k] << 23), spread(1.0f));
        const vf rest = fused(minus_middles(drawn, first >= 32), odds, spread(65536.0f));
        const vf size = (vf)((vi)rest & 0x7fffffff);
        bits |= (uint64_t)signs_of(rest) << k * LANES;
        undecided |= (uint64_t)(mask_ge(size, odds) ^ (uint32_t)((1ull << LANES) - 1)) << k * LANES;
    }
    *open = undecided;
    return bits;
}

/* Computes the 128 bytes of a tile of 1024 values, of which the first `left` are used. */
INLINE void one_bit_tile(const struct sv_one_bit *given, const struct streams *streams,
                         const void *tile, int is_double, size_t first, size_t left, uint8_t *out,
                         struct sv_open *open)
{
    const struct sv_one_bit job = *given; /* What is written to `out` cannot change it. */
    uint32_t words[SV_TILE_WORDS];
    tile_words(streams, (uint32_t)(first / SV_TILE_DRAWS), words);
    for (size_t row = 0; row < SV_TILE_DRAWS; row += 64) {
        const uint32_t *drawn = words + row / 2;
        uint64_t undecided[64 / (ABREAST * LANES)], any = 0, bits = 0;
#pragma GCC unroll 2
        for (size_t part = 0; part < 64 / (ABREAST * LANES); part++) {
            const size_t from = part * ABREAST * LANES;
            bits |= decide(&job, tile, is_double, row + from, drawn, from, &undecided[part])
                    << from;
            any |= undecided[part] << from;
        }
        if (__builtin_expect(any != 0, 0))
            for (int high = 0; high < 2; high++) {
                const uint32_t settled =
                    settle(given, tile, is_double, row + 32 * (size_t)high, left, first, drawn,
                           16 * high, (uint32_t)(bits >> 32 * high), (uint32_t)(any >> 32 * high),
                           open);
                bits = (bits & ~((uint64_t)UINT32_MAX << 32 * high)) | (uint64_t)settled << 32 * high;
            }
        memcpy(out + row / 8, &bits, sizeof bits);
    }
}
