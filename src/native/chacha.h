/* ChaCha20 (RFC 8439): LANES blocks at once, with one word of each in a register.

The layout of draws: a tile is 32 blocks of the stream with nonce 0. Coordinate r = 32 k + l of a
tile reads draw k of block l: little-endian, 16 bits (32 in a block) or 32 bits (16 in a block). So
a register with word w of adjacent blocks has the draws of adjacent coordinates, and no transpose is
needed; on a GPU 32 lanes have 32 blocks. */

INLINE vu rotated(vu x, int by) { return (x << by) | (x >> (32 - by)); }

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

/* Words 0 ... 15 of the blocks first, first + 1, ..., of the stream with nonce 0. */
INLINE void chacha_blocks(const uint32_t key[8], uint32_t first, vu x[16])
{
    static const uint32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vu counters;
    memcpy(&counters, lanes, sizeof counters);
    counters += first;
    for (int i = 0; i < 4; i++)
        x[i] = all(chacha_constants[i]);
    for (int i = 0; i < 8; i++)
        x[4 + i] = all(key[i]);
    x[12] = counters;
    x[13] = x[14] = x[15] = all(0);
    for (int round = 0; round < 10; round++) {
        mix_columns(x);
        mix_diagonals(x);
    }
    for (int i = 0; i < 4; i++)
        x[i] += chacha_constants[i];
    for (int i = 0; i < 8; i++)
        x[4 + i] += key[i];
    x[12] += counters;
}

static void draws32(const uint32_t key[8], uint32_t first, size_t count, uint32_t *out)
{
    vu x[16];
    for (size_t tile = 0; tile < count; tile++, out += SV_TILE_WORDS)
        for (int group = 0; group < SV_TILE_BLOCKS; group += LANES) {
            chacha_blocks(key, (first + (uint32_t)tile) * SV_TILE_BLOCKS + (uint32_t)group, x);
            for (int w = 0; w < 16; w++)
                memcpy(out + SV_TILE_BLOCKS * w + group, &x[w], sizeof x[w]);
        }
}

static void draws16(const uint32_t key[8], uint32_t first, size_t count, uint16_t *out)
{
    vu x[16];
    for (size_t tile = 0; tile < count; tile++, out += 2 * SV_TILE_WORDS)
        for (int group = 0; group < SV_TILE_BLOCKS; group += LANES) {
            chacha_blocks(key, (first + (uint32_t)tile) * SV_TILE_BLOCKS + (uint32_t)group, x);
            for (int w = 0; w < 16; w++) {
                uint16_t *low = out + 2 * SV_TILE_BLOCKS * w + group, *high = low + SV_TILE_BLOCKS;
                for (int l = 0; l < LANES; l++)
                    low[l] = (uint16_t)x[w][l], high[l] = (uint16_t)(x[w][l] >> 16);
            }
        }
}
