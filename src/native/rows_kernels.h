/* The interface of the kernels that make the rows of many inputs. */
#ifndef SV_ROWS_KERNELS_H
#define SV_ROWS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

struct sv_rows {
    /* The products left[o] right[f], one row of `features` after the other, in single precision. */
    void (*outer)(const float *left, size_t outputs, const float *right, size_t features,
                  float *out);
    /* Values in single or double precision, times a factor, in double precision. */
    void (*widened)(const void *values, size_t count, int is_double, double factor, double *out);
    /* The scaled Hadamard transform of 2^k >= 512 numbers whose signs are applied first. The block
       is overwritten, and the result is in `out`, which may be the block. */
    void (*rotated)(double *block, size_t size, const uint8_t *signs, double *out);
};

#endif
