/* The Python function that copies chosen rows of a matrix on several threads. */
#include <string.h>

#include "buffers.h"
#include "workers.h"

#define LEAST_BYTES ((size_t)1 << 15) /* Of rows that a thread copies at once. */

struct gathering {
    struct sv_job job;
    const char *matrix;
    const int64_t *chosen;
    char *out;
    size_t row_bytes;
};

static void copy_rows(struct sv_job *job)
{
    const struct gathering *g = (const struct gathering *)job;
    for (size_t i, end; sv_take(job, &i, &end);)
        for (; i < end; i++)
            memcpy(g->out + i * g->row_bytes, g->matrix + (size_t)g->chosen[i] * g->row_bytes,
                   g->row_bytes);
}

/* Returns how many rows of `row_bytes` bytes there are, or -1 if they are not whole. */
static Py_ssize_t whole_rows(const Py_buffer *view, Py_ssize_t row_bytes)
{
    return row_bytes >= 1 && view->len % row_bytes == 0 ? view->len / row_bytes : -1;
}

static int are_rows(const Py_buffer *chosen, Py_ssize_t rows)
{
    if (chosen->len % 8 || (uintptr_t)chosen->buf % 8)
        return 0;
    for (Py_ssize_t i = 0; i < chosen->len / 8; i++) {
        const int64_t row = ((const int64_t *)chosen->buf)[i];
        if (row < 0 || row >= rows)
            return 0;
    }
    return 1;
}

static PyObject *gather_rows(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer matrix, chosen, out;
    Py_ssize_t size;
    int threads;
    if (!PyArg_ParseTuple(args, "y*ny*w*i", &matrix, &size, &chosen, &out, &threads))
        return NULL;
    const int fine = sv_require(threads >= 1 && threads <= SV_MAX_THREADS &&
                                    are_rows(&chosen, whole_rows(&matrix, size)) &&
                                    whole_rows(&out, size) == chosen.len / 8,
                                "whole rows of a matrix, and memory for those that are chosen");
    if (fine) {
        struct gathering g = {
            .job = {.work = copy_rows, .size = (size_t)chosen.len / 8},
            .matrix = matrix.buf, .chosen = chosen.buf, .out = out.buf, .row_bytes = (size_t)size,
        };
        g.job.share = 1 + LEAST_BYTES / g.row_bytes;
        Py_BEGIN_ALLOW_THREADS
        sv_run(&g.job, threads);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&matrix);
    PyBuffer_Release(&chosen);
    PyBuffer_Release(&out);
    return fine ? Py_NewRef(Py_None) : NULL;
}

PyMethodDef sv_gather_methods[] = {
    {"gather_rows", gather_rows, METH_VARARGS,
     "gather_rows(matrix, row_bytes, chosen, out, threads): copies the chosen rows of a matrix"},
    {NULL, NULL, 0, NULL},
};
