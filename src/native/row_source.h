/* The rows of many inputs: how Python passes them, and how one of them is made. */
#ifndef SV_ROW_SOURCE_H
#define SV_ROW_SOURCE_H

#include "native.h"

#define SV_MAX_LAYERS 64

/* Row i has left[i] as it is or, if `right` is given, the products of left[i] and right[i], and
   then left[i] again if `has_bias`. */
struct sv_layer {
    const float *left, *right;
    size_t outputs, features;
    int has_bias;
};

struct sv_row_source {
    Py_buffer held[2 * SV_MAX_LAYERS + 2];
    int num_held;
    struct sv_layer layers[SV_MAX_LAYERS];
    int count;
    const double *doubles; /* A matrix in double precision instead of layers, or NULL. */
    size_t rows, dimension;
    const double *factors; /* The clipping factor of each row, or NULL if all are 1. */
    /* The rotation: `passes` (0, 1 or 2) packed signs of `block` numbers each. */
    const uint8_t *signs;
    int passes;
    size_t block;
    int threads; /* How many may work on the rows. */
};

/* Memory in which a row is made: all of it, or some of its products at a time. */
struct sv_row_scratch {
    float *singles;
    size_t together; /* How many numbers are made at once. */
    double *row, *doubles;
    void *memory[3];
    int is_wide; /* Whether rows are made in double precision, their factors applied. */
};

/* Clipped and rotated values of a row: `values`, still to be multiplied with `factor`. */
struct sv_row {
    struct sv_values values;
    double factor;
};

/* Reads the arguments (layers, rows, dimension, is_double, factors, signs, threads); returns -1
   with an exception set if they do not fit. */
int sv_hold_rows(struct sv_row_source *source, PyObject *args);
void sv_release_rows(struct sv_row_source *source);

/* Returns -1 if there is no memory. With `is_wide` factors are applied when a row is made. */
int sv_make_scratch(struct sv_row_scratch *scratch, const struct sv_row_source *source,
                    int is_wide);
void sv_free_scratch(struct sv_row_scratch *scratch);

/* Returns the numbers of row i from `first` on as they were given, as many as are made at once: all
   of them, or whole tiles. */
struct sv_values sv_given_part(const struct sv_row_source *source, int level, size_t i,
                               size_t first, struct sv_row_scratch *scratch);
/* Returns the numbers of row i from `first` on, clipped and rotated, as many as are made at once. */
struct sv_row sv_prepared_part(const struct sv_row_source *source, int level, size_t i,
                               size_t first, struct sv_row_scratch *scratch);
/* Writes row i, clipped and rotated, to `out`. */
void sv_write_row(const struct sv_row_source *source, int level, size_t i,
                  struct sv_row_scratch *scratch, double *out);

#endif
