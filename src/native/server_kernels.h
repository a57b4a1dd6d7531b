/* Transforms, packing and sums. */
#ifndef SV_SERVER_KERNELS_H
#define SV_SERVER_KERNELS_H

#include <stddef.h>
#include <stdint.h>

struct sv_server {
    /* H v in place, not scaled, for 2^k numbers. */
    void (*hadamard)(double *block, size_t size);
};

#endif
