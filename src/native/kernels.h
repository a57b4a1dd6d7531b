/* The tables of kernels, one for every level, which the bodies define. */
#ifndef SV_KERNELS_H
#define SV_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "keys_kernels.h"
#include "rows_kernels.h"
#include "sampling_kernels.h"
#include "server_kernels.h"

#define SV_JOIN_(a, b) a##_##b
#define SV_JOIN(a, b) SV_JOIN_(a, b)
#define SV_NAMED(name) SV_JOIN(name, SV_LEVEL)

#define SV_DECLARE(type, name)                                                                     \
    extern const struct type name##_portable, name##_avx2, name##_avx512, name##_neon;

SV_DECLARE(sv_sampling, sv_sampling)
SV_DECLARE(sv_server, sv_server)
SV_DECLARE(sv_rows, sv_rows)
SV_DECLARE(sv_keys, sv_keys)

#endif
