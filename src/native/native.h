/* The declarations that the binding files share. */
#ifndef SV_NATIVE_H
#define SV_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "keys, codes and payloads are read and written as little-endian words; numpy does the rest"
#endif

/* The levels of one processor family; each includes the instructions of those before. */
#if defined(__x86_64__) && defined(__GNUC__)
enum { SV_LEVEL_PORTABLE, SV_LEVEL_AVX2, SV_LEVEL_AVX512 };
#else
enum { SV_LEVEL_PORTABLE, SV_LEVEL_NEON };
#endif

int sv_checked_level(int level);

extern PyMethodDef sv_sampling_methods[]; /* sampling.c */
extern PyMethodDef sv_seeded_methods[];   /* seeded.c */
extern PyMethodDef sv_server_methods[];   /* server.c */
extern PyMethodDef sv_packing_methods[];  /* packing.c */
extern PyMethodDef sv_sums_methods[];     /* sums.c */
extern PyMethodDef sv_rows_methods[];     /* rows.c */
extern PyMethodDef sv_keys_methods[];     /* keys.c */
extern PyMethodDef sv_row_sums_methods[]; /* row_sums.c */
extern PyMethodDef sv_gather_methods[];   /* gather.c */

#if defined(__x86_64__) && defined(__GNUC__)
#define SV_PICK(name, level)                                                                       \
    ((level) == SV_LEVEL_AVX512 ? &name##_avx512                                                   \
     : (level) == SV_LEVEL_AVX2 ? &name##_avx2                                                     \
                                : &name##_portable)
#elif defined(__aarch64__) && defined(__GNUC__)
#define SV_PICK(name, level) ((level) == SV_LEVEL_NEON ? &name##_neon : &name##_portable)
#else
#define SV_PICK(name, level) ((void)(level), &name##_portable)
#endif

#endif
