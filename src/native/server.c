/* The Python function that transforms a block of numbers. */
#include "buffers.h"
#include "workers.h"

#define COLUMNS ((size_t)1 << 12) /* That a thread takes at once. */

struct transforming {
    struct sv_job job;
    int level;
    double *block;
    size_t size;
    const uint8_t *before, *after;
};

static void transform_eighths(struct sv_job *job)
{
    const struct transforming *t = (const struct transforming *)job;
    const size_t eighth = t->size / 8;
    for (size_t i, end; sv_take(job, &i, &end);)
        SV_PICK(sv_rows, t->level)
            ->eighth(NULL, 1.0, t->block + i * eighth, eighth,
                     t->before ? t->before + i * eighth / 8 : NULL);
}

static void transform_columns(struct sv_job *job)
{
    const struct transforming *t = (const struct transforming *)job;
    for (size_t begin, end; sv_take(job, &begin, &end);)
        SV_PICK(sv_rows, t->level)
            ->last_levels(t->block, t->size, begin, end, t->after, t->block);
}

/* Checks that there is a packed sign for each number, or none at all. */
static int fits(const Py_buffer *signs, size_t size)
{
    return signs->len == 0 || (size_t)signs->len == size / 8;
}

static PyObject *rotate(PyObject *self, PyObject *args)
{
    (void)self;
    int level, threads;
    Py_buffer block, before, after;
    if (!PyArg_ParseTuple(args, "iw*y*y*i", &level, &block, &before, &after, &threads))
        return NULL;
    const size_t size = (size_t)block.len / sizeof(double);
    const int fine = sv_require(
        sv_checked_level(level) >= 0 && block.len % (Py_ssize_t)sizeof(double) == 0 &&
            size >= 512 && !(size & (size - 1)) && (uintptr_t)block.buf % sizeof(double) == 0 &&
            fits(&before, size) && fits(&after, size) && threads >= 1 && threads <= SV_MAX_THREADS,
        "a block of 2^k numbers from 512 on, and a bit for each or none");
    if (fine) {
        struct transforming t = {
            .job = {.work = transform_eighths, .size = 8, .share = 1},
            .level = level,
            .block = block.buf,
            .size = size,
            .before = before.len ? before.buf : NULL,
            .after = after.len ? after.buf : NULL,
        };
        Py_BEGIN_ALLOW_THREADS
        sv_run(&t.job, threads);
        t.job = (struct sv_job){.work = transform_columns, .size = size / 8, .share = COLUMNS};
        sv_run(&t.job, threads);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&block);
    PyBuffer_Release(&before);
    PyBuffer_Release(&after);
    return fine ? Py_NewRef(Py_None) : NULL;
}

PyMethodDef sv_server_methods[] = {
    {"rotate", rotate, METH_VARARGS,
     "rotate(level, block, before, after, threads): signs, the scaled H v, and signs, in place"},
    {NULL, NULL, 0, NULL},
};
