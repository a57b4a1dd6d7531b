/* Python's side of keystreams and samplers. */
#include "native.h"

#include <string.h>

/* draws(level, key, bits, first_tile, out): the interleaved stream with nonce 0 */
static PyObject *draws(PyObject *self, PyObject *args)
{
    (void)self;
    int level, bits;
    unsigned int first;
    Py_buffer key, out;
    if (!PyArg_ParseTuple(args, "iy*iIw*", &level, &key, &bits, &first, &out))
        return NULL;
    const size_t tile_bytes = 4 * SV_TILE_WORDS;
    int fine = sv_checked_level(level) >= 0;
    if (fine && (key.len != 32 || (bits != 16 && bits != 32) || out.len % tile_bytes)) {
        PyErr_SetString(PyExc_ValueError, "a key has 32 bytes, draws 16 or 32 bits, a tile 2048 bytes");
        fine = 0;
    }
    if (fine) {
        uint32_t words[8];
        memcpy(words, key.buf, sizeof words);
        Py_BEGIN_ALLOW_THREADS
        if (bits == 16)
            SV_PICK(sv_sampling, level)->draws16(words, first, out.len / tile_bytes, out.buf);
        else
            SV_PICK(sv_sampling, level)->draws32(words, first, out.len / tile_bytes, out.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&key);
    PyBuffer_Release(&out);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

PyMethodDef sv_sampling_methods[] = {
    {"draws", draws, METH_VARARGS, "draws(level, key, bits, first_tile, out)"},
    {NULL, NULL, 0, NULL},
};
