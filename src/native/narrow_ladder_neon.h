/* The first pass of narrow_ladder.h for NEON: the same steps, whose tables are looked up by bytes. */

#define NARROW_PARTS 2 /* The registers of eight coordinates that use a loaded table. */

struct narrow_lanes {
    /* The two bytes of a cell's number in a table, the place in it, the draw, all outside. */
    uint16x8_t bytes, places, outside;
    int16x8_t words;
};

/* The place of four coordinates in units of 2^-15 cells, and ones where it is inside the cells. */
INLINE int32x4_t fixed_places(const struct sv_ladder *job, const void *tile, int is_double,
                              size_t at, uint32x4_t *inside)
{
    const vf unit = spread(job->narrow_per_unit), origin = spread(job->narrow_origin);
    const int32x4_t last = vdupq_n_s32((int)job->narrow_cells * 32768 - 1);
    const vf x = load_floats(tile, is_double, at, job->shift);
    const float32x4_t place = (float32x4_t)clamped(fused(x, unit, origin), 1024.0f);
    const float32x4_t end = vdupq_n_f32((float)job->narrow_cells);
    *inside = vandq_u32(vcgezq_f32(place), vcltq_f32(place, end));
    return vmaxq_s32(vminq_s32(vcvtq_n_s32_f32(place, 15), last), vdupq_n_s32(0));
}

INLINE struct narrow_lanes find_narrow(const struct sv_ladder *job, const void *tile, int is_double,
                                       const uint16_t *draws, size_t at)
{
    uint32x4_t inside[2];
    const uint32x4_t a = (uint32x4_t)fixed_places(job, tile, is_double, at, &inside[0]);
    const uint32x4_t b = (uint32x4_t)fixed_places(job, tile, is_double, at + 4, &inside[1]);
    const uint16x8_t low = vuzp1q_u16((uint16x8_t)a, (uint16x8_t)b);
    const uint16x8_t within = vuzp1q_u16((uint16x8_t)inside[0], (uint16x8_t)inside[1]);
    const uint16x8_t cells = vshrn_high_n_u32(vshrn_n_u32(a, 15), b, 15);
    const uint16x8_t twice = vaddq_u16(cells, cells);
    const uint16x8_t draw = veorq_u16(vld1q_u16(draws + at), vdupq_n_u16(0x8000));
    return (struct narrow_lanes){
        vaddq_u16(vsliq_n_u16(twice, twice, 8), vdupq_n_u16(0x100)),
        vandq_u16(low, vdupq_n_u16(0x7fff)),
        job->num_knots ? vdupq_n_u16(0) : vmvnq_u16(within),
        vshrq_n_s16((int16x8_t)draw, 1),
    };
}

INLINE int16x8_t looked_up_16(const uint8x16x4_t *table, uint16x8_t bytes)
{
    return (int16x8_t)vqtbl4q_u8(*table, (uint8x16_t)bytes);
}

/* Computes 16 codes; bit i of the result is set where code i is undecided. */
INLINE uint32_t narrow_codes(const struct sv_ladder *job, const void *tile, int is_double,
                             const uint16_t *draws, size_t at, uint8_t *codes)
{
    const int16x8_t gap = vdupq_n_s16(job->narrow_gap);
    struct narrow_lanes lanes[NARROW_PARTS];
    uint16x8_t code[NARROW_PARTS], differs[NARROW_PARTS];
    for (size_t part = 0; part < NARROW_PARTS; part++) {
        lanes[part] = find_narrow(job, tile, is_double, draws, at + 8 * part);
        differs[part] = lanes[part].outside, code[part] = vdupq_n_u16(0);
    }
    for (size_t j = 0; j + 1 < job->levels; j++) {
        const uint8_t *row = (const uint8_t *)(job->narrow + 64 * j);
        const uint8x16x4_t starts = vld1q_u8_x4(row), rises = vld1q_u8_x4(row + 64);
        for (size_t part = 0; part < NARROW_PARTS; part++) {
            const struct narrow_lanes *l = &lanes[part];
            const int16x8_t start = looked_up_16(&starts, l->bytes);
            const int16x8_t rise = looked_up_16(&rises, l->bytes);
            const int16x8_t threshold =
                vqaddq_s16(start, vqrdmulhq_s16(rise, (int16x8_t)l->places));
            const uint16x8_t passed = vcgtq_s16(l->words, threshold);
            /* A threshold that saturates is lowered by the gap, so it counts as undecided. */
            const uint16x8_t maybe = vcgtq_s16(l->words, vqsubq_s16(threshold, gap));
            differs[part] = vorrq_u16(differs[part], veorq_u16(passed, maybe));
            code[part] = vsubq_u16(code[part], passed);
        }
    }
    static const uint8_t weights[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t open = vuzp1q_u8((uint8x16_t)differs[0], (uint8x16_t)differs[1]);
    vst1q_u8(codes + at, vuzp1q_u8((uint8x16_t)code[0], (uint8x16_t)code[1]));
    const uint8x16_t bits = vandq_u8(open, vld1q_u8(weights));
    return vaddv_u8(vget_low_u8(bits)) | (uint32_t)vaddv_u8(vget_high_u8(bits)) << 8;
}

/* Computes the codes of a tile; bit i % 32 of differing[i / 32] is set where a code is undecided.
   */
INLINE void narrow_pass(const struct sv_ladder *job, const struct narrow_tree *tree,
                        const void *tile, int is_double, const uint16_t *draws, uint8_t *codes,
                        uint32_t *differing)
{
    (void)tree;
    for (size_t at = 0; at < SV_TILE_DRAWS; at += 32)
        differing[at / 32] =
            narrow_codes(job, tile, is_double, draws, at, codes) |
            narrow_codes(job, tile, is_double, draws, at + 16, codes) << 16;
}
