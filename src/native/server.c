/* The Python functions of transforms. */
#include "buffers.h"

/* Checks that there are 2^k >= least numbers, and a packed sign for each of them, or none at all.
   */
static int is_block(const Py_buffer *block, const Py_buffer *signs, size_t least)
{
    const size_t size = (size_t)block->len / sizeof(double);
    return block->len % (Py_ssize_t)sizeof(double) == 0 && size >= least && !(size & (size - 1)) &&
           (uintptr_t)block->buf % sizeof(double) == 0 &&
           (signs->len == 0 || (size_t)signs->len == size / 8);
}

static PyObject *hadamard(PyObject *self, PyObject *args)
{
    (void)self;
    int level;
    Py_buffer block, signs;
    if (!PyArg_ParseTuple(args, "iw*y*", &level, &block, &signs))
        return NULL;
    const int fine = sv_require(sv_checked_level(level) >= 0 && is_block(&block, &signs, 64),
                                "a block of 2^k numbers from 64 on, and a bit for each or none");
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        SV_PICK(sv_server, level)
            ->hadamard(block.buf, (size_t)block.len / sizeof(double),
                       signs.len ? signs.buf : NULL);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&block);
    PyBuffer_Release(&signs);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *hadamard_end(PyObject *self, PyObject *args)
{
    (void)self;
    int level;
    Py_ssize_t begin, end;
    double scale;
    Py_buffer block, signs;
    if (!PyArg_ParseTuple(args, "iw*nndy*", &level, &block, &begin, &end, &scale, &signs))
        return NULL;
    const Py_ssize_t eighth = block.len / (Py_ssize_t)sizeof(double) / 8;
    const int fine = sv_require(sv_checked_level(level) >= 0 && is_block(&block, &signs, 512) &&
                                    0 <= begin && begin <= end && end <= eighth &&
                                    begin % 8 == 0 && end % 8 == 0,
                                "a block of 2^k numbers from 512 on, a range of its eighths' "
                                "columns, and a bit for each number or none");
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        SV_PICK(sv_server, level)
            ->hadamard_end(block.buf, (size_t)block.len / sizeof(double), (size_t)begin,
                           (size_t)end, scale, signs.len ? signs.buf : NULL);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&block);
    PyBuffer_Release(&signs);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

PyMethodDef sv_server_methods[] = {
    {"hadamard", hadamard, METH_VARARGS,
     "hadamard(level, block, signs): signs, then H v in place, not scaled"},
    {"hadamard_end", hadamard_end, METH_VARARGS,
     "hadamard_end(level, block, begin, end, scale, signs): its last three levels, then the rest"},
    {NULL, NULL, 0, NULL},
};
