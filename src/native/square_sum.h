/* The sum of squares, as one binary tree whose shape depends only on the count.

Leaves are in the order of lanes: coordinate 32 k + l of a tile of 1024 is leaf 32 l + k, so that
registers of adjacent coordinates are added without a shuffle. A node is the sum of its two
children, absent leaves are 0; all is in float64. So every level and every machine computes the same
number, and its relative error is below (log2(count) + 2) 2^-53. */

#define DOUBLE_LANES (LANES / 2)
typedef double vd __attribute__((vector_size(8 * DOUBLE_LANES)));
typedef double vd_any __attribute__((vector_size(8 * DOUBLE_LANES), aligned(8), may_alias));

INLINE vd load_doubles(const void *values, int is_double, size_t at)
{
    if (is_double)
        return *(const vd_any *)((const double *)values + at);
    const float *place = (const float *)values + at;
#if defined(SV_AVX512)
    return (vd)_mm512_cvtps_pd(_mm256_loadu_ps(place));
#elif defined(SV_AVX2)
    return (vd)_mm256_cvtps_pd(_mm_loadu_ps(place));
#else
    vd wide;
    for (int l = 0; l < DOUBLE_LANES; l++)
        wide[l] = (double)place[l];
    return wide;
#endif
}

/* Adds the squares of coordinates k ... k + 2^depth - 1 of DOUBLE_LANES lanes. */
INLINE vd square_pair(const void *tile, int is_double, size_t at)
{
    const vd a = load_doubles(tile, is_double, at), b = load_doubles(tile, is_double, at + 32);
    return a * a + b * b;
}
INLINE vd squares4(const void *tile, int is_double, size_t at)
{
    return square_pair(tile, is_double, at) + square_pair(tile, is_double, at + 64);
}
INLINE vd squares8(const void *tile, int is_double, size_t at)
{
    return squares4(tile, is_double, at) + squares4(tile, is_double, at + 128);
}
INLINE vd squares16(const void *tile, int is_double, size_t at)
{
    return squares8(tile, is_double, at) + squares8(tile, is_double, at + 256);
}

INLINE double tile_squares(const void *tile, int is_double)
{
    double lanes[32];
    for (size_t group = 0; group < 32; group += DOUBLE_LANES) {
        const vd sum = squares16(tile, is_double, group) + squares16(tile, is_double, group + 512);
        memcpy(lanes + group, &sum, sizeof sum);
    }
    for (int size = 16; size; size /= 2)
        for (int l = 0; l < size; l++)
            lanes[l] = lanes[2 * l] + lanes[2 * l + 1];
    return lanes[0];
}

INLINE void add_tiles(struct sv_squares *sum, const void *values, size_t count, int is_double)
{
    const size_t size = is_double ? sizeof(double) : sizeof(float);
    for (size_t at = 0; at < count; at += SV_TILE_DRAWS, sum->tiles++) {
        double squares;
        const char *tile = (const char *)values + at * size;
        if (count - at >= SV_TILE_DRAWS) {
            squares = tile_squares(tile, is_double);
        } else {
            double padded[SV_TILE_DRAWS] = {0.0};
            memcpy(padded, tile, (count - at) * size);
            squares = tile_squares(padded, is_double);
        }
        int height = 0;
        for (size_t number = sum->tiles; number & 1; number >>= 1, height++)
            squares = sum->partial[height] + squares; /* Of the finished left sibling. */
        sum->partial[height] = squares;
    }
}

static void add_squares(struct sv_squares *sum, struct sv_values values)
{
    if (values.is_double)
        add_tiles(sum, values.start, values.count, 1);
    else
        add_tiles(sum, values.start, values.count, 0);
}

static double total_squares(const struct sv_squares *sum)
{
    double total = 0.0; /* Missing leaves on the right are 0. */
    int height = 0;
    for (size_t number = sum->tiles; number; number >>= 1, height++)
        if (number & 1)
            total = sum->partial[height] + total;
    return total;
}

static double square_sum(struct sv_values values)
{
    struct sv_squares sum = {.tiles = 0};
    add_squares(&sum, values);
    return total_squares(&sum);
}
