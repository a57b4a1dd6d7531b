/* The kernels of one level that make the rows of many inputs: loops that compilers vectorize. */
#include "rows_kernels.h"

static void outer_row(const float *left, size_t outputs, const float *right, size_t features,
                      float *out)
{
    for (size_t o = 0; o < outputs; o++) {
        const float factor = left[o];
        float *restrict part = out + o * features;
        for (size_t f = 0; f < features; f++)
            part[f] = factor * right[f];
    }
}

static void widened_row(const void *values, size_t count, int is_double, double factor,
                        double *restrict out)
{
    const double *doubles = values;
    const float *singles = values;
    if (is_double)
        for (size_t i = 0; i < count; i++)
            out[i] = doubles[i] * factor;
    else
        for (size_t i = 0; i < count; i++)
            out[i] = (double)singles[i] * factor;
}

static void rotated_block(double *block, size_t size, const uint8_t *signs, double *out)
{
    const size_t eighth = size / 8;
    const double scale = 1.0 / sqrt((double)size);
    for (size_t e = 0; e < 8; e++)
        hadamard(block + e * eighth, eighth, signs + e * eighth / 8);
    for (size_t i = 0; i < eighth; i += LANES64) {
        vd row[8];
        for (size_t r = 0; r < 8; r++)
            row[r] = *(const vd_any *)(block + r * eighth + i);
        levels_between(row, 8);
        for (size_t r = 0; r < 8; r++)
            *(vd_any *)(out + r * eighth + i) = row[r] * scale;
    }
}

const struct sv_rows SV_NAMED(sv_rows) = {
    .outer = outer_row,
    .widened = widened_row,
    .rotated = rotated_block,
};
