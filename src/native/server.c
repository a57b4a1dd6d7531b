/* Python's side of transforms, packing and sums. */
#include "native.h"

static PyObject *hadamard(PyObject *self, PyObject *args)
{
    (void)self;
    int level;
    Py_buffer block;
    if (!PyArg_ParseTuple(args, "iw*", &level, &block))
        return NULL;
    const size_t size = (size_t)block.len / sizeof(double);
    if (sv_checked_level(level) < 0 || block.len % (Py_ssize_t)sizeof(double) ||
        (uintptr_t)block.buf % sizeof(double) ||
        (size & (size - 1)) || !size) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a block of 2^k numbers is transformed");
        PyBuffer_Release(&block);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    SV_PICK(sv_server, level)->hadamard(block.buf, size);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&block);
    Py_RETURN_NONE;
}

PyMethodDef sv_server_methods[] = {
    {"hadamard", hadamard, METH_VARARGS, "hadamard(level, block): H v in place, not scaled"},
    {NULL, NULL, 0, NULL},
};
