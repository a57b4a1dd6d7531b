/* The interface of packing and sums. */
#ifndef SV_SERVER_KERNELS_H
#define SV_SERVER_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define SV_BATCH 16      /* Payloads that are added at once. */
#define SV_BITS_BATCH 64 /* The same for codes of one bit. */

struct sv_server {
    /* Codes of 1 to 8, 9 to 16 and 17 to 32 bits, and their packed payload. Packing returns the OR
       of all codes. */
    void (*unpack8)(const uint8_t *payload, size_t count, int bits, uint8_t *out);
    void (*unpack16)(const uint8_t *payload, size_t count, int bits, uint16_t *out);
    void (*unpack32)(const uint8_t *payload, size_t count, int bits, uint32_t *out);
    uint32_t (*pack8)(const uint8_t *codes, size_t count, int bits, uint8_t *out);
    uint32_t (*pack16)(const uint16_t *codes, size_t count, int bits, uint8_t *out);
    uint32_t (*pack32)(const uint32_t *codes, size_t count, int bits, uint8_t *out);
    /* Packs the lowest bits of numbers, up to 32. */
    void (*pack_low)(const int32_t *numbers, size_t count, int bits, uint8_t *out);
    /* The largest of `count` packed codes of up to 8 bits. */
    uint32_t (*largest8)(const uint8_t *payload, size_t count, int bits);

    /* Adds the bits of `count` <= 64 payloads to a number in every position: its bit k is in
       planes[k], and there are `used` >= 5 planes. Bytes begin ... end - 1; the length of a plane
       is rounded up to a multiple of 64 bytes. */
    void (*count_bits)(uint8_t *const *planes, int used, const uint8_t *const *payloads, int count,
                       size_t begin, size_t end);
    /* Reads `count` of those numbers; `first` is a multiple of 64. */
    void (*read_counts)(const uint8_t *const *planes, int used, size_t first, size_t count,
                        uint32_t *out);
    /* Counts each code but 0, of 2 to 4 bits, in the bytes begin ... end - 1 of the payloads; a
       counter has one byte, and the caller ensures that none overflows. */
    void (*count_levels)(uint8_t *counters, size_t stride, int levels, int bits,
                         const uint8_t *const *payloads, int count, size_t begin, size_t end);
    /* out[per i + s] += counters[s * stride + i], for one code; `per` is 1, 2 or 4. */
    void (*widen)(const uint8_t *counters, size_t stride, int per, size_t count, uint32_t *out);
    /* out[i] = points[0] n_0 + points[1] n_1 + ...: n_j is counts[j - 1][i], and n_0 is `received`
       less all others. */
    void (*combine)(const uint32_t *counts, size_t count, int levels, uint32_t received,
                    const double *points, double *out);
    /* sum[i] += tables[k][code i of payload k], k = 0 ... count - 1, in this order. */
    void (*add_points)(double *sum, size_t begin, size_t end, const uint8_t *const *payloads,
                       const uint8_t *bits, const double *tables, int count, size_t dimension);
};

#endif
