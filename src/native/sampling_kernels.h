/* The interface of the ChaCha20 keystreams and exact samplers. */
#ifndef SV_SAMPLING_KERNELS_H
#define SV_SAMPLING_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define SV_TILE_BLOCKS 32
#define SV_TILE_WORDS (16 * SV_TILE_BLOCKS)
#define SV_TILE_DRAWS (2 * SV_TILE_WORDS) /* Draws of 16 bits. */

/* Noise tables have cells in each octave of a tail of 31 bits, except below 2^12. */
#define SV_NOISE_CELL_BITS 10
#define SV_NOISE_LEAST_BITS 12
#define SV_NOISE_CELLS ((31 - SV_NOISE_LEAST_BITS) << SV_NOISE_CELL_BITS)

/* Values in single or double precision. */
struct sv_values {
    const void *start;
    size_t count;
    int is_double;
};

/* A sum of squares of tiles, of which the finished parts of the tree are kept by height. */
struct sv_squares {
    double partial[64];
    size_t tiles;
};

/* The coordinates that a kernel could not decide; `count` includes those beyond the capacity. */
struct sv_open {
    int64_t *coordinates;
    size_t capacity, count;
};

/* One bit for each coordinate: 1 with probability 1/(1 + e^(-2z)), z = (x scale)/stddev. */
struct sv_one_bit {
    uint32_t key[8];
    size_t first; /* The number of the first coordinate, at a tile's start. */
    double scale, stddev;
    float slope; /* 2 scale/(stddev ln 2), rounded */
};

/* Thresholds that are linear over cells of x, a filter, and the distribution that decides the rest.
   Tables are for u between the first knot and the last; a u beyond them counts as the nearer end.
   */
struct sv_ladder {
    uint32_t key[8];
    size_t first;
    double shift, scale, divisor; /* Codes are drawn at u = (x - shift) scale/divisor. */
    float cells_per_unit, origin; /* These convert x - shift to cells from the first edge. */
    size_t cells, levels, width;  /* The width is that of a row. */
    const float *rows;            /* [cells + 1][2][width]: value at the edge, rise over the cell.
                                     Thresholds are padded to multiples of 16; if there are more
                                     than 16, every 16th is repeated at the end. */
    const float *gaps;            /* [cells + 1]; the last cell is for u outside. */
    /* The same in 16 bits, if there are few levels: [levels - 1][2][32]; see narrow_ladder.h. */
    const int16_t *narrow;
    size_t narrow_cells; /* 0 if there is no narrow ladder. */
    float narrow_per_unit, narrow_origin;
    int16_t narrow_gap;
    /* A family has points, weights and 0 knots; a table has knots and thresholds [knots][levels].
       */
    const double *points, *weights, *knots, *thresholds;
    size_t num_knots;
};

/* round((x + noise)/step); the noise of a tail h 2^-32 lies between chords over cells of h. */
struct sv_grid_noise {
    uint32_t key[8];
    size_t first;
    /* Nothing is decided within the slack of the middle of two grid points. */
    double steps_per_unit, slack;
    /* [SV_NOISE_CELLS][4], in steps: value at the cell's first h, slope, error, unused. */
    const double *chords;
};

#define SV_SEED_BYTES 16
#define SV_BLOCK_BITS 512

/* Signs of seeds: the keystream, not interleaved, of the key that is a seed followed by `tag`, with
   nonce 0; bit i is the sign of coordinate i, and 1 is +. */
struct sv_seeds {
    const uint8_t *start; /* SV_SEED_BYTES for each seed. */
    size_t count;
    uint8_t tag[32 - SV_SEED_BYTES];
};

struct sv_sampling {
    /* `count` tiles of the interleaved stream with nonce 0, from tile `first` on: draws of 16 bits,
       1024 in a tile, or of 32 bits, 512 in a tile. */
    void (*draws16)(const uint32_t key[8], uint32_t first, size_t count, uint16_t *out);
    void (*draws32)(const uint32_t key[8], uint32_t first, size_t count, uint32_t *out);
    double (*square_sum)(struct sv_values values);
    /* The same for values that come in several parts, of whole tiles but for the last one. */
    void (*add_squares)(struct sv_squares *sum, struct sv_values values);
    double (*total_squares)(const struct sv_squares *sum);
    /* Packed bits, the lowest bit of a byte first. */
    void (*one_bit)(const struct sv_one_bit *job, struct sv_values values, uint8_t *out,
                    struct sv_open *open);
    void (*ladder)(const struct sv_ladder *job, struct sv_values values, uint8_t *codes,
                   struct sv_open *open);
    void (*grid_noise)(const struct sv_grid_noise *job, struct sv_values values, int32_t *codes,
                       struct sv_open *open);
    /* `count` packed signs of each seed, one row after the other; unused bits are 0. */
    void (*expand_signs)(const struct sv_seeds *seeds, size_t count, uint8_t *out);
    /* out[k] = the sum of sign i of seed k times weights[i], i = 0 ... count - 1. */
    void (*score_signs)(const struct sv_seeds *seeds, const int16_t *weights, size_t count,
                        int64_t *out);
};

/* The first 64 bits of the extension of coordinate i: those of the stream with nonce i + 1. */
uint64_t sv_extension(const uint32_t key[8], uint64_t coordinate);
/* The draw of one coordinate, of 16 or 32 bits. */
uint32_t sv_draw(const uint32_t key[8], int bits, uint64_t coordinate);

#endif
