/* Codes of a few bits: a coordinate's 16 random bits are compared with a ladder of thresholds.

Over each cell of x a threshold is approximated by a linear function and raised by the cell's
margin; the gap is twice the margin and the draw's own width, 1. If w and w + gap pass equally many
thresholds, that number is the code; otherwise it is decided in double precision with 64 more bits.
docs/explanation/kernels.md proves the margins, which `mechanisms/kernels/ladder.py` computes. */

#define LADDER_STEP 16 /* The number of thresholds compared together; rows are padded to it. */

struct ladder_tile {
    float words[SV_TILE_DRAWS], highs[SV_TILE_DRAWS], places[SV_TILE_DRAWS];
    int32_t cells[SV_TILE_DRAWS];
    uint16_t draws[SV_TILE_DRAWS];
    uint32_t differing[SV_TILE_DRAWS / 32];
};

/* Finds the cell of x. In a table an x outside counts as the nearer end; in a family it is in the
   cell after the last, whose gap is infinite. */
INLINE float place_in(const struct sv_ladder *job, float place, size_t *cell)
{
    const float end = (float)job->cells;
    if (job->num_knots)
        place = place > 0.0f ? place < end ? place : end : 0.0f;
    else if (!(place >= 0.0f && place < end))
        place = end;
    *cell = (size_t)place;
    if (job->num_knots && *cell == job->cells)
        *cell -= 1;
    return place - (float)*cell;
}

INLINE void find_cells(const struct sv_ladder *job, const void *tile, int is_double,
                       struct ladder_tile *t)
{
    const vf unit = spread(job->cells_per_unit), origin = spread(job->origin);
    const vf end = spread((float)job->cells);
    for (size_t at = 0; at < SV_TILE_DRAWS; at += LANES) {
        const vf place = load_floats(tile, is_double, at, job->shift) * unit + origin;
        const vi inside = (place >= (vf){0}) & (place < end);
        const vi before = (place < (vf){0}) & (vi)spread_int(job->num_knots ? -1 : 0);
        const vf safe = (vf)(((vi)place & inside) | ((vi)end & ~inside & ~before));
        vi cell = __builtin_convertvector(safe, vi); /* This truncates. */
        if (job->num_knots)
            cell += cell == (vi)spread_int((int)job->cells); /* The end is in the last cell. */
        const vf rest = safe - __builtin_convertvector(cell, vf);
        memcpy(t->cells + at, &cell, sizeof cell);
        memcpy(t->places + at, &rest, sizeof rest);
    }
    for (size_t i = 0; i < SV_TILE_DRAWS; i++) {
        t->words[i] = (float)t->draws[i];
        t->highs[i] = (float)t->draws[i] + job->gaps[t->cells[i]];
    }
}

/* Counts the thresholds among 16 of a row that `word` passes; `differs` tells whether `high` passes
   another number of them. */
INLINE uint32_t count_few(const float *row, size_t width, float word, float high, float place,
                          int *differs)
{
    const vf words = spread(word), highs = spread(high), places = spread(place);
#if defined(SV_NEON)
    int32x4_t counts[2] = {vdupq_n_s32(0), vdupq_n_s32(0)}; /* A true comparison is -1. */
    for (int j = 0; j < LADDER_STEP; j += LANES) {
        const vf start = *(const vf_any *)(row + j), rise = *(const vf_any *)(row + width + j);
        const vf threshold = fused(rise, places, start);
        counts[0] -= (int32x4_t)(words >= threshold);
        counts[1] -= (int32x4_t)(highs >= threshold);
    }
    const int32x4_t pairs = vpaddq_s32(counts[0], counts[1]), both = vpaddq_s32(pairs, pairs);
    *differs = vgetq_lane_s32(both, 0) != vgetq_lane_s32(both, 1);
    return (uint32_t)vgetq_lane_s32(both, 0);
#else
    uint32_t passed = 0, maybe = 0;
    for (int j = 0; j < LADDER_STEP; j += LANES) {
        const vf start = *(const vf_any *)(row + j), rise = *(const vf_any *)(row + width + j);
        const vf threshold = fused(rise, places, start);
        passed |= mask_ge(words, threshold) << j;
        maybe |= mask_ge(highs, threshold) << j;
    }
    *differs = passed != maybe;
    return (uint32_t)__builtin_popcount(passed);
#endif
}

/* Counts all thresholds that are passed: up to 16 at once; if there are more, first every 16th,
   then the 16 below the first that was not passed. Thresholds ascend, so these decide about the
   rest. */
INLINE uint32_t count_all(const struct sv_ladder *job, size_t cell, size_t width, float word,
                          float high, float place, int *differs)
{
    const float *row = job->rows + cell * 2 * width;
    if (width == LADDER_STEP)
        return count_few(row, width, word, high, place, differs);
    const size_t coarse = width - LADDER_STEP; /* Every 16th is repeated after all. */
    const size_t steps =
        LADDER_STEP * (size_t)count_few(row + coarse, width, word, high, place, differs);
    if (steps >= coarse)
        return *differs = 1, 0; /* The last of the 16ths is padding. */
    int fine;
    const uint32_t rest = count_few(row + steps, width, word, high, place, &fine);
    *differs |= fine;
    return (uint32_t)steps + rest;
}

INLINE void count_tile(const struct sv_ladder *job, struct ladder_tile *t, size_t width,
                       uint8_t *codes)
{
    for (size_t at = 0; at < SV_TILE_DRAWS; at += 32) {
        uint32_t differing = 0;
        for (size_t l = 0; l < 32; l++) {
            const size_t i = at + l;
            int differs;
            codes[i] = (uint8_t)count_all(job, (size_t)t->cells[i], width, t->words[i], t->highs[i],
                                          t->places[i], &differs);
            differing |= (uint32_t)differs << l;
        }
        t->differing[at / 32] = differing;
    }
}

/* Decides a coordinate that a tile left undecided: after the narrow pass by the ladder, and
   otherwise, or if that does not decide, in double precision. */
static __attribute__((noinline)) uint8_t settled_code(const struct sv_ladder *job, double x,
                                                      uint32_t word, size_t i, int after_narrow,
                                                      struct sv_open *open)
{
    if (after_narrow) {
        size_t cell;
        int differs;
        const float w = (float)word;
        const float place =
            place_in(job, (float)(x - job->shift) * job->cells_per_unit + job->origin, &cell);
        const uint32_t code =
            count_all(job, cell, job->width, w, w + job->gaps[cell], place, &differs);
        if (!differs)
            return (uint8_t)code;
    }
    return sv_decided_code(job, x, word, i, open);
}

INLINE void ladder_tile(const struct sv_ladder *job, const struct narrow_tree *tree,
                        const struct streams *streams, const void *tile, int is_double,
                        size_t first, size_t left, uint8_t *codes, struct sv_open *open)
{
    struct ladder_tile t;
    int after_narrow = 0;
    (void)tree;
    tile_draws(streams, (uint32_t)(first / SV_TILE_DRAWS), t.draws);
#if defined(SV_AVX512) || defined(SV_NEON)
    if (job->narrow_cells) {
        narrow_pass(job, tree, tile, is_double, t.draws, codes, t.differing);
        after_narrow = 1;
    } else
#endif
    {
        find_cells(job, tile, is_double, &t);
        if (job->width == LADDER_STEP)
            count_tile(job, &t, LADDER_STEP, codes);
        else
            count_tile(job, &t, job->width, codes);
    }
    for (size_t at = 0; at < left; at += 32) {
        uint32_t differing = t.differing[at / 32];
        for (; __builtin_expect(differing != 0, 0); differing &= differing - 1) {
            const size_t i = at + (size_t)__builtin_ctz(differing);
            if (i >= left)
                break;
            const double x = is_double ? ((const double *)tile)[i] : ((const float *)tile)[i];
            codes[i] = settled_code(job, x, t.draws[i], first + i, after_narrow, open);
        }
    }
}

INLINE void ladder_tiles(const struct sv_ladder *job, const void *values, size_t count,
                         int is_double, uint8_t *codes, struct sv_open *open)
{
    const size_t size = is_double ? sizeof(double) : sizeof(float);
    size_t at = 0;
    struct streams streams;
    struct narrow_tree tree;
    start_stream(&streams, job->key);
    plant_tree(job, &tree);
    for (; at + SV_TILE_DRAWS <= count; at += SV_TILE_DRAWS)
        ladder_tile(job, &tree, &streams, (const char *)values + at * size, is_double,
                    job->first + at, SV_TILE_DRAWS, codes + at, open);
    if (at == count)
        return;
    double padded[SV_TILE_DRAWS] = {0.0};
    uint8_t all[SV_TILE_DRAWS];
    memcpy(padded, (const char *)values + at * size, (count - at) * size);
    ladder_tile(job, &tree, &streams, padded, is_double, job->first + at, count - at, all, open);
    memcpy(codes + at, all, count - at);
}

static void ladder(const struct sv_ladder *job, struct sv_values values, uint8_t *codes,
                   struct sv_open *open)
{
    if (values.is_double)
        ladder_tiles(job, values.start, values.count, 1, codes, open);
    else
        ladder_tiles(job, values.start, values.count, 0, codes, open);
}
