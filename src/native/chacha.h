/* ChaCha20 (RFC 8439): LANES blocks at once, with one word of each in a register.

The layout of draws: a tile is 32 blocks of the stream with nonce 0. Coordinate r = 32 k + l of a
tile reads draw k of block l: little-endian, 16 bits (32 in a block) or 32 bits (16 in a block). So
a register with word w of adjacent blocks has the draws of adjacent coordinates, and no transpose is
needed; on a GPU 32 lanes have 32 blocks. */

INLINE vu rotated(vu x, int by)
{
#if defined(SV_NEON)
    const uint32x4_t high = vshlq_n_u32((uint32x4_t)x, 12), seven = vshlq_n_u32((uint32x4_t)x, 7);
    return by == 12 ? (vu)vsriq_n_u32(high, (uint32x4_t)x, 20)
                    : (vu)vsriq_n_u32(seven, (uint32x4_t)x, 25);
#else
    return (x << by) | (x >> (32 - by));
#endif
}

#if defined(SV_AVX2)
INLINE vu rotated16(vu x)
{
    const __m256i order = _mm256_set_epi8(13, 12, 15, 14, 9, 8, 11, 10, 5, 4, 7, 6, 1, 0, 3, 2, 13,
                                          12, 15, 14, 9, 8, 11, 10, 5, 4, 7, 6, 1, 0, 3, 2);
    return (vu)_mm256_shuffle_epi8((__m256i)x, order);
}
INLINE vu rotated8(vu x)
{
    const __m256i order = _mm256_set_epi8(14, 13, 12, 15, 10, 9, 8, 11, 6, 5, 4, 7, 2, 1, 0, 3, 14,
                                          13, 12, 15, 10, 9, 8, 11, 6, 5, 4, 7, 2, 1, 0, 3);
    return (vu)_mm256_shuffle_epi8((__m256i)x, order);
}
#elif defined(SV_NEON)
INLINE vu rotated16(vu x) { return (vu)vrev32q_u16((uint16x8_t)x); }
INLINE vu rotated8(vu x)
{
    static const uint8_t order[16] = {3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14};
    return (vu)vqtbl1q_u8((uint8x16_t)x, vld1q_u8(order));
}
#else
INLINE vu rotated16(vu x) { return rotated(x, 16); }
INLINE vu rotated8(vu x) { return rotated(x, 8); }
#endif

INLINE void quarter_round(vu *a, vu *b, vu *c, vu *d)
{
    *a += *b, *d = rotated16(*d ^ *a);
    *c += *d, *b = rotated(*b ^ *c, 12);
    *a += *b, *d = rotated8(*d ^ *a);
    *c += *d, *b = rotated(*b ^ *c, 7);
}

INLINE void mix_columns(vu x[16])
{
    for (int i = 0; i < 4; i++)
        quarter_round(&x[i], &x[4 + i], &x[8 + i], &x[12 + i]);
}

INLINE void mix_diagonals(vu x[16])
{
    for (int i = 0; i < 4; i++)
        quarter_round(&x[i], &x[4 + (i + 1) % 4], &x[8 + (i + 2) % 4], &x[12 + (i + 3) % 4]);
}

INLINE vu all(uint32_t word) { return (vu){0} + word; }

static const uint32_t chacha_constants[4] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};

/* Streams with nonce 0, one in each lane, before their counter: the first quarter rounds of columns 1
   to 3 are the same for all blocks. */
struct streams {
    vu key[8];
    vu columns[3][4];
};

INLINE void start_streams(struct streams *streams)
{
    for (int i = 1; i < 4; i++) {
        vu *column = streams->columns[i - 1];
        column[0] = all(chacha_constants[i]);
        column[1] = streams->key[i];
        column[2] = streams->key[4 + i];
        column[3] = all(0);
        quarter_round(&column[0], &column[1], &column[2], &column[3]);
    }
}

/* The stream of one key, in all lanes. */
INLINE void start_stream(struct streams *streams, const uint32_t key[8])
{
    for (int i = 0; i < 8; i++)
        streams->key[i] = all(key[i]);
    start_streams(streams);
}

/* Words 0 ... 15 of the blocks with these counters. */
INLINE void chacha_blocks(const struct streams *streams, vu counters, vu x[16])
{
    x[0] = all(chacha_constants[0]);
    x[4] = streams->key[0];
    x[8] = streams->key[4];
    x[12] = counters;
    quarter_round(&x[0], &x[4], &x[8], &x[12]);
    for (int i = 1; i < 4; i++)
        for (int row = 0; row < 4; row++)
            x[4 * row + i] = streams->columns[i - 1][row];
    mix_diagonals(x);
    for (int round = 1; round < 10; round++) {
        mix_columns(x);
        mix_diagonals(x);
    }
    for (int i = 0; i < 4; i++)
        x[i] += chacha_constants[i];
    for (int i = 0; i < 8; i++)
        x[4 + i] += streams->key[i];
    x[12] += counters;
}

/* Adjacent counters, one for each lane. */
INLINE vu counters_from(uint32_t first)
{
    static const uint32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vu counters;
    memcpy(&counters, lanes, sizeof counters);
    return counters + first;
}

/* Stores the words of a tile, as draws of 32 bits. */
static __attribute__((noinline)) void tile_words(const struct streams *streams, uint32_t tile,
                                                 uint32_t *out)
{
    vu x[16];
    for (uint32_t group = 0; group < SV_TILE_BLOCKS; group += LANES) {
        chacha_blocks(streams, counters_from(tile * SV_TILE_BLOCKS + group), x);
        for (int w = 0; w < 16; w++)
            memcpy(out + SV_TILE_BLOCKS * w + group, &x[w], sizeof x[w]);
    }
}

static void draws32(const uint32_t key[8], uint32_t first, size_t count, uint32_t *out)
{
    struct streams streams;
    start_stream(&streams, key);
    for (size_t tile = 0; tile < count; tile++, out += SV_TILE_WORDS)
        tile_words(&streams, first + (uint32_t)tile, out);
}

/* Stores the draws of 16 bits of a tile. */
static __attribute__((noinline)) void tile_draws(const struct streams *streams, uint32_t tile,
                                                 uint16_t *out)
{
    vu x[16];
    for (uint32_t group = 0; group < SV_TILE_BLOCKS; group += LANES) {
        chacha_blocks(streams, counters_from(tile * SV_TILE_BLOCKS + group), x);
        for (int w = 0; w < 16; w++) {
            uint16_t *low = out + 2 * SV_TILE_BLOCKS * w + group, *high = low + SV_TILE_BLOCKS;
            for (int l = 0; l < LANES; l++)
                low[l] = (uint16_t)x[w][l], high[l] = (uint16_t)(x[w][l] >> 16);
        }
    }
}

static void draws16(const uint32_t key[8], uint32_t first, size_t count, uint16_t *out)
{
    struct streams streams;
    start_stream(&streams, key);
    for (size_t tile = 0; tile < count; tile++, out += 2 * SV_TILE_WORDS)
        tile_draws(&streams, first + (uint32_t)tile, out);
}
