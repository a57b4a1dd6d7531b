/* The Python functions of keystreams and samplers. */
#include "native.h"

#include <string.h>

#include "extension.h"
#include "ladder_tables.h"

#define MAX_VIEWS 5

/* The buffers of one call, released together. */
struct views {
    Py_buffer each[MAX_VIEWS];
    int count;
};

static PyObject *released(struct views *views, PyObject *result)
{
    for (int i = 0; i < views->count; i++)
        PyBuffer_Release(&views->each[i]);
    return result;
}

static PyObject *refused(struct views *views, const char *why)
{
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, why);
    return released(views, NULL);
}

static int is_key(const Py_buffer *key, uint32_t words[8])
{
    if (key->len != 32)
        return 0;
    memcpy(words, key->buf, 32);
    return 1;
}

/* Checks that a buffer has whole numbers of `size` bytes, aligned. */
static int holds(const Py_buffer *view, size_t size)
{
    return (size_t)view->len % size == 0 && (view->len == 0 || (uintptr_t)view->buf % size == 0);
}

static int holds_values(const Py_buffer *view, int is_double)
{
    return holds(view, is_double ? sizeof(double) : sizeof(float));
}

static struct sv_values values_in(const Py_buffer *view, int is_double)
{
    const size_t size = is_double ? sizeof(double) : sizeof(float);
    return (struct sv_values){view->buf, (size_t)view->len / size, is_double};
}

static struct sv_open open_in(const Py_buffer *view)
{
    return (struct sv_open){view->buf, (size_t)view->len / sizeof(int64_t), 0};
}

static PyObject *draws(PyObject *self, PyObject *args)
{
    (void)self;
    struct views v = {.count = 2};
    Py_buffer *key = &v.each[0], *out = &v.each[1];
    int level, bits;
    unsigned int first;
    uint32_t words[8];
    if (!PyArg_ParseTuple(args, "iy*iIw*", &level, key, &bits, &first, out))
        return NULL;
    const size_t tile_bytes = 4 * SV_TILE_WORDS;
    if (sv_checked_level(level) < 0 || !is_key(key, words) || (bits != 16 && bits != 32) ||
        !holds(out, 4) || (size_t)out->len % tile_bytes)
        return refused(&v, "a key has 32 bytes, a draw 16 or 32 bits, a tile 2048 bytes");
    Py_BEGIN_ALLOW_THREADS
    if (bits == 16)
        SV_PICK(sv_sampling, level)->draws16(words, first, (size_t)out->len / tile_bytes, out->buf);
    else
        SV_PICK(sv_sampling, level)->draws32(words, first, (size_t)out->len / tile_bytes, out->buf);
    Py_END_ALLOW_THREADS
    return released(&v, Py_NewRef(Py_None));
}

static PyObject *extensions(PyObject *self, PyObject *args)
{
    (void)self;
    struct views v = {.count = 3};
    Py_buffer *key = &v.each[0], *coordinates = &v.each[1], *out = &v.each[2];
    uint32_t words[8];
    if (!PyArg_ParseTuple(args, "y*y*w*", key, coordinates, out))
        return NULL;
    if (!is_key(key, words) || coordinates->len != out->len || !holds(coordinates, 8) ||
        !holds(out, 8))
        return refused(&v, "a key has 32 bytes, and there are as many 64-bit results as numbers");
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; i < (size_t)out->len / 8; i++)
        ((uint64_t *)out->buf)[i] = sv_extension(words, ((const uint64_t *)coordinates->buf)[i]);
    Py_END_ALLOW_THREADS
    return released(&v, Py_NewRef(Py_None));
}

static PyObject *draws_at(PyObject *self, PyObject *args)
{
    (void)self;
    struct views v = {.count = 3};
    Py_buffer *key = &v.each[0], *coordinates = &v.each[1], *out = &v.each[2];
    int bits;
    uint32_t words[8];
    if (!PyArg_ParseTuple(args, "y*iy*w*", key, &bits, coordinates, out))
        return NULL;
    if (!is_key(key, words) || (bits != 16 && bits != 32) || coordinates->len != 2 * out->len ||
        !holds(coordinates, 8) || !holds(out, 4))
        return refused(&v, "a key has 32 bytes, and there is a 32-bit result for each number");
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; i < (size_t)out->len / 4; i++)
        ((uint32_t *)out->buf)[i] = sv_draw(words, bits, ((const uint64_t *)coordinates->buf)[i]);
    Py_END_ALLOW_THREADS
    return released(&v, Py_NewRef(Py_None));
}

static PyObject *square_sum(PyObject *self, PyObject *args)
{
    (void)self;
    struct views v = {.count = 1};
    int level, is_double;
    double sum;
    if (!PyArg_ParseTuple(args, "iy*i", &level, &v.each[0], &is_double))
        return NULL;
    if (sv_checked_level(level) < 0 || !holds_values(&v.each[0], is_double))
        return refused(&v, "values are floats or doubles, aligned");
    Py_BEGIN_ALLOW_THREADS
    sum = SV_PICK(sv_sampling, level)->square_sum(values_in(&v.each[0], is_double));
    Py_END_ALLOW_THREADS
    return released(&v, PyFloat_FromDouble(sum));
}

static PyObject *one_bit(PyObject *self, PyObject *args)
{
    (void)self;
    struct views v = {.count = 4};
    Py_buffer *key = &v.each[0], *values = &v.each[1], *out = &v.each[2], *open = &v.each[3];
    int level, is_double;
    Py_ssize_t first;
    struct sv_one_bit job;
    if (!PyArg_ParseTuple(args, "iy*nddfy*iw*w*", &level, key, &first, &job.scale, &job.stddev,
                          &job.slope, values, &is_double, out, open))
        return NULL;
    const struct sv_values given = values_in(values, is_double);
    struct sv_open left = open_in(open);
    if (sv_checked_level(level) < 0 || !is_key(key, job.key) || first < 0 ||
        first % SV_TILE_DRAWS || !holds_values(values, is_double) || !holds(open, 8) ||
        (size_t)out->len != (given.count + 7) / 8)
        return refused(&v, "a key has 32 bytes, tiles 1024 values, and eight bits make a byte");
    job.first = (size_t)first;
    Py_BEGIN_ALLOW_THREADS
    SV_PICK(sv_sampling, level)->one_bit(&job, given, out->buf, &left);
    Py_END_ALLOW_THREADS
    return released(&v, PyLong_FromSize_t(left.count));
}

static PyObject *ladder(PyObject *self, PyObject *args)
{
    (void)self;
    struct views v = {.count = 4};
    Py_buffer *key = &v.each[0], *values = &v.each[1], *out = &v.each[2], *open = &v.each[3];
    int level, is_double;
    Py_ssize_t first;
    PyObject *parts;
    struct sv_ladder job;
    struct sv_ladder_tables tables;
    if (!PyArg_ParseTuple(args, "iy*nOy*iw*w*", &level, key, &first, &parts, values, &is_double, out,
                          open))
        return NULL;
    const struct sv_values given = values_in(values, is_double);
    struct sv_open left = open_in(open);
    if (sv_checked_level(level) < 0 || !is_key(key, job.key) || first < 0 ||
        first % SV_TILE_DRAWS || !holds_values(values, is_double) || !holds(open, 8) ||
        (size_t)out->len != given.count || sv_hold_ladder(&tables, &job, parts) < 0)
        return refused(&v, "a key has 32 bytes, tiles 1024 values, and a code is a byte");
    job.first = (size_t)first;
    Py_BEGIN_ALLOW_THREADS
    SV_PICK(sv_sampling, level)->ladder(&job, given, out->buf, &left);
    Py_END_ALLOW_THREADS
    sv_release_ladder(&tables);
    return released(&v, PyLong_FromSize_t(left.count));
}

static PyObject *grid_noise(PyObject *self, PyObject *args)
{
    (void)self;
    struct views v = {.count = 5};
    Py_buffer *key = &v.each[0], *chords = &v.each[1], *values = &v.each[2], *out = &v.each[3],
              *open = &v.each[4];
    int level;
    Py_ssize_t first;
    struct sv_grid_noise job;
    if (!PyArg_ParseTuple(args, "iy*nddy*y*w*w*", &level, key, &first, &job.steps_per_unit,
                          &job.slack, chords, values, out, open))
        return NULL;
    const struct sv_values given = values_in(values, 1);
    struct sv_open left = open_in(open);
    if (sv_checked_level(level) < 0 || !is_key(key, job.key) || first < 0 ||
        first % SV_TILE_WORDS || !holds(chords, 8) || !holds(values, 8) || !holds(out, 4) ||
        !holds(open, 8) || (size_t)chords->len != 4 * SV_NOISE_CELLS * sizeof(double) ||
        (size_t)out->len != given.count * sizeof(int32_t))
        return refused(&v, "the noise table's parts do not fit each other");
    job.first = (size_t)first;
    job.chords = chords->buf;
    Py_BEGIN_ALLOW_THREADS
    SV_PICK(sv_sampling, level)->grid_noise(&job, given, out->buf, &left);
    Py_END_ALLOW_THREADS
    return released(&v, PyLong_FromSize_t(left.count));
}

PyMethodDef sv_sampling_methods[] = {
    {"draws", draws, METH_VARARGS,
     "draws(level, key, bits, first_tile, out): whole tiles of the stream with nonce 0"},
    {"extensions", extensions, METH_VARARGS,
     "extensions(key, coordinates, out): 64 further bits of each coordinate"},
    {"draws_at", draws_at, METH_VARARGS,
     "draws_at(key, bits, coordinates, out): single draws of the stream with nonce 0"},
    {"square_sum", square_sum, METH_VARARGS, "square_sum(level, values, is_double)"},
    {"one_bit", one_bit, METH_VARARGS,
     "one_bit(level, key, first, scale, stddev, slope, values, is_double, out, open): how many "
     "coordinates are left open"},
    {"ladder", ladder, METH_VARARGS,
     "ladder(level, key, first, ladder, values, is_double, out, open): how many are left open;\n"
     "the ladder is (shift, scale, divisor, cells_per_unit, origin, levels, width, rows, gaps,\n"
     "is_table, points or knots, weights or thresholds, narrow, narrow_cells, narrow_per_unit,\n"
     "narrow_origin, narrow_gap)"},
    {"grid_noise", grid_noise, METH_VARARGS,
     "grid_noise(level, key, first, steps_per_unit, slack, chords, values, out, open)"},
    {NULL, NULL, 0, NULL},
};
