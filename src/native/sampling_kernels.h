/* ChaCha20 keystreams and exact samplers. */
#ifndef SV_SAMPLING_KERNELS_H
#define SV_SAMPLING_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define SV_TILE_BLOCKS 32
#define SV_TILE_WORDS (16 * SV_TILE_BLOCKS)

struct sv_sampling {
    /* `count` tiles of the interleaved stream with nonce 0, from tile `first` on: draws of 16 bits,
       1024 a tile, or of 32 bits, 512 a tile. */
    void (*draws16)(const uint32_t key[8], uint32_t first, size_t count, uint16_t *out);
    void (*draws32)(const uint32_t key[8], uint32_t first, size_t count, uint32_t *out);
};

#endif
