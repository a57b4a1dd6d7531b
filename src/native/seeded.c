/* The Python functions of signs that seeds expand to. */
#include "buffers.h"

#include <string.h>

/* One more coordinate would exceed the block counter of ChaCha20. */
#define MOST_SIGNS ((size_t)SV_BLOCK_BITS << 32)

/* Checks that there are whole seeds, and the tag that completes their keys. */
static int are_seeds(const Py_buffer *view, const Py_buffer *tag, struct sv_seeds *seeds)
{
    if (view->len % SV_SEED_BYTES || (size_t)tag->len != sizeof seeds->tag)
        return 0;
    seeds->start = view->buf;
    seeds->count = (size_t)view->len / SV_SEED_BYTES;
    memcpy(seeds->tag, tag->buf, sizeof seeds->tag);
    return 1;
}

static int are_numbers(const Py_buffer *view, size_t size)
{
    return (size_t)view->len % size == 0 && (view->len == 0 || (uintptr_t)view->buf % size == 0);
}

/* Returns whether `size` bytes are that many rows of `count` signs each. */
static int are_rows(size_t size, size_t rows, size_t count)
{
    const size_t row = (count + 7) / 8;
    return row ? size % row == 0 && size / row == rows : size == 0;
}

static PyObject *expand_signs(PyObject *self, PyObject *args)
{
    (void)self;
    int level;
    Py_ssize_t count;
    Py_buffer tag, given, out;
    struct sv_seeds seeds;
    if (!PyArg_ParseTuple(args, "iy*y*nw*", &level, &tag, &given, &count, &out))
        return NULL;
    const int fine = sv_require(sv_checked_level(level) >= 0 && are_seeds(&given, &tag, &seeds) &&
                                    count >= 0 && (size_t)count <= MOST_SIGNS &&
                                    are_rows((size_t)out.len, seeds.count, (size_t)count),
                                "a tag and seeds of 16 bytes, and a row of packed signs for each");
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        SV_PICK(sv_sampling, level)->expand_signs(&seeds, (size_t)count, out.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&tag);
    PyBuffer_Release(&given);
    PyBuffer_Release(&out);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *score_signs(PyObject *self, PyObject *args)
{
    (void)self;
    int level;
    Py_buffer tag, given, weights, out;
    struct sv_seeds seeds;
    if (!PyArg_ParseTuple(args, "iy*y*y*w*", &level, &tag, &given, &weights, &out))
        return NULL;
    const size_t count = (size_t)weights.len / sizeof(int16_t);
    const int fine =
        sv_require(sv_checked_level(level) >= 0 && are_seeds(&given, &tag, &seeds) &&
                       are_numbers(&weights, sizeof(int16_t)) && count <= MOST_SIGNS &&
                       are_numbers(&out, sizeof(int64_t)) &&
                       (size_t)out.len / sizeof(int64_t) == seeds.count,
                   "a tag and seeds of 16 bytes, weights of 16 bits, and 64 bits for each seed");
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        SV_PICK(sv_sampling, level)->score_signs(&seeds, weights.buf, count, out.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&tag);
    PyBuffer_Release(&given);
    PyBuffer_Release(&weights);
    PyBuffer_Release(&out);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

PyMethodDef sv_seeded_methods[] = {
    {"expand_signs", expand_signs, METH_VARARGS,
     "expand_signs(level, tag, seeds, count, out): packed signs, a row for each seed"},
    {"score_signs", score_signs, METH_VARARGS,
     "score_signs(level, tag, seeds, weights, out): the sum of sign times weight for each seed"},
    {NULL, NULL, 0, NULL},
};
