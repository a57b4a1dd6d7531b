/* Scores on NEON: 16 seeds at a time, whose signs are looked up by bytes.

NEON looks up bytes, so the table of a span has its sums' lowest byte, the next one, and the rest,
which is between -2 and 1. Lanes are seeds: their words are first sorted into bytes. */

#define REGISTERS 4

struct sums {
    uint8_t of[16][SPANS][3][SUMS];
};

/* sums->of[w][s][part][m] is a byte of the sum of weights 32 w + SPAN s ... with the signs in m. */
static void fill_sums(const int16_t weights[SV_BLOCK_BITS], struct sums *sums)
{
    static const int16_t odd[4] = {-1, 1, -1, 1}, upper[4] = {-1, -1, 1, 1};
    const int16x4_t first = vld1_s16(odd), second = vld1_s16(upper);
    for (size_t s = 0; s < 16 * SPANS; s++) {
        const int16x4_t four = vld1_s16(weights + SPAN * s);
        const int32x4_t low = vmlal_lane_s16(vmull_lane_s16(first, four, 0), second, four, 1);
        const int32x4_t high = vmlal_lane_s16(vmull_lane_s16(first, four, 2), second, four, 3);
        const int16x8_t a = vreinterpretq_s16_s32(vaddq_s32(low, vdupq_laneq_s32(high, 0)));
        const int16x8_t b = vreinterpretq_s16_s32(vaddq_s32(low, vdupq_laneq_s32(high, 1)));
        const int16x8_t c = vreinterpretq_s16_s32(vaddq_s32(low, vdupq_laneq_s32(high, 2)));
        const int16x8_t d = vreinterpretq_s16_s32(vaddq_s32(low, vdupq_laneq_s32(high, 3)));
        const uint8x16_t low_ab = (uint8x16_t)vuzp1q_s16(a, b), low_cd = (uint8x16_t)vuzp1q_s16(c, d);
        const uint8x16_t high_ab = (uint8x16_t)vuzp2q_s16(a, b);
        const uint8x16_t high_cd = (uint8x16_t)vuzp2q_s16(c, d);
        uint8_t(*table)[SUMS] = sums->of[s / SPANS][s % SPANS];
        vst1q_u8(table[0], vuzp1q_u8(low_ab, low_cd));
        vst1q_u8(table[1], vuzp2q_u8(low_ab, low_cd));
        vst1q_u8(table[2], vuzp1q_u8(high_ab, high_cd));
    }
}

/* The sums of each byte of the looked up numbers, for 16 seeds. */
struct byte_sums {
    uint16x8_t low[2], middle[2];
    int8x16_t high; /* At most 2 for each of 64 spans: these are added up twice a block. */
};

INLINE void look_up(struct byte_sums *found, uint8_t table[3][SUMS], uint8x16_t signs)
{
    const uint8x16_t low = vqtbl1q_u8(vld1q_u8(table[0]), signs);
    const uint8x16_t middle = vqtbl1q_u8(vld1q_u8(table[1]), signs);
    found->low[0] = vaddw_u8(found->low[0], vget_low_u8(low));
    found->low[1] = vaddw_high_u8(found->low[1], low);
    found->middle[0] = vaddw_u8(found->middle[0], vget_low_u8(middle));
    found->middle[1] = vaddw_high_u8(found->middle[1], middle);
    found->high = vaddq_s8(found->high, (int8x16_t)vqtbl1q_u8(vld1q_u8(table[2]), signs));
}

/* Looks up word w of the streams of 16 seeds. */
INLINE void look_up_word(struct byte_sums *found, struct sums *sums, vu x[REGISTERS][16], int w)
{
    const uint8x16_t a = (uint8x16_t)x[0][w], b = (uint8x16_t)x[1][w];
    const uint8x16_t c = (uint8x16_t)x[2][w], d = (uint8x16_t)x[3][w];
    const uint8x16_t even_ab = vuzp1q_u8(a, b), odd_ab = vuzp2q_u8(a, b);
    const uint8x16_t even_cd = vuzp1q_u8(c, d), odd_cd = vuzp2q_u8(c, d);
    const uint8x16_t bytes[4] = {vuzp1q_u8(even_ab, even_cd), vuzp1q_u8(odd_ab, odd_cd),
                                 vuzp2q_u8(even_ab, even_cd), vuzp2q_u8(odd_ab, odd_cd)};
    for (int i = 0; i < 4; i++) {
        look_up(found, sums->of[w][2 * i], vandq_u8(bytes[i], vdupq_n_u8(15)));
        look_up(found, sums->of[w][2 * i + 1], vshrq_n_u8(bytes[i], 4));
    }
}

INLINE void add_sums(struct sums *sums, vu x[REGISTERS][16], int64_t *totals)
{
    for (int half = 0; half < 2; half++) {
        struct byte_sums found = {{vdupq_n_u16(0), vdupq_n_u16(0)},
                                  {vdupq_n_u16(0), vdupq_n_u16(0)},
                                  vdupq_n_s8(0)};
        for (int w = 8 * half; w < 8 * half + 8; w++)
            look_up_word(&found, sums, x, w);
        for (int l = 0; l < 16; l++)
            totals[l] += found.low[l / 8][l % 8] + 256 * (int64_t)found.middle[l / 8][l % 8] +
                         65536 * (int64_t)found.high[l];
    }
}
