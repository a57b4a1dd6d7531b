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

/* The chords of a cell in each lane. They are loaded one cell after the other and transposed: gather
   instructions are slow on processors that protect what they gather from leaking. */
struct chord_lanes {
    vd value, slope, error;
};

INLINE struct chord_lanes chords_of(const double *chords, vl cells)
{
    struct chord_lanes found;
    const double *row[DOUBLE_LANES];
    for (int l = 0; l < DOUBLE_LANES; l++)
        row[l] = chords + 4 * cells[l];
#if defined(SV_AVX512)
    __m512d rows[4]; /* Cell k in the lower half, cell 4 + k in the upper half. */
    for (int k = 0; k < 4; k++)
        rows[k] = _mm512_insertf64x4(_mm512_castpd256_pd512(_mm256_loadu_pd(row[k])),
                                     _mm256_loadu_pd(row[4 + k]), 1);
    const __m512d low = _mm512_unpacklo_pd(rows[0], rows[1]);
    const __m512d high = _mm512_unpacklo_pd(rows[2], rows[3]);
    const __m512i first = _mm512_set_epi64(13, 12, 5, 4, 9, 8, 1, 0);
    const __m512i second = _mm512_set_epi64(15, 14, 7, 6, 11, 10, 3, 2);
    found.value = (vd)_mm512_permutex2var_pd(low, first, high);
    found.error = (vd)_mm512_permutex2var_pd(low, second, high);
    found.slope = (vd)_mm512_permutex2var_pd(_mm512_unpackhi_pd(rows[0], rows[1]), first,
                                             _mm512_unpackhi_pd(rows[2], rows[3]));
#elif defined(SV_AVX2)
    __m256d rows[4];
    for (int k = 0; k < 4; k++)
        rows[k] = _mm256_loadu_pd(row[k]);
    const __m256d low = _mm256_unpacklo_pd(rows[0], rows[1]);
    const __m256d high = _mm256_unpacklo_pd(rows[2], rows[3]);
    found.value = (vd)_mm256_permute2f128_pd(low, high, 0x20);
    found.error = (vd)_mm256_permute2f128_pd(low, high, 0x31);
    found.slope = (vd)_mm256_permute2f128_pd(_mm256_unpackhi_pd(rows[0], rows[1]),
                                             _mm256_unpackhi_pd(rows[2], rows[3]), 0x20);
#else
    found.value = (vd){row[0][0], row[1][0]};
    found.slope = (vd){row[0][1], row[1][1]};
    found.error = (vd){row[0][2], row[1][2]};
#endif
    return found;
}

/* Bit l is set where lane l is -1, not 0. */
INLINE uint32_t set_lanes(vl lanes)
{
#if defined(SV_AVX512)
    return _mm512_movepi64_mask((__m512i)lanes);
#elif defined(SV_AVX2)
    return (uint32_t)_mm256_movemask_pd((__m256d)lanes);
#else
    return (uint32_t)((lanes[0] & 1) | (lanes[1] & 2));
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
    const struct chord_lanes chord = chords_of(job->chords, cell);
    const vd far = chord.value + chord.slope * (h - start);
    const vd near = far + chord.slope - chord.error;
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
        for (uint32_t set = set_lanes(undecided); __builtin_expect(set != 0, 0); set &= set - 1) {
            const size_t i = at + (size_t)__builtin_ctz(set);
            if (i < left)
                sv_leave_open(open, first + i);
        }
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
