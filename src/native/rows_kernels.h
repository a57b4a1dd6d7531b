/* The interface of the kernels that make the rows of many inputs. */
#ifndef SV_ROWS_KERNELS_H
#define SV_ROWS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "sampling_kernels.h"

struct sv_rows {
    /* Of the products left[o] right[f], one row of `features` after the other, in single precision,
       those with the numbers begin ... end - 1. */
    void (*outer)(const float *left, const float *right, size_t features, size_t begin, size_t end,
                  float *out);
    /* Values in single or double precision, times a factor, in double precision. */
    void (*widened)(const void *values, size_t count, int is_double, double factor, double *out);
    /* The transform H D v of a block of 2^k >= 512 numbers v, in two steps. D negates where a packed
       sign is 1, and is the identity if `signs` is NULL.

       The first step, for each eighth of the block: its numbers are values times a factor or, if
       `values` is NULL, those that are there. */
    void (*eighth)(const struct sv_values *values, double factor, double *eighth, size_t size,
                   const uint8_t *signs);
    /* The last three levels, when the eighths are done, in the columns begin ... end - 1, multiples
       of 8, of eight rows. Then scales, applies other signs, and writes to `out`, which may be the
       block. */
    void (*last_levels)(const double *block, size_t size, size_t begin, size_t end,
                        const uint8_t *signs, double *out);
};

#endif
