/* The rows of many inputs: how Python passes them, and how one of them is made. */
#include "row_source.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "workers.h"

#define LEAST_FAST_BLOCK 512 /* The kernels of every level need eighths of 64 numbers. */
#define TOGETHER ((size_t)2 * SV_TILE_DRAWS) /* Products that are made at once, in the L1 cache. */

static int aligned(const Py_buffer *view, size_t size)
{
    return (size_t)view->len % size == 0 && (view->len == 0 || (uintptr_t)view->buf % size == 0);
}

/* Acquires a buffer, which is released with the source. */
static Py_buffer *hold(struct sv_row_source *source, PyObject *object)
{
    Py_buffer *view = &source->held[source->num_held];
    if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) < 0)
        return NULL;
    source->num_held++;
    return view;
}

/* Reads one layer (left, right or None, has_bias); returns how many numbers it has, or -1. */
static Py_ssize_t hold_layer(struct sv_row_source *source, PyObject *item)
{
    PyObject *first, *second;
    struct sv_layer *layer = &source->layers[source->count];
    if (!PyTuple_Check(item) || !PyArg_ParseTuple(item, "OOi", &first, &second, &layer->has_bias))
        return -1;
    const Py_ssize_t rows = (Py_ssize_t)source->rows;
    const Py_buffer *left = hold(source, first);
    if (!left || !aligned(left, 4) || left->len % (4 * rows))
        return -1;
    layer->left = left->buf, layer->outputs = (size_t)(left->len / 4 / rows);
    layer->right = NULL, layer->features = 0;
    source->count++;
    if (second == Py_None)
        return (Py_ssize_t)layer->outputs;
    const Py_buffer *right = hold(source, second);
    if (!right || !aligned(right, 4) || right->len % (4 * rows))
        return -1;
    layer->right = right->buf, layer->features = (size_t)(right->len / 4 / rows);
    if (layer->features > PY_SSIZE_T_MAX / 16 / (layer->outputs + 1))
        return -1;
    return (Py_ssize_t)(layer->outputs * (layer->features + (layer->has_bias ? 1 : 0)));
}

static int hold_layers(struct sv_row_source *source, PyObject *list)
{
    const Py_ssize_t count = PyList_Check(list) ? PyList_Size(list) : 0;
    if (count < 1 || count > SV_MAX_LAYERS)
        return -1;
    Py_ssize_t total = 0;
    for (Py_ssize_t k = 0; k < count; k++) {
        const Py_ssize_t numbers = hold_layer(source, PyList_GetItem(list, k));
        if (numbers < 0)
            return -1;
        total += numbers;
    }
    return total == (Py_ssize_t)source->dimension ? 0 : -1;
}

static int hold_doubles(struct sv_row_source *source, PyObject *list)
{
    if (!PyList_Check(list) || PyList_Size(list) != 1 || !PyTuple_Check(PyList_GetItem(list, 0)))
        return -1;
    const Py_buffer *view = hold(source, PyTuple_GetItem(PyList_GetItem(list, 0), 0));
    if (!view || !aligned(view, 8) ||
        view->len / 8 / (Py_ssize_t)source->rows != (Py_ssize_t)source->dimension ||
        view->len != 8 * (Py_ssize_t)source->rows * (Py_ssize_t)source->dimension)
        return -1;
    source->doubles = view->buf;
    return 0;
}

static int hold_factors(struct sv_row_source *source, PyObject *factors, PyObject *signs)
{
    const Py_buffer *view = hold(source, factors), *bits = view ? hold(source, signs) : NULL;
    if (!bits || !aligned(view, 8) || (view->len && view->len != 8 * (Py_ssize_t)source->rows))
        return -1;
    source->factors = view->len ? view->buf : NULL;
    source->block = 1;
    while (source->block <= source->dimension / 2)
        source->block *= 2;
    const Py_ssize_t size = (Py_ssize_t)(source->block + 7) / 8;
    source->passes = bits->len == 0 ? 0 : source->block == source->dimension ? 1 : 2;
    source->signs = bits->buf;
    return bits->len == source->passes * size ? 0 : -1;
}

int sv_hold_rows(struct sv_row_source *source, PyObject *args)
{
    PyObject *layers, *factors, *signs;
    Py_ssize_t rows, dimension;
    int is_double;
    source->num_held = source->count = 0, source->doubles = NULL;
    if (!PyTuple_Check(args) ||
        !PyArg_ParseTuple(args, "OnniOOi", &layers, &rows, &dimension, &is_double, &factors, &signs,
                          &source->threads))
        return -1;
    const int fits = source->threads >= 1 && source->threads <= SV_MAX_THREADS && rows >= 1 &&
                     dimension >= 1 && rows <= PY_SSIZE_T_MAX / 16 / dimension;
    if (fits) {
        source->rows = (size_t)rows, source->dimension = (size_t)dimension;
        if ((is_double ? hold_doubles(source, layers) : hold_layers(source, layers)) == 0 &&
            hold_factors(source, factors, signs) == 0)
            return 0;
    }
    sv_release_rows(source);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "the parts of the rows do not fit each other");
    return -1;
}

void sv_release_rows(struct sv_row_source *source)
{
    while (source->num_held)
        PyBuffer_Release(&source->held[--source->num_held]);
}

static int is_dense(const struct sv_row_source *source)
{
    return source->doubles || (source->count == 1 && !source->layers[0].right);
}

/* Returns memory for doubles, the one at `place` aligned to a cache line; NULL if there is none. */
static double *aligned_doubles(size_t count, size_t place, void **memory)
{
    *memory = malloc((count + 16) * sizeof(double));
    if (!*memory)
        return NULL;
    const uintptr_t line = ((uintptr_t)*memory + 63) / 64 * 64;
    return (double *)line + (8 - place % 8) % 8;
}

int sv_make_scratch(struct sv_row_scratch *scratch, const struct sv_row_source *source, int is_wide)
{
    const size_t d = source->dimension, rest = d - source->block;
    *scratch = (struct sv_row_scratch){.singles = NULL};
    scratch->is_wide = is_wide || source->passes;
    int fine = 1;
    scratch->together = is_dense(source) ? d : TOGETHER;
    if (!is_dense(source)) {
        const size_t most = TOGETHER > source->block / 8 ? TOGETHER : source->block / 8;
        scratch->singles = (float *)aligned_doubles(most / 2, 0, &scratch->memory[2]);
        fine = scratch->singles != NULL;
    }
    if (fine && scratch->is_wide)
        fine = (scratch->row = aligned_doubles(d, source->passes > 1 ? rest : 0,
                                               &scratch->memory[0])) != NULL;
    if (fine && source->passes > 1 && rest % 8) /* Else both blocks are aligned in the row. */
        fine = (scratch->doubles = aligned_doubles(source->block, 0, &scratch->memory[1])) != NULL;
    if (fine)
        return 0;
    sv_free_scratch(scratch);
    return -1;
}

void sv_free_scratch(struct sv_row_scratch *scratch)
{
    for (int k = 0; k < 3; k++)
        free(scratch->memory[k]);
    *scratch = (struct sv_row_scratch){.singles = NULL};
}

/* What is wanted of a row, begin ... end - 1, and where the next part of the row begins. */
struct wanted {
    size_t begin, end, at;
    float *out;
};

/* Passes a part of `count` numbers; returns whether some of it is wanted: from ... to - 1. */
static int passed(struct wanted *wanted, size_t count, size_t *from, size_t *to)
{
    const size_t at = wanted->at, end = at + count;
    wanted->at = end;
    if (end <= wanted->begin || at >= wanted->end)
        return 0;
    *from = wanted->begin > at ? wanted->begin - at : 0;
    *to = (wanted->end < end ? wanted->end : end) - at;
    return 1;
}

/* Returns the numbers begin ... end - 1 of row i as they were given. */
static struct sv_values given_range(const struct sv_row_source *source, int level, size_t i,
                                    size_t begin, size_t end, struct sv_row_scratch *scratch)
{
    const size_t place = i * source->dimension + begin;
    if (source->doubles)
        return (struct sv_values){source->doubles + place, end - begin, 1};
    if (is_dense(source))
        return (struct sv_values){source->layers[0].left + place, end - begin, 0};
    struct wanted wanted = {begin, end, 0, scratch->singles};
    for (int k = 0; k < source->count && wanted.at < end; k++) {
        const struct sv_layer *layer = &source->layers[k];
        const float *left = layer->left + i * layer->outputs;
        size_t from, to;
        if (layer->right && passed(&wanted, layer->outputs * layer->features, &from, &to)) {
            SV_PICK(sv_rows, level)
                ->outer(left, layer->right + i * layer->features, layer->features, from, to,
                        wanted.out);
            wanted.out += to - from;
        }
        if ((layer->has_bias || !layer->right) && passed(&wanted, layer->outputs, &from, &to)) {
            memcpy(wanted.out, left + from, (to - from) * sizeof(float));
            wanted.out += to - from;
        }
    }
    return (struct sv_values){scratch->singles, end - begin, 0};
}

struct sv_values sv_given_part(const struct sv_row_source *source, int level, size_t i,
                               size_t first, struct sv_row_scratch *scratch)
{
    const size_t left = source->dimension - first;
    const size_t some = left < scratch->together ? left : scratch->together;
    return given_range(source, level, i, first, first + some, scratch);
}

/* Negates numbers where a packed sign is 1, then applies the Hadamard transform. */
static void rotate_small(double *block, size_t size, const uint8_t *signs)
{
    for (size_t i = 0; i < size; i++)
        if (signs[i / 8] >> i % 8 & 1)
            block[i] = -block[i];
    for (size_t half = 1; half < size; half *= 2)
        for (size_t at = 0; at < size; at += 2 * half)
            for (size_t i = at; i < at + half; i++) {
                const double below = block[i], above = block[i + half];
                block[i] = below + above, block[i + half] = below - above;
            }
    for (size_t i = 0; i < size; i++)
        block[i] *= 1.0 / sqrt((double)size);
}

/* Writes the numbers begin ... end - 1 of row i, clipped, to `out`. */
static void widen(const struct sv_row_source *source, int level, size_t i, size_t begin, size_t end,
                  struct sv_row_scratch *scratch, double *out)
{
    const double factor = source->factors ? source->factors[i] : 1.0;
    for (size_t at = begin, stop; at < end; at = stop) {
        stop = end - at < scratch->together ? end : at + scratch->together;
        const struct sv_values given = given_range(source, level, i, at, stop, scratch);
        SV_PICK(sv_rows, level)
            ->widened(given.start, given.count, given.is_double, factor, out + (at - begin));
    }
}

/* Rotates the first block of row i into `to`, which may be the block. */
static void rotate_first(const struct sv_row_source *source, int level, size_t i,
                         struct sv_row_scratch *scratch, double *block, double *to)
{
    const struct sv_rows *kernels = SV_PICK(sv_rows, level);
    const double factor = source->factors ? source->factors[i] : 1.0;
    const size_t size = source->block, eighth = size / 8;
    if (size < LEAST_FAST_BLOCK) {
        widen(source, level, i, 0, size, scratch, block);
        rotate_small(block, size, source->signs);
        if (to != block)
            memcpy(to, block, size * sizeof(double));
        return;
    }
    for (size_t at = 0; at < size; at += eighth) {
        const struct sv_values given =
            given_range(source, level, i, at, at + eighth, scratch);
        kernels->eighth(&given, factor, block + at, eighth, source->signs + at / 8);
    }
    kernels->last_levels(block, size, 0, eighth, NULL, to);
}

/* Rotates a block where it is. */
static void rotate_second(double *block, size_t size, const uint8_t *signs, int level)
{
    const struct sv_rows *kernels = SV_PICK(sv_rows, level);
    if (size < LEAST_FAST_BLOCK) {
        rotate_small(block, size, signs);
        return;
    }
    for (size_t at = 0; at < size; at += size / 8)
        kernels->eighth(NULL, 1.0, block + at, size / 8, signs + at / 8);
    kernels->last_levels(block, size, 0, size / 8, NULL, block);
}

/* Makes row i in the scratch memory, clipped and rotated. If there are two blocks, each is
   transformed where it is aligned: the first one may move to its place in the row with its last
   level. */
static double *make_row(const struct sv_row_source *source, int level, size_t i,
                        struct sv_row_scratch *scratch)
{
    const size_t size = source->block, rest = source->dimension - size;
    double *row = scratch->row;
    if (source->passes == 0) {
        widen(source, level, i, 0, source->dimension, scratch, row);
        return row;
    }
    rotate_first(source, level, i, scratch, scratch->doubles ? scratch->doubles : row, row);
    if (source->passes == 2) {
        widen(source, level, i, size, source->dimension, scratch, row + size);
        rotate_second(row + rest, size, source->signs + (size + 7) / 8, level);
    }
    return row;
}

void sv_write_row(const struct sv_row_source *source, int level, size_t i,
                  struct sv_row_scratch *scratch, double *out)
{
    memcpy(out, make_row(source, level, i, scratch), source->dimension * sizeof(double));
}

struct sv_row sv_prepared_part(const struct sv_row_source *source, int level, size_t i,
                               size_t first, struct sv_row_scratch *scratch)
{
    if (!scratch->is_wide)
        return (struct sv_row){sv_given_part(source, level, i, first, scratch),
                               source->factors ? source->factors[i] : 1.0};
    const double *row = first ? scratch->row : make_row(source, level, i, scratch);
    return (struct sv_row){{row + first, source->dimension - first, 1}, 1.0};
}
