/* round((x + noise)/step) from 32 random bits: a sign, and 31 bits h of a tail.

The noise at the tail v = (h + something in [0, 1)) 2^-32 is the quantile Q(v), convex and
decreasing. Over a cell of h its chord c is too large by at most the cell's error e, so the noise
lies between c(h + 1) - e and c(h); if both ends, with x added, round to the same grid point, that
point is the code. There are 2^CELL_BITS cells in each octave of h, found in the bits of (double)h.
*/

#define CELL_BITS SV_NOISE_CELL_BITS
#define LEAST_TAIL (1 << SV_NOISE_LEAST_BITS) /* A smaller h needs more random bits. */

typedef int64_t vl __attribute__((vector_size(8 * DOUBLE_LANES)));
typedef int32_t vh __attribute__((vector_size(4 * DOUBLE_LANES)));
typedef int32_t vh_any __attribute__((vector_size(4 * DOUBLE_LANES), aligned(4), may_alias));

/* Loads table[index[l]] into each lane l. */
INLINE vd gathered(const double *table, vl index)
{
#if defined(SV_AVX512)
    return (vd)_mm512_i64gather_pd((__m512i)index, table, 8);
#elif defined(SV_AVX2)
    return (vd)_mm256_i64gather_pd(table, (__m256i)index, 8);
#else
    return (vd){table[index[0]], table[index[1]]};
#endif
}

INLINE vd doubles_of(vh x)
{
#if defined(SV_NEON)
    return (vd)vcvtq_f64_s64(vmovl_s32((int32x2_t)x));
#else
    return __builtin_convertvector(x, vd);
#endif
}

INLINE vh integers_of(vd x)
{
#if defined(SV_NEON)
    return (vh)vmovn_s64(vcvtq_s64_f64((float64x2_t)x));
#else
    return __builtin_convertvector(x, vh);
#endif
}

INLINE vd rounded(vd x)
{
    const double magic = 0x1.8p52; /* Adding it rounds to an integer, to even at ties. */
    return (x + magic) - magic;
}

/* Computes the codes of DOUBLE_LANES coordinates; lanes of `undecided` are -1 where the draw does
   not decide the code. */
INLINE vh grid_codes(const struct sv_grid_noise *job, vd x, vh words, vl *undecided)
{
    const vh tails = (vh)((words >> 1) & 0x7fffffff);
    const vl large = __builtin_convertvector(tails >= LEAST_TAIL, vl);
    const vd h = (vd)(((vl)doubles_of(tails) & large) |
                      ((vl)((vd){0} + (double)LEAST_TAIL) & ~large));
    const vl cell = ((vl)h >> (52 - CELL_BITS)) - ((1023ll + SV_NOISE_LEAST_BITS) << CELL_BITS);
    const vd start = (vd)((vl)h & ~((1ll << (52 - CELL_BITS)) - 1));
    const vd value = gathered(job->chords, 4 * cell), slope = gathered(job->chords + 1, 4 * cell);
    const vd far = value + slope * (h - start);
    const vd near = far + slope - gathered(job->chords + 2, 4 * cell);
    /* Negative noise at x is positive noise at -x, mirrored. */
    const vl sign = __builtin_convertvector(words, vl) << 63;
    const vd place = (vd)((vl)x ^ sign) * job->steps_per_unit;
    const vd low = rounded(place + near - job->slack), high = rounded(place + far + job->slack);
    *undecided = (low != high) | ~large;
    return integers_of((vd)((vl)high ^ sign));
}

/* Computes the codes of a tile, of which the first `left` are used. */
INLINE void grid_tile(const struct sv_grid_noise *job, const struct streams *streams,
                      const double *values, size_t first, size_t left, int32_t *codes,
                      struct sv_open *open)
{
    uint32_t words[SV_TILE_WORDS];
    tile_words(streams, (uint32_t)(first / SV_TILE_WORDS), words);
    for (size_t at = 0; at < SV_TILE_WORDS; at += DOUBLE_LANES) {
        vl undecided;
        const vh found = grid_codes(job, *(const vd_any *)(values + at),
                                    *(const vh_any *)(words + at), &undecided);
        memcpy(codes + at, &found, sizeof found);
        int64_t any = 0;
        for (int l = 0; l < DOUBLE_LANES; l++)
            any |= undecided[l];
        if (__builtin_expect(any != 0, 0))
            for (size_t l = 0; l < DOUBLE_LANES; l++)
                if (undecided[l] && at + l < left)
                    sv_leave_open(open, first + at + l);
    }
}

static void grid_noise(const struct sv_grid_noise *job, struct sv_values values, int32_t *codes,
                       struct sv_open *open)
{
    const double *start = values.start;
    struct streams streams;
    start_stream(&streams, job->key);
    size_t at = 0;
    for (; at + SV_TILE_WORDS <= values.count; at += SV_TILE_WORDS)
        grid_tile(job, &streams, start + at, job->first + at, SV_TILE_WORDS, codes + at, open);
    if (at == values.count)
        return;
    const size_t left = values.count - at;
    double padded[SV_TILE_WORDS] = {0.0};
    int32_t all[SV_TILE_WORDS];
    memcpy(padded, start + at, left * sizeof *padded);
    grid_tile(job, &streams, padded, job->first + at, left, all, open);
    memcpy(codes + at, all, left * sizeof *all);
}
