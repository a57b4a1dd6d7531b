/* The kernels of one level that make the rows of many inputs: loops that compilers vectorize. */
#include "rows_kernels.h"

#include "hadamard_body.h"

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

const struct sv_rows SV_NAMED(sv_rows) = {
    .outer = outer_row,
    .widened = widened_row,
    .eighth = eighth_of_block,
    .last_levels = last_levels,
};
