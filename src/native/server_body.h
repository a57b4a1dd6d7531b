/* The packing and sums of one level. */
#include "kernels.h"

#include "packing_body.h"

#include "counting_body.h"

const struct sv_server SV_NAMED(sv_server) = {
    .unpack8 = unpack8,
    .unpack16 = unpack16,
    .unpack32 = unpack32,
    .pack8 = pack8,
    .pack16 = pack16,
    .pack32 = pack32,
    .pack_low = pack_low,
    .largest8 = largest8,
    .count_bits = count_bits,
    .read_counts = read_counts,
    .count_levels = count_levels,
    .widen = widen,
    .combine = combine,
    .add_points = add_points,
};
