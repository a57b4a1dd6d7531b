/* BLAKE2b of several messages at once: every lane of a register has a word of another message. */
#include "kernels.h"

#if defined(SV_AVX512)
#define HASH_LANES 8
#elif defined(SV_AVX2)
#define HASH_LANES 4
#else
#define HASH_LANES 1 /* Narrower registers are no faster than one message after the other. */
#endif

#if HASH_LANES > 1
typedef uint64_t hash_words __attribute__((vector_size(8 * HASH_LANES)));
#else
typedef uint64_t hash_words;
#endif

static const uint8_t HASH_ORDER[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

INLINE hash_words hash_turned(hash_words x, int by)
{
#if defined(SV_AVX2)
    const __m256i by16 = _mm256_set_epi8(9, 8, 15, 14, 13, 12, 11, 10, 1, 0, 7, 6, 5, 4, 3, 2, 9,
                                         8, 15, 14, 13, 12, 11, 10, 1, 0, 7, 6, 5, 4, 3, 2);
    const __m256i by24 = _mm256_set_epi8(10, 9, 8, 15, 14, 13, 12, 11, 2, 1, 0, 7, 6, 5, 4, 3, 10,
                                         9, 8, 15, 14, 13, 12, 11, 2, 1, 0, 7, 6, 5, 4, 3);
    switch (by) {
    case 32:
        return (hash_words)_mm256_shuffle_epi32((__m256i)x, 0xb1);
    case 24:
        return (hash_words)_mm256_shuffle_epi8((__m256i)x, by24);
    case 16:
        return (hash_words)_mm256_shuffle_epi8((__m256i)x, by16);
    }
#endif
    return (x >> by) | (x << (64 - by));
}

INLINE void hash_mix(hash_words *v, int a, int b, int c, int d, hash_words x, hash_words y)
{
    v[a] += v[b] + x, v[d] = hash_turned(v[d] ^ v[a], 32);
    v[c] += v[d], v[b] = hash_turned(v[b] ^ v[c], 24);
    v[a] += v[b] + y, v[d] = hash_turned(v[d] ^ v[a], 16);
    v[c] += v[d], v[b] = hash_turned(v[b] ^ v[c], 63);
}

/* Adds a block of each message to its state. `total` is the number of bytes up to the block's end;
   `last` has all bits set for the last block of a message, else none. */
INLINE void hash_compress(hash_words state[8], const hash_words m[16], hash_words total,
                          hash_words last)
{
    hash_words v[16];
    for (int i = 0; i < 8; i++) {
        v[i] = state[i];
        v[i + 8] = (hash_words){0} + SV_HASH_START[i];
    }
    v[12] ^= total;
    v[14] ^= last;
    for (int round = 0; round < 12; round++) {
        const uint8_t *o = HASH_ORDER[round % 10];
        hash_mix(v, 0, 4, 8, 12, m[o[0]], m[o[1]]);
        hash_mix(v, 1, 5, 9, 13, m[o[2]], m[o[3]]);
        hash_mix(v, 2, 6, 10, 14, m[o[4]], m[o[5]]);
        hash_mix(v, 3, 7, 11, 15, m[o[6]], m[o[7]]);
        hash_mix(v, 0, 5, 10, 15, m[o[8]], m[o[9]]);
        hash_mix(v, 1, 6, 11, 12, m[o[10]], m[o[11]]);
        hash_mix(v, 2, 7, 8, 13, m[o[12]], m[o[13]]);
        hash_mix(v, 3, 4, 9, 14, m[o[14]], m[o[15]]);
    }
    for (int i = 0; i < 8; i++)
        state[i] ^= v[i] ^ v[i + 8];
}

static void hash_add_block(uint64_t state[8], const uint8_t block[SV_HASH_BLOCK], uint64_t total)
{
    hash_words wide[8], m[16];
    for (int i = 0; i < 16; i++) {
        uint64_t word;
        memcpy(&word, block + 8 * i, 8);
        m[i] = (hash_words){0} + word;
    }
    for (int i = 0; i < 8; i++)
        wide[i] = (hash_words){0} + state[i];
    hash_compress(wide, m, (hash_words){0} + total, (hash_words){0});
    for (int i = 0; i < 8; i++)
        memcpy(&state[i], &wide[i], 8); /* The first lane. */
}

/* Copies the part of a text of `size` bytes, from byte `at` of a message on, that lies in the block
   which begins at byte `from`. */
INLINE void hash_copy(uint8_t *block, size_t from, const uint8_t *text, size_t at, size_t size)
{
    const size_t begin = at > from ? at : from;
    const size_t end = at + size < from + SV_HASH_BLOCK ? at + size : from + SV_HASH_BLOCK;
    if (begin < end)
        memcpy(block + (begin - from), text + (begin - at), end - begin);
}

/* The digests of up to HASH_LANES messages; lanes beyond `count` repeat the last one. */
INLINE void hash_together(const struct sv_messages *s, size_t first, size_t count, uint8_t *out)
{
    uint64_t blocks[HASH_LANES][SV_HASH_BLOCK / 8], total[HASH_LANES], last[HASH_LANES];
    const uint8_t *middle[HASH_LANES];
    size_t size[HASH_LANES], whole[HASH_LANES], longest = 0;
    hash_words state[8], m[16], totals, lasts;
    for (int i = 0; i < 8; i++)
        state[i] = (hash_words){0} + s->state[i];
    for (size_t l = 0; l < HASH_LANES; l++) {
        const int64_t n = s->chosen[first + (l < count ? l : count - 1)];
        const int64_t begin = n ? s->ends[n - 1] : 0;
        middle[l] = s->middles + begin;
        size[l] = (size_t)(s->ends[n] - begin);
        whole[l] = s->begin_size + size[l] + s->end_size;
        longest = whole[l] > longest ? whole[l] : longest;
    }
    for (size_t from = 0; from < longest; from += SV_HASH_BLOCK) {
        memset(blocks, 0, sizeof blocks);
        for (size_t l = 0; l < HASH_LANES; l++) {
            uint8_t *block = (uint8_t *)blocks[l];
            hash_copy(block, from, s->begin, 0, s->begin_size);
            hash_copy(block, from, middle[l], s->begin_size, size[l]);
            hash_copy(block, from, s->end, s->begin_size + size[l], s->end_size);
            last[l] = from + SV_HASH_BLOCK >= whole[l] ? ~(uint64_t)0 : 0;
            total[l] = s->total + (last[l] ? whole[l] : from + SV_HASH_BLOCK);
        }
        for (int i = 0; i < 16; i++) {
            uint64_t words[HASH_LANES];
            for (size_t l = 0; l < HASH_LANES; l++)
                words[l] = blocks[l][i];
            memcpy(&m[i], words, sizeof words);
        }
        memcpy(&totals, total, sizeof total);
        memcpy(&lasts, last, sizeof last);
        hash_compress(state, m, totals, lasts);
        /* Shorter messages go on with blocks that are not read. */
        for (size_t l = 0; l < count; l++)
            if (last[l] && from < whole[l])
                for (size_t i = 0; i < SV_DIGEST / 8; i++)
                    memcpy(out + SV_DIGEST * l + 8 * i, (const uint8_t *)&state[i] + 8 * l, 8);
    }
}

static void hash_digests(const struct sv_messages *s, size_t first, size_t last, uint8_t *out)
{
    for (; first < last; first += HASH_LANES)
        hash_together(s, first, last - first < HASH_LANES ? last - first : HASH_LANES,
                      out + SV_DIGEST * first);
}

const struct sv_keys SV_NAMED(sv_keys) = {
    .add_block = hash_add_block,
    .digests = hash_digests,
};
