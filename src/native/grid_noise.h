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
    const vd h = (vd)(((vl)__builtin_convertvector(tails, vd) & large) |
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
    return __builtin_convertvector((vd)((vl)high ^ sign), vh);
}

static void grid_noise(const struct sv_grid_noise *job, struct sv_values values, int32_t *codes,
                       struct sv_open *open)
{
    uint32_t words[SV_TILE_WORDS];
    double padded[DOUBLE_LANES];
    int32_t last[DOUBLE_LANES];
    for (size_t at = 0; at < values.count; at += SV_TILE_WORDS) {
        const size_t left = values.count - at < SV_TILE_WORDS ? values.count - at : SV_TILE_WORDS;
        draws32(job->key, (uint32_t)((job->first + at) / SV_TILE_WORDS), 1, words);
        for (size_t i = 0; i < left; i += DOUBLE_LANES) {
            const double *x = (const double *)values.start + at + i;
            const size_t here = left - i < DOUBLE_LANES ? left - i : DOUBLE_LANES;
            if (here < DOUBLE_LANES) {
                memset(padded, 0, sizeof padded);
                memcpy(padded, x, here * sizeof *x);
                x = padded;
            }
            vl undecided;
            const vh found =
                grid_codes(job, *(const vd_any *)x, *(const vh_any *)(words + i), &undecided);
            memcpy(last, &found, sizeof found);
            memcpy(codes + at + i, last, here * sizeof *last);
            int64_t any = 0;
            for (int l = 0; l < DOUBLE_LANES; l++)
                any |= undecided[l];
            if (__builtin_expect(any != 0, 0))
                for (size_t l = 0; l < here; l++)
                    if (undecided[l])
                        sv_leave_open(open, job->first + at + i + l);
        }
    }
}
