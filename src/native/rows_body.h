/* The kernels of one level that make the rows of many inputs: loops that compilers vectorize. */
#include "rows_kernels.h"

#include "hadamard_body.h"

static void outer_part(const float *left, const float *right, size_t features, size_t begin,
                       size_t end, float *out)
{
    size_t f = begin % features;
    for (size_t o = begin / features; begin < end; o++, f = 0) {
        const size_t some = features - f < end - begin ? features - f : end - begin;
        const float factor = left[o], *from = right + f;
        float *restrict part = out;
        for (size_t k = 0; k < some; k++)
            part[k] = factor * from[k];
        out += some, begin += some;
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
    .outer = outer_part,
    .widened = widened_row,
    .eighth = eighth_of_block,
    .last_levels = last_levels,
};
