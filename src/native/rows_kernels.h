/* The interface of the kernels that make the rows of many inputs. */
#ifndef SV_ROWS_KERNELS_H
#define SV_ROWS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "sampling_kernels.h"

struct sv_rows {
    /* The products left[o] right[f], one row of `features` after the other, in single precision. */
    void (*outer)(const float *left, size_t outputs, const float *right, size_t features,
                  float *out);
    /* Values in single or double precision, times a factor, in double precision. */
    void (*widened)(const void *values, size_t count, int is_double, double factor, double *out);
    /* The transform H D v of a block of 2^k >= 512 numbers v, in two steps. D negates where a packed
       sign is 1, and is the identity if `signs` is NULL; the signs are those of the block.

       The first step, for an eighth of the block: the numbers at ... at + size - 1 are values times
       a factor or, if `values` is NULL, those in the block. */
    void (*eighth)(const struct sv_values *values, double factor, double *block, size_t at,
                   size_t size, const uint8_t *signs);
    /* The last three levels, when the eighths are done, in the columns begin ... end - 1, multiples
       of 8, of eight rows. Then scales, applies other signs, and writes to `out`, which may be the
       block. */
    void (*last_levels)(const double *block, size_t size, size_t begin, size_t end,
                        const uint8_t *signs, double *out);
};

#endif
