/* The ChaCha20 keystreams and exact samplers of one level. */
#include "extension.h"
#include "kernels.h"

#include "chacha.h"
#include "square_sum.h"
#include "one_bit.h"
#include "narrow_ladder.h"
#include "ladder.h"
#include "grid_noise.h"
#include "seeded_body.h"

const struct sv_sampling SV_NAMED(sv_sampling) = {
    .draws16 = draws16,
    .draws32 = draws32,
    .square_sum = square_sum,
    .add_squares = add_squares,
    .total_squares = total_squares,
    .one_bit = one_bit,
    .ladder = ladder,
    .grid_noise = grid_noise,
    .expand_signs = expand_signs,
    .score_signs = score_signs,
};
