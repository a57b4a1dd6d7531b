/* The interface of the keys of many inputs: keyed BLAKE2b with a digest of 32 bytes (RFC 7693). */
#ifndef SV_KEYS_KERNELS_H
#define SV_KEYS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define SV_HASH_BLOCK 128
#define SV_DIGEST 32

static const uint64_t SV_HASH_START[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

/* Messages that have the same beginning and the same end. */
struct sv_messages {
    uint64_t state[8];      /* After the whole blocks of the beginning, */
    uint64_t total;         /* which are so many bytes. */
    const uint8_t *begin;   /* The rest of the beginning: */
    size_t begin_size;      /* 1 to 128 bytes. */
    const uint8_t *middles; /* One after the other: */
    const int64_t *ends;    /* middle n goes up to byte ends[n]. */
    const int64_t *chosen;  /* The middle of each message. */
    const uint8_t *end;
    size_t end_size;
};

struct sv_keys {
    /* Adds a whole block that is not the last one, up to byte `total`. */
    void (*add_block)(uint64_t state[8], const uint8_t block[SV_HASH_BLOCK], uint64_t total);
    /* Writes the digests of the messages first ... last - 1. */
    void (*digests)(const struct sv_messages *messages, size_t first, size_t last, uint8_t *out);
};

#endif
