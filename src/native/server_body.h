/* Transforms, packing and sums, for one level. */
#include "kernels.h"

#include "packing_body.h"

#include "counting_body.h"

static void hadamard(double *block, size_t size)
{
    for (size_t half = 1; half < size; half *= 2)
        for (size_t start = 0; start < size; start += 2 * half)
            for (size_t i = start; i < start + half; i++) {
                const double below = block[i], above = block[i + half];
                block[i] = below + above;
                block[i + half] = below - above;
            }
}

const struct sv_server SV_NAMED(sv_server) = {
    .hadamard = hadamard,
    .unpack8 = unpack8,
    .unpack16 = unpack16,
    .unpack32 = unpack32,
    .pack8 = pack8,
    .pack16 = pack16,
    .pack32 = pack32,
    .largest8 = largest8,
    .count_bits = count_bits,
    .read_counts = read_counts,
    .count_levels = count_levels,
    .add_points = add_points,
};
