/* The Python functions that clip, rotate and encode many rows in one call, on several threads. */
#include "row_source.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "buffers.h"
#include "extension.h"
#include "ladder_tables.h"
#include "workers.h"

#define MAX_VIEWS 4
#define LEAST_COORDINATES ((size_t)1 << 13) /* Of rows that a thread takes at once. */

/* The coordinates that are left undecided: pairs of a row and a coordinate. */
struct open_pairs {
    int64_t *rows, *coordinates;
    size_t capacity, count;
};

/* What a thread has for itself. */
struct own {
    struct sv_row_scratch scratch;
    int64_t *open; /* As many as there can be pairs. */
};

/* What every function is given: the first member of a struct with its further arguments. */
struct call {
    struct sv_job job;
    struct sv_row_source source;
    Py_buffer views[MAX_VIEWS];
    int num_views, level, is_wide;
    struct open_pairs pairs;
    void (*work)(struct call *call, struct own *own, size_t row);
};

static PyObject *finished(struct call *call, PyObject *result)
{
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

/* Reads the rows; returns 0 with an exception set if they do not fit. */
static int holds_rows(struct call *call, PyObject *rows)
{
    call->source.num_held = 0;
    return sv_checked_level(call->level) >= 0 && sv_hold_rows(&call->source, rows) == 0;
}

static int holds(const Py_buffer *view, size_t size, size_t count)
{
    return (size_t)view->len == size * count && (view->len == 0 || (uintptr_t)view->buf % size == 0);
}

/* Works on rows until none is left; each thread has its own memory. */
static void each_row(struct sv_job *job)
{
    struct call *call = (struct call *)job;
    struct own own = {.open = NULL};
    if (sv_make_scratch(&own.scratch, &call->source, call->is_wide) < 0)
        return;
    own.open = malloc(call->pairs.capacity * sizeof(int64_t) + 1);
    if (own.open)
        for (size_t i, end; sv_take(job, &i, &end);)
            for (; i < end; i++)
                call->work(call, &own, i);
    free(own.open);
    sv_free_scratch(&own.scratch);
}

/* Works on all rows; returns 0 with an exception set if there is no memory. */
static int done(struct call *call)
{
    int all;
    call->job.work = each_row, call->job.size = call->source.rows;
    call->job.share = 1 + LEAST_COORDINATES / call->source.dimension;
    Py_BEGIN_ALLOW_THREADS
    all = sv_run(&call->job, call->source.threads);
    Py_END_ALLOW_THREADS
    if (!all)
        PyErr_NoMemory();
    return all;
}

struct clipping {
    struct call call;
    double limit, least, most;
};

static void clip_row(struct call *call, struct own *own, size_t i)
{
    const struct clipping *c = (const struct clipping *)call;
    const struct sv_sampling *kernels = SV_PICK(sv_sampling, call->level);
    struct sv_squares sum = {.tiles = 0};
    struct sv_values part;
    for (size_t first = 0; first < call->source.dimension; first += part.count) {
        part = sv_given_part(&call->source, call->level, i, first, &own->scratch);
        kernels->add_squares(&sum, part);
    }
    const double total = kernels->total_squares(&sum), norm = sqrt(total);
    ((double *)call->views[0].buf)[i] =
        total >= c->least && total <= c->most ? norm <= c->limit ? 1.0 : c->limit / norm
                                              : (double)NAN;
}

static PyObject *clip_factors(PyObject *self, PyObject *args)
{
    (void)self;
    struct clipping c = {.call = {.num_views = 1, .work = clip_row}};
    struct call *call = &c.call;
    PyObject *rows;
    if (!PyArg_ParseTuple(args, "iOdddw*", &call->level, &rows, &c.limit, &c.least, &c.most,
                          &call->views[0]))
        return NULL;
    if (!holds_rows(call, rows) || !holds(&call->views[0], 8, call->source.rows))
        return refused(call, "rows, and a factor for each of them");
    return finished(call, done(call) ? Py_NewRef(Py_None) : NULL);
}

static void prepare_row(struct call *call, struct own *own, size_t i)
{
    sv_write_row(&call->source, call->level, i, &own->scratch,
                 (double *)call->views[0].buf + i * call->source.dimension);
}

static PyObject *prepared_rows(PyObject *self, PyObject *args)
{
    (void)self;
    struct call call = {.num_views = 1, .is_wide = 1, .work = prepare_row};
    PyObject *rows;
    if (!PyArg_ParseTuple(args, "iOw*", &call.level, &rows, &call.views[0]))
        return NULL;
    if (!holds_rows(&call, rows) ||
        !holds(&call.views[0], 8, call.source.rows * call.source.dimension))
        return refused(&call, "rows, and memory for them");
    return finished(&call, done(&call) ? Py_NewRef(Py_None) : NULL);
}

/* The views of an encoding: the keys, the payloads, memory for what is left undecided, and a table
   of noise. */
enum { KEYS, PAYLOADS, OPEN, CHORDS };

/* Checks them, and prepares the pairs. */
static int fits_codes(struct call *call, int bits)
{
    const Py_buffer *keys = &call->views[KEYS], *open = &call->views[OPEN];
    const size_t size = (call->source.dimension * (size_t)bits + 7) / 8;
    const size_t capacity = (size_t)open->len / 16;
    call->pairs = (struct open_pairs){open->buf, (int64_t *)open->buf + capacity, capacity, 0};
    return (size_t)keys->len == 32 * call->source.rows &&
           (size_t)call->views[PAYLOADS].len == size * call->source.rows &&
           (size_t)open->len % 16 == 0 && holds(open, 8, (size_t)open->len / 8);
}

static void copy_key(const struct call *call, size_t i, uint32_t key[8])
{
    memcpy(key, (const char *)call->views[KEYS].buf + 32 * i, 32);
}

static uint8_t *payload(const struct call *call, size_t i, int bits)
{
    const size_t size = (call->source.dimension * (size_t)bits + 7) / 8;
    return (uint8_t *)call->views[PAYLOADS].buf + i * size;
}

/* Adds what a row left undecided to the pairs, as much as fits. */
static void add_pairs(struct open_pairs *pairs, const struct sv_open *open, size_t row)
{
    if (!open->count)
        return;
    const size_t first = __atomic_fetch_add(&pairs->count, open->count, __ATOMIC_RELAXED);
    for (size_t k = 0; k < open->count && first + k < pairs->capacity; k++) {
        pairs->rows[first + k] = (int64_t)row;
        pairs->coordinates[first + k] = open->coordinates[k];
    }
}

struct drawing_bits {
    struct call call;
    double stddev, slope;
};

static void one_bit_row(struct call *call, struct own *own, size_t i)
{
    const struct drawing_bits *c = (const struct drawing_bits *)call;
    struct sv_open open = {own->open, call->pairs.capacity, 0};
    struct sv_one_bit job = {.stddev = c->stddev};
    struct sv_row part;
    copy_key(call, i, job.key);
    for (; job.first < call->source.dimension; job.first += part.values.count) {
        part = sv_prepared_part(&call->source, call->level, i, job.first, &own->scratch);
        job.scale = part.factor, job.slope = (float)(c->slope * part.factor / c->stddev);
        SV_PICK(sv_sampling, call->level)
            ->one_bit(&job, part.values, payload(call, i, 1) + job.first / 8, &open);
    }
    add_pairs(&call->pairs, &open, i);
}

static PyObject *one_bit_rows(PyObject *self, PyObject *args)
{
    (void)self;
    struct drawing_bits c = {.call = {.num_views = 3, .work = one_bit_row}};
    struct call *call = &c.call;
    PyObject *rows;
    if (!PyArg_ParseTuple(args, "iOy*ddw*w*", &call->level, &rows, &call->views[KEYS], &c.stddev,
                          &c.slope, &call->views[PAYLOADS], &call->views[OPEN]))
        return NULL;
    if (!holds_rows(call, rows) || !fits_codes(call, 1))
        return refused(call, "rows, and a key and a payload for each of them");
    return finished(call, done(call) ? PyLong_FromSize_t(call->pairs.count) : NULL);
}

/* Codes that are drawn and packed together; they stay in the L1 cache. */
#define CODES_TOGETHER ((size_t)8 * SV_TILE_DRAWS)

/* Up to `most` values from `at` on. */
static struct sv_values some_values(struct sv_values values, size_t at, size_t most)
{
    const size_t size = values.is_double ? sizeof(double) : sizeof(float);
    const size_t left = values.count - at;
    return (struct sv_values){(const char *)values.start + at * size, left < most ? left : most,
                              values.is_double};
}

struct drawing_codes {
    struct call call;
    struct sv_ladder_tables tables;
    struct sv_ladder ladder;
    int bits;
};

static void ladder_row(struct call *call, struct own *own, size_t i)
{
    const struct drawing_codes *c = (const struct drawing_codes *)call;
    struct sv_open open = {own->open, call->pairs.capacity, 0};
    struct sv_ladder job = c->ladder;
    uint8_t codes[CODES_TOGETHER];
    struct sv_row part;
    copy_key(call, i, job.key);
    for (size_t first = 0; first < call->source.dimension; first += part.values.count) {
        part = sv_prepared_part(&call->source, call->level, i, first, &own->scratch);
        sv_scale_ladder(&job, &c->tables, part.factor);
        for (size_t at = 0; at < part.values.count; at += CODES_TOGETHER) {
            const struct sv_values values = some_values(part.values, at, CODES_TOGETHER);
            job.first = first + at;
            SV_PICK(sv_sampling, call->level)->ladder(&job, values, codes, &open);
            SV_PICK(sv_server, call->level)
                ->pack8(codes, values.count, c->bits,
                        payload(call, i, c->bits) + job.first / 8 * (size_t)c->bits);
        }
    }
    add_pairs(&call->pairs, &open, i);
}

static PyObject *ladder_rows(PyObject *self, PyObject *args)
{
    (void)self;
    struct drawing_codes c = {.call = {.num_views = 3, .work = ladder_row}};
    struct call *call = &c.call;
    PyObject *rows, *parts;
    if (!PyArg_ParseTuple(args, "iOy*Oiw*w*", &call->level, &rows, &call->views[KEYS], &parts,
                          &c.bits, &call->views[PAYLOADS], &call->views[OPEN]))
        return NULL;
    PyObject *found = NULL;
    if (sv_hold_ladder(&c.tables, &c.ladder, parts) == 0 && holds_rows(call, rows)) {
        /* A table's values are shifted after clipping. */
        call->is_wide = c.ladder.num_knots > 0 && call->source.factors;
        if (sv_require(c.bits >= 1 && c.bits <= 8 && c.ladder.levels <= (size_t)1 << c.bits &&
                           fits_codes(call, c.bits),
                       "rows, keys, payloads, and a ladder whose codes fit") &&
            done(call))
            found = PyLong_FromSize_t(call->pairs.count);
    }
    sv_release_ladder(&c.tables);
    return finished(call, found);
}

#define GRID_TOGETHER ((size_t)4 * SV_TILE_WORDS) /* The coordinates that stay in the L1 cache. */

struct drawing_grid {
    struct call call;
    struct sv_grid_noise noise;
    double middle;
    int bits;
};

static void grid_row(struct call *call, struct own *own, size_t i)
{
    const struct drawing_grid *c = (const struct drawing_grid *)call;
    struct sv_open open = {own->open, call->pairs.capacity, 0};
    struct sv_grid_noise job = c->noise;
    double centered[GRID_TOGETHER];
    int32_t codes[GRID_TOGETHER];
    struct sv_row part = {.values = {.count = 0}};
    copy_key(call, i, job.key);
    for (size_t first = 0; first < call->source.dimension; first += part.values.count) {
        part = sv_prepared_part(&call->source, call->level, i, first, &own->scratch);
        for (size_t at = 0; at < part.values.count; at += GRID_TOGETHER) {
            const struct sv_values values = some_values(part.values, at, GRID_TOGETHER);
            SV_PICK(sv_rows, call->level)
                ->widened(values.start, values.count, values.is_double, part.factor, centered);
            for (size_t k = 0; k < values.count && c->middle != 0.0; k++)
                centered[k] -= c->middle;
            job.first = first + at;
            SV_PICK(sv_sampling, call->level)
                ->grid_noise(&job, (struct sv_values){centered, values.count, 1}, codes, &open);
            SV_PICK(sv_server, call->level)
                ->pack_low(codes, values.count, c->bits,
                           payload(call, i, c->bits) + job.first / 8 * (size_t)c->bits);
        }
    }
    add_pairs(&call->pairs, &open, i);
}

static PyObject *grid_rows(PyObject *self, PyObject *args)
{
    (void)self;
    struct drawing_grid c = {.call = {.num_views = 4, .work = grid_row}};
    struct call *call = &c.call;
    const Py_buffer *chords = &call->views[CHORDS];
    PyObject *rows;
    if (!PyArg_ParseTuple(args, "iOy*ddy*diw*w*", &call->level, &rows, &call->views[KEYS],
                          &c.noise.steps_per_unit, &c.noise.slack, &call->views[CHORDS], &c.middle,
                          &c.bits, &call->views[PAYLOADS], &call->views[OPEN]))
        return NULL;
    if (!holds_rows(call, rows) || c.bits < 1 || c.bits > 32 || !fits_codes(call, c.bits) ||
        !holds(chords, 8, 4 * SV_NOISE_CELLS))
        return refused(call, "rows, a key and a payload for each of them, and a noise table");
    c.noise.chords = chords->buf;
    return finished(call, done(call) ? PyLong_FromSize_t(call->pairs.count) : NULL);
}

PyMethodDef sv_rows_methods[] = {
    {"clip_factors", clip_factors, METH_VARARGS,
     "clip_factors(level, rows, limit, least, most, out): the factor that clips each row to the\n"
     "limit; NaN where the sum of squares is not from `least` to `most`"},
    {"prepared_rows", prepared_rows, METH_VARARGS,
     "prepared_rows(level, rows, out): rows clipped and rotated, as doubles"},
    {"one_bit_rows", one_bit_rows, METH_VARARGS,
     "one_bit_rows(level, rows, keys, stddev, slope, out, open): how many coordinates are left\n"
     "open"},
    {"ladder_rows", ladder_rows, METH_VARARGS,
     "ladder_rows(level, rows, keys, ladder, bits, out, open): the same for a ladder"},
    {"grid_rows", grid_rows, METH_VARARGS,
     "grid_rows(level, rows, keys, steps_per_unit, slack, chords, middle, bits, out, open): the\n"
     "same for values less the middle, with noise on a grid; the lowest bits of a code are sent"},
    {NULL, NULL, 0, NULL},
};
