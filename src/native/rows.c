/* The Python functions that clip, rotate and encode many rows in one call. */
#include "row_source.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "extension.h"
#include "ladder_tables.h"

#define MAX_VIEWS 3

/* What every function is given: the rows, and the range of them that it works on. */
struct call {
    struct sv_row_source source;
    struct sv_row_scratch scratch;
    Py_buffer views[MAX_VIEWS];
    int num_views, level;
    size_t begin, end;
};

static PyObject *finished(struct call *call, PyObject *result)
{
    sv_free_scratch(&call->scratch);
    sv_release_rows(&call->source);
    for (int i = 0; i < call->num_views; i++)
        PyBuffer_Release(&call->views[i]);
    return result;
}

static PyObject *refused(struct call *call, const char *why)
{
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, why);
    return finished(call, NULL);
}

/* Reads the rows and their range; returns -1 with an exception set if they do not fit. */
static int begin_call(struct call *call, PyObject *rows, Py_ssize_t begin, Py_ssize_t end,
                      int is_wide)
{
    call->source.num_held = 0;
    if (sv_checked_level(call->level) < 0 || sv_hold_rows(&call->source, rows) < 0)
        return -1;
    if (begin < 0 || begin > end || (size_t)end > call->source.rows)
        return -1;
    call->begin = (size_t)begin, call->end = (size_t)end;
    if (sv_make_scratch(&call->scratch, &call->source, is_wide) == 0)
        return 0;
    PyErr_NoMemory();
    return -1;
}

static int holds(const Py_buffer *view, size_t size, size_t count)
{
    return (size_t)view->len == size * count && (view->len == 0 || (uintptr_t)view->buf % size == 0);
}

static PyObject *clip_factors(PyObject *self, PyObject *args)
{
    (void)self;
    struct call call = {.num_views = 1};
    Py_buffer *out = &call.views[0];
    PyObject *rows;
    Py_ssize_t begin, end;
    double limit, least, most;
    if (!PyArg_ParseTuple(args, "iOnndddw*", &call.level, &rows, &begin, &end, &limit, &least, &most,
                          out))
        return NULL;
    if (begin_call(&call, rows, begin, end, 0) < 0 || !holds(out, 8, call.source.rows))
        return refused(&call, "a range of the rows, and a factor for each of them");
    Py_BEGIN_ALLOW_THREADS
    double *factors = out->buf;
    for (size_t i = call.begin; i < call.end; i++) {
        const struct sv_values row = sv_given_row(&call.source, call.level, i, &call.scratch);
        const double total = SV_PICK(sv_sampling, call.level)->square_sum(row), norm = sqrt(total);
        factors[i] = total >= least && total <= most ? norm <= limit ? 1.0 : limit / norm
                                                     : (double)NAN;
    }
    Py_END_ALLOW_THREADS
    return finished(&call, Py_NewRef(Py_None));
}

static PyObject *prepared_rows(PyObject *self, PyObject *args)
{
    (void)self;
    struct call call = {.num_views = 1};
    Py_buffer *out = &call.views[0];
    PyObject *rows;
    Py_ssize_t begin, end;
    if (!PyArg_ParseTuple(args, "iOnnw*", &call.level, &rows, &begin, &end, out))
        return NULL;
    if (begin_call(&call, rows, begin, end, 1) < 0 ||
        !holds(out, 8, (call.end - call.begin) * call.source.dimension))
        return refused(&call, "a range of the rows, and memory for them");
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = call.begin; i < call.end; i++)
        sv_write_row(&call.source, call.level, i, &call.scratch,
                     (double *)out->buf + (i - call.begin) * call.source.dimension);
    Py_END_ALLOW_THREADS
    return finished(&call, Py_NewRef(Py_None));
}

/* The coordinates that are left undecided: pairs of a row and a coordinate. */
struct open_pairs {
    int64_t *rows, *coordinates;
    size_t capacity, count;
};

/* Returns where the undecided coordinates of the next row are written. */
static struct sv_open opened(const struct open_pairs *pairs)
{
    const size_t used = pairs->count < pairs->capacity ? pairs->count : pairs->capacity;
    return (struct sv_open){pairs->coordinates + used, pairs->capacity - used, 0};
}

static void close_row(struct open_pairs *pairs, const struct sv_open *open, size_t row)
{
    for (size_t k = 0; k < open->count && k < open->capacity; k++)
        pairs->rows[pairs->count + k] = (int64_t)row;
    pairs->count += open->count;
}

/* Checks the keys, the payloads and the undecided coordinates of an encoding. */
static int fits_codes(const struct call *call, const Py_buffer *keys, const Py_buffer *out,
                      const Py_buffer *open, int bits)
{
    const size_t size = (call->source.dimension * (size_t)bits + 7) / 8;
    return (size_t)keys->len == 32 * call->source.rows &&
           (size_t)out->len == size * call->source.rows && (size_t)open->len % 16 == 0 &&
           holds(open, 8, (size_t)open->len / 8);
}

static struct open_pairs pairs_in(const Py_buffer *open)
{
    const size_t capacity = (size_t)open->len / 16;
    return (struct open_pairs){open->buf, (int64_t *)open->buf + capacity, capacity, 0};
}

static PyObject *one_bit_rows(PyObject *self, PyObject *args)
{
    (void)self;
    struct call call = {.num_views = 3};
    Py_buffer *keys = &call.views[0], *out = &call.views[1], *open = &call.views[2];
    PyObject *rows;
    Py_ssize_t begin, end;
    struct sv_one_bit job = {.first = 0};
    double slope;
    if (!PyArg_ParseTuple(args, "iOnny*ddw*w*", &call.level, &rows, &begin, &end, keys, &job.stddev,
                          &slope, out, open))
        return NULL;
    if (begin_call(&call, rows, begin, end, 0) < 0 || !fits_codes(&call, keys, out, open, 1))
        return refused(&call, "a range of the rows, and a key and a payload for each of them");
    struct open_pairs pairs = pairs_in(open);
    const size_t size = (call.source.dimension + 7) / 8;
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = call.begin; i < call.end; i++) {
        const struct sv_row row = sv_prepared_row(&call.source, call.level, i, &call.scratch);
        struct sv_open left = opened(&pairs);
        memcpy(job.key, (const char *)keys->buf + 32 * i, sizeof job.key);
        job.scale = row.factor, job.slope = (float)(slope * row.factor / job.stddev);
        SV_PICK(sv_sampling, call.level)
            ->one_bit(&job, row.values, (uint8_t *)out->buf + i * size, &left);
        close_row(&pairs, &left, i);
    }
    Py_END_ALLOW_THREADS
    return finished(&call, PyLong_FromSize_t(pairs.count));
}


/* Draws the codes of one row and packs them; `codes` is memory for one byte each. */
static void ladder_row(struct call *call, const struct sv_ladder_tables *tables,
                       struct sv_ladder *job, int bits, size_t i, uint8_t *codes, uint8_t *out,
                       struct sv_open *open)
{
    const struct sv_row row = sv_prepared_row(&call->source, call->level, i, &call->scratch);
    sv_scale_ladder(job, tables, row.factor);
    SV_PICK(sv_sampling, call->level)->ladder(job, row.values, codes, open);
    SV_PICK(sv_server, call->level)->pack8(codes, row.values.count, bits, out);
}

static PyObject *ladder_rows(PyObject *self, PyObject *args)
{
    (void)self;
    struct call call = {.num_views = 3, .source.num_held = 0};
    Py_buffer *keys = &call.views[0], *out = &call.views[1], *open = &call.views[2];
    PyObject *rows, *parts;
    Py_ssize_t begin, end;
    int bits;
    struct sv_ladder_tables tables = {.num_held = 0};
    if (!PyArg_ParseTuple(args, "iOnny*Oiw*w*", &call.level, &rows, &begin, &end, keys, &parts,
                          &bits, out, open))
        return NULL;
    struct sv_ladder job = {.first = 0};
    uint8_t *codes = NULL;
    /* A table's values are shifted after they are clipped. */
    int fine = sv_hold_ladder(&tables, &job, parts) == 0 &&
               begin_call(&call, rows, begin, end, job.num_knots > 0) == 0 && bits >= 1 &&
               bits <= 8 && job.levels <= (size_t)1 << bits &&
               fits_codes(&call, keys, out, open, bits);
    if (fine && !(codes = malloc(call.source.dimension))) {
        PyErr_NoMemory();
        fine = 0;
    }
    if (!fine) {
        sv_release_ladder(&tables);
        return refused(&call, "a range of the rows, keys, payloads, and a ladder whose codes fit");
    }
    struct open_pairs pairs = pairs_in(open);
    const size_t size = (call.source.dimension * (size_t)bits + 7) / 8;
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = call.begin; i < call.end; i++) {
        struct sv_open left = opened(&pairs);
        memcpy(job.key, (const char *)keys->buf + 32 * i, sizeof job.key);
        ladder_row(&call, &tables, &job, bits, i, codes, (uint8_t *)out->buf + i * size, &left);
        close_row(&pairs, &left, i);
    }
    Py_END_ALLOW_THREADS
    free(codes);
    sv_release_ladder(&tables);
    return finished(&call, PyLong_FromSize_t(pairs.count));
}

PyMethodDef sv_rows_methods[] = {
    {"clip_factors", clip_factors, METH_VARARGS,
     "clip_factors(level, rows, begin, end, limit, least, most, out): the factor that clips each\n"
     "row to the limit; NaN where the sum of squares is not from `least` to `most`"},
    {"prepared_rows", prepared_rows, METH_VARARGS,
     "prepared_rows(level, rows, begin, end, out): rows clipped and rotated, as doubles"},
    {"one_bit_rows", one_bit_rows, METH_VARARGS,
     "one_bit_rows(level, rows, begin, end, keys, stddev, slope, out, open): how many coordinates\n"
     "are left open"},
    {"ladder_rows", ladder_rows, METH_VARARGS,
     "ladder_rows(level, rows, begin, end, keys, ladder, bits, out, open): the same for a ladder"},
    {NULL, NULL, 0, NULL},
};
