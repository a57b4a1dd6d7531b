/* The Python functions of packed codes. */
#include "buffers.h"

/* The bytes of a code in memory: the smallest unsigned type with enough bits. */
static Py_ssize_t item_of(int bits) { return bits <= 8 ? 1 : bits <= 16 ? 2 : 4; }

static int fits(const Py_buffer *codes, const Py_buffer *payload, int bits)
{
    if (bits < 1 || bits > 32 || codes->len % item_of(bits) || codes->len > PY_SSIZE_T_MAX / 32 - 8)
        return 0;
    return payload->len == (codes->len / item_of(bits) * bits + 7) / 8 &&
           (uintptr_t)codes->buf % (uintptr_t)item_of(bits) == 0;
}

static const char *const REFUSAL = "codes of 1, 2 or 4 bytes, and their payload of 1 to 32 bits";

static PyObject *unpack(PyObject *self, PyObject *args)
{
    (void)self;
    int level, bits;
    Py_buffer payload, out;
    if (!PyArg_ParseTuple(args, "iy*iw*", &level, &payload, &bits, &out))
        return NULL;
    const int fine =
        sv_require(sv_checked_level(level) >= 0 && fits(&out, &payload, bits), REFUSAL);
    if (fine) {
        const struct sv_server *kernels = SV_PICK(sv_server, level);
        const size_t count = (size_t)(out.len / item_of(bits));
        Py_BEGIN_ALLOW_THREADS
        if (bits <= 8)
            kernels->unpack8(payload.buf, count, bits, out.buf);
        else if (bits <= 16)
            kernels->unpack16(payload.buf, count, bits, out.buf);
        else
            kernels->unpack32(payload.buf, count, bits, out.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&payload);
    PyBuffer_Release(&out);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *pack(PyObject *self, PyObject *args)
{
    (void)self;
    int level, bits;
    Py_buffer codes, out;
    if (!PyArg_ParseTuple(args, "iy*iw*", &level, &codes, &bits, &out))
        return NULL;
    const int fine = sv_require(sv_checked_level(level) >= 0 && fits(&codes, &out, bits), REFUSAL);
    uint32_t seen = 0;
    if (fine) {
        const struct sv_server *kernels = SV_PICK(sv_server, level);
        const size_t count = (size_t)(codes.len / item_of(bits));
        Py_BEGIN_ALLOW_THREADS
        if (bits <= 8)
            seen = kernels->pack8(codes.buf, count, bits, out.buf);
        else if (bits <= 16)
            seen = kernels->pack16(codes.buf, count, bits, out.buf);
        else
            seen = kernels->pack32(codes.buf, count, bits, out.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&codes);
    PyBuffer_Release(&out);
    return fine ? PyLong_FromUnsignedLong(seen) : NULL;
}

static PyObject *largest(PyObject *self, PyObject *args)
{
    (void)self;
    int level, bits;
    Py_ssize_t count;
    Py_buffer payload;
    if (!PyArg_ParseTuple(args, "iy*ni", &level, &payload, &count, &bits))
        return NULL;
    const int fine = sv_require(sv_checked_level(level) >= 0 && bits >= 1 && bits <= 8 &&
                                    count >= 0 && count <= PY_SSIZE_T_MAX / 8 - 8 &&
                                    payload.len == (count * bits + 7) / 8,
                                "a payload of codes of 1 to 8 bits, and how many they are");
    uint32_t found = 0;
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        found = SV_PICK(sv_server, level)->largest8(payload.buf, (size_t)count, bits);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&payload);
    return fine ? PyLong_FromUnsignedLong(found) : NULL;
}

PyMethodDef sv_packing_methods[] = {
    {"unpack", unpack, METH_VARARGS, "unpack(level, payload, bits, out)"},
    {"pack", pack, METH_VARARGS, "pack(level, codes, bits, out): the OR of all codes"},
    {"largest", largest, METH_VARARGS, "largest(level, payload, count, bits): the largest code"},
    {NULL, NULL, 0, NULL},
};
