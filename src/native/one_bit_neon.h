/* A tile of one-bit codes for NEON, 32 coordinates at once.

With the odds O = 1 + E, the rest is 2^16 - (w + 1/2) O: its sign is the bit unless its size is below
O. The draws of a tile are stored first, so that 32 adjacent coordinates make four whole bytes. */

/* -(w + 1/2) for the draws w in the low halves of four words (the high ones if `high`). */
INLINE vf minus_middles(const uint32_t *words, int high)
{
    const uint16x8_t x = vreinterpretq_u16_u32(vld1q_u32(words));
    const uint16x8_t exponent = vdupq_n_u16(0x4b00); /* of 2^23, whose unit is 1 */
    const uint16x8_t found = high ? vtrn2q_u16(x, exponent) : vtrn1q_u16(x, exponent);
    return 8388607.5f - (vf)found;
}

/* 1 + 2^(x slope), where x is limited to [-reach, reach]. */
INLINE vf odds_of(vf x, vf slope, float reach)
{
    /* Adding 1.5 * 2^23 rounds to an integer; with 127 more, it is the exponent of its power. */
    static const float magic[4] = FOUR(12582912.0f + 127.0f), one[4] = FOUR(1.0f);
    const vf near = clamped(x, reach), shifted = fused(near, slope, addend(magic));
    const vf f = fused(near, slope, spread(magic[0]) - shifted); /* in [-1/2, 1/2] */
    return fused(power_of_fraction(f), (vf)((vi)shifted << 23), addend(one));
}

/* Bit i is the sign of number i. */
INLINE uint32_t sign_bits(const vf x[8])
{
    static const uint8_t weights[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint16x8_t pairs[4];
    uint8x16_t bytes[2];
    for (int i = 0; i < 4; i++)
        pairs[i] = vuzp2q_u16((uint16x8_t)x[2 * i], (uint16x8_t)x[2 * i + 1]);
    for (int i = 0; i < 2; i++) {
        const uint8x16_t four = vuzp2q_u8((uint8x16_t)pairs[2 * i], (uint8x16_t)pairs[2 * i + 1]);
        bytes[i] = vandq_u8(vcltzq_s8((int8x16_t)four), vld1q_u8(weights));
    }
    uint8x16_t sums = vpaddq_u8(bytes[0], bytes[1]);
    sums = vpaddq_u8(sums, sums);
    sums = vpaddq_u8(sums, sums);
    return vgetq_lane_u32((uint32x4_t)sums, 0);
}

/* Decides 32 coordinates from `at` on, except where *undecided has a 1. */
INLINE uint32_t decide_32(const struct sv_one_bit *job, const void *tile, int is_double, size_t at,
                          const uint32_t *words, int high, uint32_t *undecided)
{
    static const float whole[4] = FOUR(65536.0f);
    const vf slope = spread(job->slope);
    vf rest[8];
    vi open[8], any = {0};
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; i++) {
        const vf ratio =
            odds_of(load_floats(tile, is_double, at + 4 * i, 0.0), slope, 32.0f / job->slope);
        rest[i] = fused(minus_middles(words + 4 * i, high), ratio, addend(whole));
        open[i] = (vi)vcagtq_f32((float32x4_t)ratio, (float32x4_t)rest[i]);
        any |= open[i];
    }
    *undecided = vmaxvq_u32((uint32x4_t)any);
    if (__builtin_expect(*undecided != 0, 0))
        *undecided = sign_bits((const vf *)open);
    return sign_bits(rest);
}

/* Computes the 128 bytes of a tile of 1024 values, of which the first `left` are used. */
INLINE void one_bit_tile(const struct sv_one_bit *job, const struct streams *streams,
                         const void *tile, int is_double, size_t first, size_t left, uint8_t *out,
                         struct sv_open *open)
{
    uint32_t words[SV_TILE_WORDS];
    tile_words(streams, (uint32_t)(first / SV_TILE_DRAWS), words);
    for (size_t row = 0; row < SV_TILE_DRAWS / 32; row += 2)
        for (int high = 0; high < 2; high++) {
            const uint32_t *drawn = words + row / 2 * SV_TILE_BLOCKS;
            const size_t at = 32 * (row + (size_t)high);
            uint32_t open_here, mask = decide_32(job, tile, is_double, at, drawn, high, &open_here);
            if (__builtin_expect(open_here != 0, 0))
                mask = settle(job, tile, is_double, at, left, first, drawn, 16 * high, mask,
                              open_here, open);
            memcpy(out + at / 8, &mask, sizeof mask);
        }
}
