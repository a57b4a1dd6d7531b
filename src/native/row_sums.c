/* The Python functions of sums over packed payloads that are the rows of matrices. */
#include "buffers.h"
#include "workers.h"

/* A matrix of payloads, of which `rows` rows of `size` bytes are added. */
struct payload_rows {
    Py_buffer held;
    Py_ssize_t rows, size;
};

static int hold_rows(struct payload_rows *matrix, PyObject *object, Py_ssize_t size)
{
    if (PyObject_GetBuffer(object, &matrix->held, PyBUF_SIMPLE) < 0)
        return -1;
    matrix->size = size;
    matrix->rows = size > 0 ? matrix->held.len / size : 0;
    if (size > 0 && matrix->held.len == matrix->rows * size)
        return 0;
    PyBuffer_Release(&matrix->held);
    PyErr_SetString(PyExc_ValueError, "whole rows of bytes");
    return -1;
}

static Py_ssize_t padded(Py_ssize_t size) { return (size + 63) / 64 * 64; }

/* Points to up to `most` rows from `first` on; returns how many they are. */
static int point_at(const struct payload_rows *matrix, Py_ssize_t first, int most,
                    const uint8_t **payloads)
{
    const Py_ssize_t left = matrix->rows - first;
    const int count = left < most ? (int)left : most;
    for (int k = 0; k < count; k++)
        payloads[k] = (const uint8_t *)matrix->held.buf + (first + k) * matrix->size;
    return count;
}

/* The addition of the rows of a matrix to a sum, some of its columns on each thread. */
struct adding {
    struct sv_job job;
    const struct payload_rows *matrix;
    int level, bits, levels;
    Py_ssize_t stride, dimension;
    const struct sv_buffers *planes;
    void *sum;
    const double *tables;
};

/* Does the work for the columns 0 ... size - 1; all ranges but the last have whole units. */
static void add_columns(struct adding *adding, void (*work)(struct sv_job *), Py_ssize_t size,
                        Py_ssize_t unit, int threads)
{
    const Py_ssize_t units = (size + unit - 1) / unit;
    adding->job.work = work, adding->job.size = (size_t)size;
    adding->job.share = (size_t)((units / threads + (units % threads > 0)) * unit);
    if (!size)
        return;
    Py_BEGIN_ALLOW_THREADS
    sv_run(&adding->job, threads);
    Py_END_ALLOW_THREADS
}

static int is_count(int threads) { return threads >= 1 && threads <= SV_MAX_THREADS; }

static void count_bits_of_columns(struct sv_job *job)
{
    const struct adding *a = (const struct adding *)job;
    const uint8_t *payloads[SV_BITS_BATCH];
    for (size_t begin, end; sv_take(job, &begin, &end);)
        for (Py_ssize_t row = 0; row < a->matrix->rows; row += SV_BITS_BATCH) {
            const int count = point_at(a->matrix, row, SV_BITS_BATCH, payloads);
            SV_PICK(sv_server, a->level)
                ->count_bits(a->planes->start, a->planes->count, payloads, count, begin, end);
        }
}

static PyObject *count_bit_rows(PyObject *self, PyObject *args)
{
    (void)self;
    int level, threads;
    PyObject *of_planes, *object;
    Py_ssize_t size;
    struct sv_buffers planes;
    struct payload_rows matrix;
    if (!PyArg_ParseTuple(args, "iOOni", &level, &of_planes, &object, &size, &threads) ||
        sv_checked_level(level) < 0 || hold_rows(&matrix, object, size) < 0)
        return NULL;
    if (sv_hold(&planes, of_planes, 32, PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&matrix.held);
        return NULL;
    }
    int fine = planes.count >= 5 && size < PY_SSIZE_T_MAX - 64 && is_count(threads);
    for (int i = 0; i < planes.count; i++)
        fine = fine && planes.held[i].len == padded(size);
    if (sv_require(fine, "five planes or more of payloads of one size, and 1 to 256 threads")) {
        struct adding adding = {.matrix = &matrix, .level = level, .planes = &planes};
        add_columns(&adding, count_bits_of_columns, size, 64, threads);
    }
    sv_let_go(&planes);
    PyBuffer_Release(&matrix.held);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

static void count_levels_of_columns(struct sv_job *job)
{
    const struct adding *a = (const struct adding *)job;
    const uint8_t *payloads[SV_BATCH];
    for (size_t begin, end; sv_take(job, &begin, &end);)
        for (Py_ssize_t row = 0; row < a->matrix->rows; row += SV_BATCH) {
            const int count = point_at(a->matrix, row, SV_BATCH, payloads);
            SV_PICK(sv_server, a->level)
                ->count_levels(a->sum, (size_t)a->stride, a->levels, a->bits, payloads, count, begin,
                               end);
        }
}

static PyObject *count_level_rows(PyObject *self, PyObject *args)
{
    (void)self;
    int level, levels, bits, threads;
    PyObject *object;
    Py_ssize_t size;
    Py_buffer counters;
    struct payload_rows matrix;
    if (!PyArg_ParseTuple(args, "iw*iiOni", &level, &counters, &levels, &bits, &object, &size,
                          &threads))
        return NULL;
    if (sv_checked_level(level) < 0 || hold_rows(&matrix, object, size) < 0) {
        PyBuffer_Release(&counters);
        return NULL;
    }
    int fine = bits >= 2 && bits <= 4 && levels >= 2 && levels <= 1 << bits &&
               size < PY_SSIZE_T_MAX / 256;
    /* Codes of three bits are counted one by one, those of two and four by byte. */
    const Py_ssize_t stride = bits == 3 ? padded((size + 2) / 3 * 8) : padded(size);
    fine = fine && counters.len == (levels - 1) * (bits == 3 ? 1 : 8 / bits) * stride &&
           is_count(threads);
    if (sv_require(fine, "payloads of one size, a counter for every code but 0, and threads")) {
        struct adding adding = {.matrix = &matrix, .level = level, .bits = bits, .levels = levels,
                                .stride = stride, .sum = counters.buf};
        add_columns(&adding, count_levels_of_columns, size, bits == 3 ? 192 : 64, threads);
    }
    PyBuffer_Release(&counters);
    PyBuffer_Release(&matrix.held);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

static void add_points_of_columns(struct sv_job *job)
{
    const struct adding *a = (const struct adding *)job;
    const uint8_t *payloads[SV_BATCH];
    uint8_t all_bits[SV_BATCH];
    for (int k = 0; k < SV_BATCH; k++)
        all_bits[k] = (uint8_t)a->bits;
    for (size_t begin, end; sv_take(job, &begin, &end);)
        for (Py_ssize_t row = 0; row < a->matrix->rows; row += SV_BATCH) {
            const int count = point_at(a->matrix, row, SV_BATCH, payloads);
            SV_PICK(sv_server, a->level)
                ->add_points(a->sum, begin, end, payloads, all_bits, a->tables + 256 * row, count,
                             (size_t)a->dimension);
        }
}

static PyObject *add_point_rows(PyObject *self, PyObject *args)
{
    (void)self;
    int level, bits, threads;
    PyObject *object;
    Py_ssize_t size;
    Py_buffer sum, tables;
    struct payload_rows matrix;
    if (!PyArg_ParseTuple(args, "iw*Oniy*i", &level, &sum, &object, &size, &bits, &tables,
                          &threads))
        return NULL;
    const Py_ssize_t dimension = sum.len / 8;
    int fine = sv_checked_level(level) >= 0 && hold_rows(&matrix, object, size) == 0;
    if (!fine) {
        PyBuffer_Release(&sum);
        PyBuffer_Release(&tables);
        return NULL;
    }
    fine = bits >= 1 && bits <= 8 && sum.len % 8 == 0 && (uintptr_t)sum.buf % 8 == 0 &&
           dimension <= PY_SSIZE_T_MAX / 8 - 8 && size == (dimension * bits + 7) / 8 &&
           (uintptr_t)tables.buf % 8 == 0 &&
           tables.len == matrix.rows * (Py_ssize_t)(256 * sizeof(double)) && is_count(threads);
    if (sv_require(fine, "payloads of codes of 1 to 8 bits, 256 points for each, and threads")) {
        struct adding adding = {.matrix = &matrix, .level = level, .bits = bits, .sum = sum.buf,
                                .dimension = dimension, .tables = tables.buf};
        add_columns(&adding, add_points_of_columns, dimension, 64, threads);
    }
    PyBuffer_Release(&matrix.held);
    PyBuffer_Release(&sum);
    PyBuffer_Release(&tables);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

/* Returns the largest code of the rows begin ... end - 1. */
static PyObject *largest_in_rows(PyObject *self, PyObject *args)
{
    (void)self;
    int level, bits;
    PyObject *object;
    Py_ssize_t count, begin, end;
    struct payload_rows matrix;
    if (!PyArg_ParseTuple(args, "iOninn", &level, &object, &count, &bits, &begin, &end))
        return NULL;
    if (!sv_require(sv_checked_level(level) >= 0 && bits >= 1 && bits <= 8 && count >= 1 &&
                        count <= PY_SSIZE_T_MAX / 8 - 8,
                    "codes of 1 to 8 bits") ||
        hold_rows(&matrix, object, (count * bits + 7) / 8) < 0)
        return NULL;
    uint32_t largest = 0;
    const int fine =
        sv_require(0 <= begin && begin <= end && end <= matrix.rows, "a range of the rows");
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t row = begin; row < end; row++) {
            const uint8_t *payload = (const uint8_t *)matrix.held.buf + row * matrix.size;
            const uint32_t found =
                SV_PICK(sv_server, level)->largest8(payload, (size_t)count, bits);
            largest = found > largest ? found : largest;
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&matrix.held);
    return fine ? PyLong_FromUnsignedLong(largest) : NULL;
}

PyMethodDef sv_row_sums_methods[] = {
    {"count_bit_rows", count_bit_rows, METH_VARARGS,
     "count_bit_rows(level, planes, matrix, row_bytes, threads)"},
    {"count_level_rows", count_level_rows, METH_VARARGS,
     "count_level_rows(level, counters, levels, bits, matrix, row_bytes, threads)"},
    {"add_point_rows", add_point_rows, METH_VARARGS,
     "add_point_rows(level, sum, matrix, row_bytes, bits, tables, threads)"},
    {"largest_in_rows", largest_in_rows, METH_VARARGS,
     "largest_in_rows(level, matrix, codes_per_row, bits, begin, end): the largest code"},
    {NULL, NULL, 0, NULL},
};
