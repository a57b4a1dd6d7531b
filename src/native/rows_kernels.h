/* The interface of the kernels that make the rows of many inputs. */
#ifndef SV_ROWS_KERNELS_H
#define SV_ROWS_KERNELS_H

#include <stddef.h>

struct sv_rows {
    /* The products left[o] right[f], one row of `features` after the other, in single precision. */
    void (*outer)(const float *left, size_t outputs, const float *right, size_t features,
                  float *out);
    /* Values in single or double precision, times a factor, in double precision. */
    void (*widened)(const void *values, size_t count, int is_double, double factor, double *out);
};

#endif
