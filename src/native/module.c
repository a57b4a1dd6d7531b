/* The module, and the levels of instructions that this processor has.

Functions take buffers that the Python side has checked (types, contiguity and sizes are checked
again here, where a mistake would read beyond an end), release the interpreter's lock while they
work, and have no state but the threads of workers.c. They may be called from several threads. */
#include "native.h"

/* Increment this, here and in sottovoce/core/native.py, whenever the meaning of an argument
   changes. */
#define SV_INTERFACE 6

static int best_level(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("fma") || !__builtin_cpu_supports("popcnt"))
        return SV_LEVEL_PORTABLE;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("bmi2"))
        return SV_LEVEL_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2"))
        return SV_LEVEL_AVX2;
#elif defined(__aarch64__) && defined(__GNUC__)
    return SV_LEVEL_NEON;
#endif
    return SV_LEVEL_PORTABLE;
}

static PyObject *levels(PyObject *self, PyObject *none)
{
#if defined(__x86_64__) && defined(__GNUC__)
    static const char *const names[] = {"portable", "avx2", "avx512"};
#else
    static const char *const names[] = {"portable", "neon"};
#endif
    (void)self, (void)none;
    PyObject *found = PyTuple_New(best_level() + 1);
    for (int level = 0; found && level <= best_level(); level++) {
        PyObject *name = PyUnicode_FromString(names[level]);
        if (!name || PyTuple_SetItem(found, level, name) < 0)
            Py_CLEAR(found);
    }
    return found;
}

/* Returns the requested level if this processor has it, else -1 with an exception set. */
int sv_checked_level(int level)
{
    if (level < 0 || level > best_level()) {
        PyErr_Format(PyExc_ValueError, "this processor has no kernels of level %d", level);
        return -1;
    }
    return level;
}

static PyMethodDef methods[] = {
    {"levels", levels, METH_NOARGS, "the names of this processor's levels, from number 0 on"},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module)
{
    PyMethodDef *const parts[] = {sv_sampling_methods, sv_seeded_methods, sv_server_methods,
                                  sv_packing_methods, sv_sums_methods,
                                  sv_rows_methods, sv_keys_methods, sv_row_sums_methods,
                                  sv_gather_methods};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (PyModule_AddFunctions(module, parts[i]) < 0)
            return -1;
    return PyModule_AddIntConstant(module, "INTERFACE", SV_INTERFACE);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)fill}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "sottovoce._native", "Kernels in C.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
