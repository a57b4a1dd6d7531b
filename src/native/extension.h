#ifndef SV_EXTENSION_H
#define SV_EXTENSION_H

#include "sampling_kernels.h"

void sv_leave_open(struct sv_open *open, size_t i);
int sv_decided_bit(const struct sv_one_bit *job, double x, uint32_t word, size_t i,
                   struct sv_open *open);
uint8_t sv_decided_code(const struct sv_ladder *job, double x, uint32_t word, size_t i,
                        struct sv_open *open);

#endif
