/* Python's side of sums over packed payloads. */
#include "buffers.h"

/* A range of a payload of `size` bytes whose inner ends lie at multiples of `unit`: two threads
   never touch the same register's width. */
static int is_range(Py_ssize_t begin, Py_ssize_t end, Py_ssize_t size, Py_ssize_t unit)
{
    return 0 <= begin && begin <= end && end <= size && begin % unit == 0 &&
           (end % unit == 0 || end == size);
}

static int have_size(const struct sv_buffers *buffers, Py_ssize_t size)
{
    for (int i = 0; i < buffers->count; i++)
        if (buffers->held[i].len != size)
            return 0;
    return 1;
}

/* The bytes of `count` codes of so many bits; -1 if that is no size. */
static Py_ssize_t size_of(Py_ssize_t count, int bits)
{
    if (count < 0 || bits < 1 || bits > 8 || count > PY_SSIZE_T_MAX / 8 - 8)
        return -1;
    return (count * bits + 7) / 8;
}

static Py_ssize_t padded(Py_ssize_t size) { return (size + 63) / 64 * 64; }

static PyObject *count_bits(PyObject *self, PyObject *args)
{
    (void)self;
    int level, fine;
    PyObject *of_planes, *of_payloads;
    Py_ssize_t begin, end;
    struct sv_buffers planes, payloads;
    if (!PyArg_ParseTuple(args, "iOOnn", &level, &of_planes, &of_payloads, &begin, &end) ||
        sv_checked_level(level) < 0 || sv_hold(&planes, of_planes, 32, PyBUF_WRITABLE) < 0)
        return NULL;
    if (sv_hold(&payloads, of_payloads, SV_BATCH, PyBUF_SIMPLE) < 0) {
        sv_let_go(&planes);
        return NULL;
    }
    const Py_ssize_t size = payloads.held[0].len;
    fine = sv_require(planes.count >= 5 && have_size(&payloads, size) && size < PY_SSIZE_T_MAX - 64 &&
                          have_size(&planes, padded(size)) && is_range(begin, end, size, 64),
                      "five planes or more of payloads of one size, and a range of whole lines");
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        SV_PICK(sv_server, level)
            ->count_bits(planes.start, planes.count, (const uint8_t *const *)payloads.start,
                         payloads.count, (size_t)begin, (size_t)end);
        Py_END_ALLOW_THREADS
    }
    sv_let_go(&payloads);
    sv_let_go(&planes);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *read_counts(PyObject *self, PyObject *args)
{
    (void)self;
    int level, fine;
    PyObject *of_planes;
    Py_ssize_t begin, end;
    struct sv_buffers planes;
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "iOw*nn", &level, &of_planes, &out, &begin, &end))
        return NULL;
    if (sv_checked_level(level) < 0 || sv_hold(&planes, of_planes, 32, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&out);
        return NULL;
    }
    const Py_ssize_t dimension = out.len / 4, size = size_of(dimension, 1);
    fine = sv_require(out.len % 4 == 0 && size >= 0 && have_size(&planes, padded(size)) &&
                          is_range(begin, end, size, 64),
                      "a count of four bytes for every position of the planes, and a range");
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        SV_PICK(sv_server, level)
            ->read_counts((const uint8_t *const *)planes.start, planes.count, (size_t)begin,
                          (size_t)end, (size_t)dimension, out.buf);
        Py_END_ALLOW_THREADS
    }
    sv_let_go(&planes);
    PyBuffer_Release(&out);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *count_levels(PyObject *self, PyObject *args)
{
    (void)self;
    int level, levels, bits, fine;
    PyObject *of_payloads;
    Py_ssize_t begin, end;
    struct sv_buffers payloads;
    Py_buffer counters;
    if (!PyArg_ParseTuple(args, "iw*iiOnn", &level, &counters, &levels, &bits, &of_payloads, &begin,
                          &end))
        return NULL;
    if (sv_checked_level(level) < 0 || sv_hold(&payloads, of_payloads, SV_BATCH, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&counters);
        return NULL;
    }
    const Py_ssize_t size = payloads.held[0].len;
    fine = bits >= 2 && bits <= 4 && levels >= 2 && levels <= 1 << bits &&
           size < PY_SSIZE_T_MAX / 256 && have_size(&payloads, size);
    /* Three bits are counted by code, two and four by byte. */
    const Py_ssize_t stride = bits == 3 ? padded((size + 2) / 3 * 8) : padded(size);
    const Py_ssize_t rows = fine ? (levels - 1) * (bits == 3 ? 1 : 8 / bits) : 0;
    fine = sv_require(fine && counters.len == rows * stride &&
                          is_range(begin, end, size, bits == 3 ? 192 : 64),
                      "payloads of one size, a counter for every code but 0, and a range");
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        SV_PICK(sv_server, level)
            ->count_levels(counters.buf, (size_t)stride, levels, bits,
                           (const uint8_t *const *)payloads.start, payloads.count, (size_t)begin,
                           (size_t)end);
        Py_END_ALLOW_THREADS
    }
    sv_let_go(&payloads);
    PyBuffer_Release(&counters);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

/* Whether payload k holds `dimension` codes of bits[k] bits, for all of them. */
static int hold_codes(const struct sv_buffers *payloads, const Py_buffer *bits,
                      Py_ssize_t dimension)
{
    if (bits->len != payloads->count)
        return 0;
    for (int k = 0; k < payloads->count; k++) {
        const Py_ssize_t size = size_of(dimension, ((const uint8_t *)bits->buf)[k]);
        if (size < 0 || payloads->held[k].len != size)
            return 0;
    }
    return 1;
}

static PyObject *add_points(PyObject *self, PyObject *args)
{
    (void)self;
    int level, fine;
    PyObject *of_payloads;
    Py_ssize_t begin, end;
    struct sv_buffers payloads;
    Py_buffer sum, bits, tables;
    if (!PyArg_ParseTuple(args, "iw*Oy*y*nn", &level, &sum, &of_payloads, &bits, &tables, &begin,
                          &end))
        return NULL;
    payloads.count = 0;
    const Py_ssize_t dimension = sum.len / 8;
    fine = sv_checked_level(level) >= 0 && sv_hold(&payloads, of_payloads, SV_BATCH, PyBUF_SIMPLE) == 0;
    fine = sv_require(fine && sum.len % 8 == 0 && hold_codes(&payloads, &bits, dimension) &&
                          tables.len == payloads.count * (Py_ssize_t)(256 * sizeof(double)) &&
                          is_range(begin, end, dimension, 8),
                      "payloads with a code of 1 to 8 bits for every number, 256 points for each");
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        SV_PICK(sv_server, level)
            ->add_points(sum.buf, (size_t)begin, (size_t)end,
                         (const uint8_t *const *)payloads.start, bits.buf, tables.buf,
                         payloads.count, (size_t)dimension);
        Py_END_ALLOW_THREADS
    }
    sv_let_go(&payloads);
    PyBuffer_Release(&tables);
    PyBuffer_Release(&bits);
    PyBuffer_Release(&sum);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

PyMethodDef sv_sums_methods[] = {
    {"count_bits", count_bits, METH_VARARGS, "count_bits(level, planes, payloads, begin, end)"},
    {"read_counts", read_counts, METH_VARARGS, "read_counts(level, planes, out, begin, end)"},
    {"count_levels", count_levels, METH_VARARGS,
     "count_levels(level, counters, levels, bits, payloads, begin, end)"},
    {"add_points", add_points, METH_VARARGS,
     "add_points(level, sum, payloads, bits, tables, begin, end)"},
    {NULL, NULL, 0, NULL},
};
