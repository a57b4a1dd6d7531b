/* Codes of a few bits: one coordinate's 16 random bits against a ladder of thresholds.

Over each cell of x a threshold is taken to be linear, and raised by the cell's margin; the gap is
twice the margin and the draw's own width, 1. So where w and w + gap pass equally many thresholds,
that is the code, and elsewhere it is decided in double precision with 64 bits more. docs/kernels.md
proves the margins, which `kernels/ladder.py` computes. */

#define LADDER_STEP 16 /* thresholds that are compared together; rows are padded to it */

struct ladder_tile {
    float words[SV_TILE_DRAWS], highs[SV_TILE_DRAWS], places[SV_TILE_DRAWS];
    int32_t cells[SV_TILE_DRAWS];
    uint8_t differing[SV_TILE_DRAWS];
    uint16_t draws[SV_TILE_DRAWS];
};

/* Where in the ladder; what lies outside is in the last cell, whose gap is infinite. */
INLINE void find_cells(const struct sv_ladder *job, const void *tile, int is_double,
                       struct ladder_tile *t)
{
    const vf unit = (vf){0} + job->cells_per_unit, origin = (vf){0} + job->origin;
    const vf end = (vf){0} + (float)job->cells;
    for (size_t at = 0; at < SV_TILE_DRAWS; at += LANES) {
        const vf place = load_floats(tile, is_double, at, job->shift) * unit + origin;
        const vi inside = (place >= (vf){0}) & (place < end);
        const vf safe = (vf)(((vi)place & inside) | ((vi)end & ~inside));
        const vi cell = __builtin_convertvector(safe, vi); /* truncates */
        const vf rest = safe - __builtin_convertvector(cell, vf);
        memcpy(t->cells + at, &cell, sizeof cell);
        memcpy(t->places + at, &rest, sizeof rest);
    }
    for (size_t i = 0; i < SV_TILE_DRAWS; i++) {
        t->words[i] = (float)t->draws[i];
        t->highs[i] = (float)t->draws[i] + job->gaps[t->cells[i]];
    }
}

/* Counts what passes the thresholds `from` ... `from` + 15. */
INLINE void climb(const struct ladder_tile *t, const float *rows, size_t width, uint8_t *codes,
                  uint8_t *differing, int first)
{
    for (size_t i = 0; i < SV_TILE_DRAWS; i++) {
        const float *row = rows + (size_t)t->cells[i] * 2 * width;
        const vf word = (vf){0} + t->words[i], high = (vf){0} + t->highs[i];
        const vf place = (vf){0} + t->places[i];
        uint32_t passed = 0, maybe = 0;
        for (int j = 0; j < LADDER_STEP; j += LANES) {
            const vf start = *(const vf_any *)(row + j), rise = *(const vf_any *)(row + width + j);
            const vf threshold = fused(rise, place, start);
            passed |= mask_ge(word, threshold) << j;
            maybe |= mask_ge(high, threshold) << j;
        }
        const uint8_t count = (uint8_t)__builtin_popcount(passed);
        const uint8_t differs = passed != maybe;
        codes[i] = (uint8_t)(first ? count : codes[i] + count);
        differing[i] = (uint8_t)(first ? differs : differing[i] | differs);
    }
}

INLINE void ladder_tile(const struct sv_ladder *job, const void *tile, int is_double, size_t first,
                        size_t left, uint8_t *codes, struct sv_open *open)
{
    struct ladder_tile t;
    draws16(job->key, (uint32_t)(first / SV_TILE_DRAWS), 1, t.draws);
    find_cells(job, tile, is_double, &t);
    if (job->width == LADDER_STEP) {
        climb(&t, job->rows, LADDER_STEP, codes, t.differing, 1);
    } else {
        climb(&t, job->rows, job->width, codes, t.differing, 1);
        for (size_t j = LADDER_STEP; j < job->width; j += LADDER_STEP)
            climb(&t, job->rows + j, job->width, codes, t.differing, 0);
    }
    for (size_t at = 0; at < left; at += 8) {
        uint64_t any;
        memcpy(&any, t.differing + at, sizeof any);
        for (; __builtin_expect(any != 0, 0); any &= any - 1) {
            const size_t i = at + (size_t)__builtin_ctzll(any) / 8;
            if (i >= left)
                break;
            const double x = is_double ? ((const double *)tile)[i] : ((const float *)tile)[i];
            codes[i] = sv_decided_code(job, x, t.draws[i], first + i, open);
        }
    }
}

INLINE void ladder_tiles(const struct sv_ladder *job, const void *values, size_t count,
                         int is_double, uint8_t *codes, struct sv_open *open)
{
    const size_t size = is_double ? sizeof(double) : sizeof(float);
    size_t at = 0;
    for (; at + SV_TILE_DRAWS <= count; at += SV_TILE_DRAWS)
        ladder_tile(job, (const char *)values + at * size, is_double, job->first + at, SV_TILE_DRAWS,
                    codes + at, open);
    if (at == count)
        return;
    double padded[SV_TILE_DRAWS] = {0.0};
    uint8_t all[SV_TILE_DRAWS];
    memcpy(padded, (const char *)values + at * size, (count - at) * size);
    ladder_tile(job, padded, is_double, job->first + at, count - at, all, open);
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
