/* round((x + noise)/step) from 32 random bits: a sign, and 31 bits h of a tail.

The noise at the tail v = (h + something in [0, 1)) 2^-32 is the quantile Q(v), convex and falling.
Over a cell of h its chord c is too large by at most the cell's error e, so the noise lies between
c(h + 1) - e and c(h); where both ends, x added, round to the same grid point, that is the code.
Cells: 2^CELL_BITS in each octave of h, found in the bits of (double)h. */

#define CELL_BITS SV_NOISE_CELL_BITS
#define LEAST_TAIL (1u << SV_NOISE_LEAST_BITS) /* h below it is left to more random bits */

static void grid_noise(const struct sv_grid_noise *job, struct sv_values values, int32_t *codes,
                       struct sv_open *open)
{
    const double *x = values.start;
    uint32_t words[SV_TILE_WORDS];
    for (size_t at = 0; at < values.count; at += SV_TILE_WORDS) {
        const size_t left = values.count - at < SV_TILE_WORDS ? values.count - at : SV_TILE_WORDS;
        draws32(job->key, (uint32_t)((job->first + at) / SV_TILE_WORDS), 1, words);
        uint8_t undecided[SV_TILE_WORDS];
        for (size_t i = 0; i < left; i++) {
            const uint32_t tail = words[i] >> 1, safe = tail < LEAST_TAIL ? LEAST_TAIL : tail;
            const double h = (double)safe;
            uint64_t bits;
            memcpy(&bits, &h, sizeof bits);
            const size_t cell = (size_t)(bits >> (52 - CELL_BITS)) - ((1023ull + SV_NOISE_LEAST_BITS) << CELL_BITS);
            const uint64_t start_bits = bits & ~((1ull << (52 - CELL_BITS)) - 1);
            double start;
            memcpy(&start, &start_bits, sizeof start);
            const double *chord = job->chords + 4 * cell;
            const double far = chord[0] + chord[1] * (h - start);
            const double near = far + chord[1] - chord[2];
            /* Negative noise at x is positive noise at -x, mirrored. */
            const double sign = words[i] & 1 ? -1.0 : 1.0;
            const double place = sign * x[at + i] * job->steps_per_unit;
            const double low = rint(place + near - job->slack);
            const double high = rint(place + far + job->slack);
            codes[at + i] = (int32_t)(sign * high);
            undecided[i] = (low != high) | (tail < LEAST_TAIL);
        }
        for (size_t i = 0; i < left; i++)
            if (__builtin_expect(undecided[i], 0))
                sv_leave_open(open, job->first + at + i);
    }
}
