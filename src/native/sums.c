/* The Python functions of sums over packed payloads. */
#include "buffers.h"

/* Checks a range of a payload of `size` bytes, whose inner ends must be multiples of `unit`, so
   that two threads never write to the same register's width. */
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

/* Returns the bytes of `count` codes of that many bits; -1 if that is no size. */
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
    if (sv_hold(&payloads, of_payloads, SV_BITS_BATCH, PyBUF_SIMPLE) < 0) {
        sv_let_go(&planes);
        return NULL;
    }
    const Py_ssize_t size = payloads.held[0].len;
    fine = sv_require(planes.count >= 5 && have_size(&payloads, size) &&
                          size < PY_SSIZE_T_MAX - 64 && have_size(&planes, padded(size)) &&
                          is_range(begin, end, size, 64),
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
    Py_ssize_t first;
    struct sv_buffers planes;
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "iOnw*", &level, &of_planes, &first, &out))
        return NULL;
    if (sv_checked_level(level) < 0 || sv_hold(&planes, of_planes, 32, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&out);
        return NULL;
    }
    const Py_ssize_t count = out.len / 4, size = planes.held[0].len;
    fine = sv_require(out.len % 4 == 0 && (uintptr_t)out.buf % 4 == 0 && size % 64 == 0 &&
                          have_size(&planes, size) && size <= PY_SSIZE_T_MAX / 8 && first >= 0 &&
                          first % 64 == 0 && first <= 8 * size && count <= 8 * size - first,
                      "planes of one size, and counts of four bytes within them");
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        SV_PICK(sv_server, level)
            ->read_counts((const uint8_t *const *)planes.start, planes.count, (size_t)first,
                          (size_t)count, out.buf);
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
    if (sv_checked_level(level) < 0 ||
        sv_hold(&payloads, of_payloads, SV_BATCH, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&counters);
        return NULL;
    }
    const Py_ssize_t size = payloads.held[0].len;
    fine = bits >= 2 && bits <= 4 && levels >= 2 && levels <= 1 << bits &&
           size < PY_SSIZE_T_MAX / 256 && have_size(&payloads, size);
    /* Codes of three bits are counted one by one, those of two and four by byte. */
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

static PyObject *widen(PyObject *self, PyObject *args)
{
    (void)self;
    int level, per;
    Py_ssize_t first;
    Py_buffer counters, out;
    if (!PyArg_ParseTuple(args, "iy*inw*", &level, &counters, &per, &first, &out))
        return NULL;
    const Py_ssize_t count = out.len / 4;
    int fine = sv_checked_level(level) >= 0 && (per == 1 || per == 2 || per == 4);
    fine = sv_require(fine && out.len % 4 == 0 && (uintptr_t)out.buf % 4 == 0 &&
                          counters.len % per == 0 && first >= 0 && first % per == 0 &&
                          first <= counters.len && count <= counters.len - first,
                      "1, 2 or 4 rows of counters, and a wider one for each");
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        SV_PICK(sv_server, level)
            ->widen((const uint8_t *)counters.buf + first / per, (size_t)(counters.len / per), per,
                    (size_t)count, out.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&counters);
    PyBuffer_Release(&out);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *combine(PyObject *self, PyObject *args)
{
    (void)self;
    int level;
    unsigned int received;
    Py_buffer counts, points, out;
    if (!PyArg_ParseTuple(args, "iy*Iy*w*", &level, &counts, &received, &points, &out))
        return NULL;
    const Py_ssize_t count = out.len / 8, levels = points.len / 8;
    const int fine = sv_require(
        sv_checked_level(level) >= 0 && out.len % 8 == 0 && points.len % 8 == 0 && levels >= 2 &&
            levels <= 16 && counts.len / 4 / (levels - 1) == count &&
            counts.len == 4 * (levels - 1) * count && (uintptr_t)counts.buf % 4 == 0 &&
            (uintptr_t)points.buf % 8 == 0 && (uintptr_t)out.buf % 8 == 0,
        "a count of every code but 0 for each number, and 2 to 16 points");
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        SV_PICK(sv_server, level)
            ->combine(counts.buf, (size_t)count, (int)levels, received, points.buf, out.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&counts);
    PyBuffer_Release(&points);
    PyBuffer_Release(&out);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

/* Returns whether every payload k has `dimension` codes of bits[k] bits. */
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
    fine = sv_checked_level(level) >= 0 &&
           sv_hold(&payloads, of_payloads, SV_BATCH, PyBUF_SIMPLE) == 0;
    fine = sv_require(fine && sum.len % 8 == 0 && (uintptr_t)sum.buf % 8 == 0 &&
                          (uintptr_t)tables.buf % 8 == 0 &&
                          hold_codes(&payloads, &bits, dimension) &&
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
    {"read_counts", read_counts, METH_VARARGS, "read_counts(level, planes, first, out)"},
    {"count_levels", count_levels, METH_VARARGS,
     "count_levels(level, counters, levels, bits, payloads, begin, end)"},
    {"widen", widen, METH_VARARGS, "widen(level, counters, per, first, out): adds to wider ones"},
    {"combine", combine, METH_VARARGS, "combine(level, counts, received, points, out)"},
    {"add_points", add_points, METH_VARARGS,
     "add_points(level, sum, payloads, bits, tables, begin, end)"},
    {NULL, NULL, 0, NULL},
};
