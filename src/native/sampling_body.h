/* ChaCha20 keystreams and exact samplers, for one level. */
#include "kernels.h"

#include "chacha.h"

const struct sv_sampling SV_NAMED(sv_sampling) = {
    .draws16 = draws16,
    .draws32 = draws32,
};
