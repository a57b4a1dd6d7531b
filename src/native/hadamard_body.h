/* The fast Walsh-Hadamard transform of 2^k float64 numbers.

Level by level, half = 1, 2, 4, ...: a, b -> a + b, a - b for numbers at distance `half`. The order
of levels determines every rounding, so it is fixed; only the order in memory is free. The lowest
levels are computed inside registers, eight or sixteen at a time; the higher levels three or four at
a time, on columns of as many rows. The parts of a block are computed before the block, so that a
part which fits into a cache is finished while it is there. */

#define LANES64 (REGISTER / 8)
#if defined(SV_AVX512)
#define MOST_ROWS 16 /* Registers are enough for four levels at a time. */
#else
#define MOST_ROWS 8
#endif
#define BASE ((size_t)(MOST_ROWS * LANES64)) /* The count of numbers in that many registers. */
#define SMALL_BASE ((size_t)(8 * LANES64))

#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif

typedef double vd __attribute__((vector_size(REGISTER)));
typedef double vd_any __attribute__((vector_size(REGISTER), aligned(8), may_alias));

INLINE vq lane_numbers(void)
{
    static const uint64_t numbers[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    vq lanes;
    memcpy(&lanes, numbers, sizeof lanes);
    return lanes;
}

/* Negates x where the packed signs, from number `at` on, have a 1. */
INLINE vd flipped(vd x, const uint8_t *signs, size_t at)
{
#if defined(SV_AVX512)
    return (vd)_mm512_mask_xor_pd((__m512d)x, signs[at / 8], (__m512d)x, _mm512_set1_pd(-0.0));
#else
    const vq bits = (vq){0} + (uint64_t)(signs[at / 8] >> (at % 8));
    return (vd)((vq)x ^ ((bits >> lane_numbers()) << 63));
#endif
}

/* Exchanges the lanes l and l ^ half of x. */
INLINE vd exchanged(vd x, int half)
{
    const vq from = lane_numbers() ^ (uint64_t)half;
#if defined(__clang__)
    vd found;
    for (int l = 0; l < LANES64; l++)
        found[l] = x[from[l]];
    return found;
#else
    return __builtin_shuffle(x, from);
#endif
}

/* One level inside a register: a lane is added to its partner, or subtracted from it. */
INLINE vd level_inside(vd x, int half)
{
    const vq upper = ((lane_numbers() & (uint64_t)half) != 0) & ((uint64_t)1 << 63);
#if defined(SV_AVX512)
    /* A product with 1 or -1 is exact, so this rounds once, as the sum does. */
    const __m512d sign = (__m512d)((vq)_mm512_set1_pd(1.0) ^ upper);
    return (vd)_mm512_fmadd_pd((__m512d)x, sign, (__m512d)exchanged(x, half));
#else
    return exchanged(x, half) + (vd)((vq)x ^ upper);
#endif
}

/* Computes log2(rows) levels between registers. */
INLINE void levels_between(vd *row, int rows)
{
    UNROLLED
    for (int apart = 1; apart < rows; apart *= 2)
        UNROLLED
        for (int r = 0; r < rows; r++)
            if (!(r & apart)) {
                const vd below = row[r], above = row[r + apart];
                row[r] = below + above;
                row[r + apart] = below - above;
            }
}

/* Where a transform reads its numbers: from the block itself, or others times a factor. */
enum { OF_BLOCK, SINGLES, DOUBLES };
struct numbers {
    const void *values;
    int kind;
    double factor;
};

/* Reads the numbers of `rows` registers, from number `at` on, applies the signs, and computes all
   their levels. */
INLINE void base(const void *values, int kind, double factor, double *block, int rows, size_t at,
                 const uint8_t *signs)
{
    vd row[MOST_ROWS];
    UNROLLED
    for (int r = 0; r < rows; r++) {
        const size_t i = at + (size_t)(LANES64 * r);
        if (kind == OF_BLOCK)
            row[r] = *(const vd_any *)(block + i);
        else
            row[r] = load_doubles(values, kind == DOUBLES, i) * factor;
        if (signs)
            row[r] = flipped(row[r], signs, i);
        for (int half = 1; half < LANES64; half *= 2)
            row[r] = level_inside(row[r], half);
    }
    levels_between(row, rows);
    UNROLLED
    for (int r = 0; r < rows; r++)
        *(vd_any *)(block + at + LANES64 * r) = row[r];
}

/* Computes levels between `rows` rows of `half` numbers, in the columns begin ... end - 1; if `last`,
   then applies the scale and the signs. The result may be in another place. */
INLINE void columns(const double *block, size_t half, int rows, size_t begin, size_t end, int last,
                    double scale, const uint8_t *signs, double *out)
{
    for (size_t i = begin; i < end; i += LANES64) {
        vd row[MOST_ROWS];
        UNROLLED
        for (int r = 0; r < rows; r++)
            row[r] = *(const vd_any *)(block + (size_t)r * half + i);
        levels_between(row, rows);
        UNROLLED
        for (int r = 0; r < rows; r++) {
            const size_t at = (size_t)r * half + i;
            if (last)
                row[r] *= scale;
            if (last && signs)
                row[r] = flipped(row[r], signs, at);
            *(vd_any *)(out + at) = row[r];
        }
    }
}

INLINE void all_columns(double *block, size_t half, int rows)
{
    columns(block, half, rows, 0, half, 0, 1.0, NULL, block);
}

/* Computes the levels above those of `rows` rows. */
INLINE void higher_levels(double *block, size_t half, int rows)
{
    if (rows == 16)
        all_columns(block, half, MOST_ROWS);
    else if (rows == 8)
        all_columns(block, half, 8);
    else if (rows == 4)
        all_columns(block, half, 4);
    else if (rows == 2)
        all_columns(block, half, 2);
}

/* Transforms the numbers from `at` on, as many as fit into the L1 cache. */
INLINE void part_of(const void *values, int kind, double factor, double *block, size_t at,
                    size_t size, const uint8_t *signs)
{
    if (size == SMALL_BASE) {
        base(values, kind, factor, block, 8, at, signs);
        return;
    }
    for (size_t i = at; i < at + size; i += BASE)
        base(values, kind, factor, block, MOST_ROWS, i, signs);
    higher_levels(block + at, BASE, (int)(size / BASE));
}

static void transform(const struct numbers *given, double *block, size_t at, size_t size,
                      const uint8_t *signs)
{
    if (size > MOST_ROWS * BASE) {
        const size_t half = size / MOST_ROWS < MOST_ROWS * BASE ? MOST_ROWS * BASE
                                                                : size / MOST_ROWS;
        for (size_t i = at; i < at + size; i += half)
            transform(given, block, i, half, signs);
        higher_levels(block + at, half, (int)(size / half));
    } else if (given->kind == SINGLES) {
        part_of(given->values, SINGLES, given->factor, block, at, size, signs);
    } else if (given->kind == DOUBLES) {
        part_of(given->values, DOUBLES, given->factor, block, at, size, signs);
    } else if (signs) {
        part_of(NULL, OF_BLOCK, 1.0, block, at, size, signs);
    } else {
        part_of(NULL, OF_BLOCK, 1.0, block, at, size, NULL);
    }
}

static void eighth_of_block(const struct sv_values *values, double factor, double *eighth,
                            size_t size, const uint8_t *signs)
{
    const struct numbers given = {
        .values = values ? values->start : NULL,
        .kind = !values ? OF_BLOCK : values->is_double ? DOUBLES : SINGLES,
        .factor = factor,
    };
    transform(&given, eighth, 0, size, signs);
}

static void last_levels(const double *block, size_t size, size_t begin, size_t end,
                        const uint8_t *signs, double *out)
{
    const double scale = 1.0 / sqrt((double)size);
    if (signs)
        columns(block, size / 8, 8, begin, end, 1, scale, signs, out);
    else
        columns(block, size / 8, 8, begin, end, 1, scale, NULL, out);
}
