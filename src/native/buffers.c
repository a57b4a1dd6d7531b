/* Checks of lists of buffers and of numbers that Python passes. */
#include "buffers.h"

int sv_hold(struct sv_buffers *buffers, PyObject *list, int most, int flags)
{
    buffers->count = 0;
    if (!PyList_Check(list) || PyList_Size(list) < 1 || PyList_Size(list) > most) {
        PyErr_Format(PyExc_ValueError, "a list of 1 to %d buffers is expected", most);
        return -1;
    }
    const int size = (int)PyList_Size(list);
    for (int i = 0; i < size; i++) {
        Py_buffer *one = &buffers->held[i];
        if (PyObject_GetBuffer(PyList_GetItem(list, i), one, flags) < 0) {
            sv_let_go(buffers);
            return -1;
        }
        buffers->start[buffers->count++] = one->buf;
    }
    return 0;
}

void sv_let_go(struct sv_buffers *buffers)
{
    while (buffers->count)
        PyBuffer_Release(&buffers->held[--buffers->count]);
}

int sv_require(int fine, const char *text)
{
    if (!fine && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, text);
    return fine;
}
