/* The Python functions of sums over packed payloads that are the rows of matrices. */
#include "buffers.h"

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

/* Checks a range of the bytes of a payload, whose inner ends are multiples of `unit`. */
static int is_range(Py_ssize_t begin, Py_ssize_t end, Py_ssize_t size, Py_ssize_t unit)
{
    return 0 <= begin && begin <= end && end <= size && begin % unit == 0 &&
           (end % unit == 0 || end == size);
}

static PyObject *count_bit_rows(PyObject *self, PyObject *args)
{
    (void)self;
    int level;
    PyObject *of_planes, *object;
    Py_ssize_t size, begin, end;
    struct sv_buffers planes;
    struct payload_rows matrix;
    if (!PyArg_ParseTuple(args, "iOOnnn", &level, &of_planes, &object, &size, &begin, &end) ||
        sv_checked_level(level) < 0 || hold_rows(&matrix, object, size) < 0)
        return NULL;
    if (sv_hold(&planes, of_planes, 32, PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&matrix.held);
        return NULL;
    }
    int fine = planes.count >= 5 && size < PY_SSIZE_T_MAX - 64 && is_range(begin, end, size, 64);
    for (int i = 0; i < planes.count; i++)
        fine = fine && planes.held[i].len == padded(size);
    if (sv_require(fine, "five planes or more of payloads of one size, and a range of whole lines")) {
        Py_BEGIN_ALLOW_THREADS
        const uint8_t *payloads[SV_BITS_BATCH];
        for (Py_ssize_t first = 0; first < matrix.rows; first += SV_BITS_BATCH)
            SV_PICK(sv_server, level)
                ->count_bits(planes.start, planes.count, payloads,
                             point_at(&matrix, first, SV_BITS_BATCH, payloads), (size_t)begin,
                             (size_t)end);
        Py_END_ALLOW_THREADS
    }
    sv_let_go(&planes);
    PyBuffer_Release(&matrix.held);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *count_level_rows(PyObject *self, PyObject *args)
{
    (void)self;
    int level, levels, bits;
    PyObject *object;
    Py_ssize_t size, begin, end;
    Py_buffer counters;
    struct payload_rows matrix;
    if (!PyArg_ParseTuple(args, "iw*iiOnnn", &level, &counters, &levels, &bits, &object, &size,
                          &begin, &end))
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
           is_range(begin, end, size, bits == 3 ? 192 : 64);
    if (sv_require(fine, "payloads of one size, a counter for every code but 0, and a range")) {
        Py_BEGIN_ALLOW_THREADS
        const uint8_t *payloads[SV_BATCH];
        for (Py_ssize_t first = 0; first < matrix.rows; first += SV_BATCH)
            SV_PICK(sv_server, level)
                ->count_levels(counters.buf, (size_t)stride, levels, bits, payloads,
                               point_at(&matrix, first, SV_BATCH, payloads), (size_t)begin,
                               (size_t)end);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&counters);
    PyBuffer_Release(&matrix.held);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

/* Adds the rows begin_row ... end_row - 1 of the matrix, whose tables begin with the first row. */
static PyObject *add_point_rows(PyObject *self, PyObject *args)
{
    (void)self;
    int level, bits;
    PyObject *object;
    Py_ssize_t size, first_row, end_row, begin, end;
    Py_buffer sum, tables;
    struct payload_rows matrix;
    if (!PyArg_ParseTuple(args, "iw*Oniy*nnnn", &level, &sum, &object, &size, &bits, &tables,
                          &first_row, &end_row, &begin, &end))
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
           0 <= first_row && first_row <= end_row && end_row <= matrix.rows &&
           (uintptr_t)tables.buf % 8 == 0 &&
           tables.len == (end_row - first_row) * (Py_ssize_t)(256 * sizeof(double)) &&
           is_range(begin, end, dimension, 8);
    if (sv_require(fine, "payloads of codes of 1 to 8 bits, 256 points for each, and a range")) {
        Py_BEGIN_ALLOW_THREADS
        const uint8_t *payloads[SV_BATCH];
        uint8_t all_bits[SV_BATCH];
        for (int k = 0; k < SV_BATCH; k++)
            all_bits[k] = (uint8_t)bits;
        for (Py_ssize_t row = first_row; row < end_row; row += SV_BATCH) {
            const int left = end_row - row < SV_BATCH ? (int)(end_row - row) : SV_BATCH;
            const int count = point_at(&matrix, row, left, payloads);
            SV_PICK(sv_server, level)
                ->add_points(sum.buf, (size_t)begin, (size_t)end, payloads, all_bits,
                             (const double *)tables.buf + 256 * (row - first_row), count,
                             (size_t)dimension);
        }
        Py_END_ALLOW_THREADS
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
     "count_bit_rows(level, planes, matrix, row_bytes, begin, end)"},
    {"count_level_rows", count_level_rows, METH_VARARGS,
     "count_level_rows(level, counters, levels, bits, matrix, row_bytes, begin, end)"},
    {"add_point_rows", add_point_rows, METH_VARARGS,
     "add_point_rows(level, sum, matrix, row_bytes, bits, tables, first_row, end_row, begin, end)"},
    {"largest_in_rows", largest_in_rows, METH_VARARGS,
     "largest_in_rows(level, matrix, codes_per_row, bits, begin, end): the largest code"},
    {NULL, NULL, 0, NULL},
};
