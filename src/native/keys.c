/* The keys of many inputs: BLAKE2b with a key and a digest of 32 bytes (RFC 7693). */
#include "native.h"

#include <string.h>

#define BLOCK 128
#define DIGEST 32

static const uint64_t START[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

static const uint8_t ORDER[10][16] = {
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

static uint64_t turned(uint64_t x, int by) { return (x >> by) | (x << (64 - by)); }

static void mix(uint64_t *v, int a, int b, int c, int d, uint64_t x, uint64_t y)
{
    v[a] += v[b] + x, v[d] = turned(v[d] ^ v[a], 32);
    v[c] += v[d], v[b] = turned(v[b] ^ v[c], 24);
    v[a] += v[b] + y, v[d] = turned(v[d] ^ v[a], 16);
    v[c] += v[d], v[b] = turned(v[b] ^ v[c], 63);
}

/* Adds a block to the state; `total` is the number of bytes up to its end. */
static void compress(uint64_t state[8], const uint8_t block[BLOCK], uint64_t total, int is_last)
{
    uint64_t v[16], m[16];
    memcpy(m, block, sizeof m);
    memcpy(v, state, 64);
    memcpy(v + 8, START, 64);
    v[12] ^= total;
    if (is_last)
        v[14] = ~v[14];
    for (int round = 0; round < 12; round++) {
        const uint8_t *o = ORDER[round % 10];
        mix(v, 0, 4, 8, 12, m[o[0]], m[o[1]]);
        mix(v, 1, 5, 9, 13, m[o[2]], m[o[3]]);
        mix(v, 2, 6, 10, 14, m[o[4]], m[o[5]]);
        mix(v, 3, 7, 11, 15, m[o[6]], m[o[7]]);
        mix(v, 0, 5, 10, 15, m[o[8]], m[o[9]]);
        mix(v, 1, 6, 11, 12, m[o[10]], m[o[11]]);
        mix(v, 2, 7, 8, 13, m[o[12]], m[o[13]]);
        mix(v, 3, 4, 9, 14, m[o[14]], m[o[15]]);
    }
    for (int i = 0; i < 8; i++)
        state[i] ^= v[i] ^ v[i + 8];
}

struct digest {
    uint64_t state[8], total;
    uint8_t waiting[BLOCK];
    size_t count;
};

static void append(struct digest *d, const uint8_t *data, size_t size)
{
    while (size) {
        if (d->count == BLOCK) { /* The last block must wait, so a full one is not added earlier. */
            d->total += BLOCK;
            compress(d->state, d->waiting, d->total, 0);
            d->count = 0;
        }
        const size_t some = size < BLOCK - d->count ? size : BLOCK - d->count;
        memcpy(d->waiting + d->count, data, some);
        d->count += some, data += some, size -= some;
    }
}

static void finish(struct digest *d, uint8_t out[DIGEST])
{
    memset(d->waiting + d->count, 0, BLOCK - d->count);
    compress(d->state, d->waiting, d->total + d->count, 1);
    memcpy(out, d->state, DIGEST);
}

/* Starts a digest with a key, which fills the first block. */
static void start(struct digest *d, const Py_buffer *key)
{
    memcpy(d->state, START, sizeof START);
    d->state[0] ^= 0x01010000 ^ ((uint64_t)key->len << 8) ^ DIGEST;
    memset(d->waiting, 0, BLOCK);
    memcpy(d->waiting, key->buf, (size_t)key->len);
    d->count = BLOCK, d->total = 0;
}

/* Checks that the ends ascend from 0 to `size`. */
static int are_ends(const Py_buffer *ends, Py_ssize_t size)
{
    const int64_t *end = ends->buf;
    int64_t before = 0;
    for (Py_ssize_t i = 0; i < ends->len / 8; i++) {
        if (end[i] < before)
            return 0;
        before = end[i];
    }
    return before == size;
}

static PyObject *derive_keys(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer v[6], *key = &v[0], *before = &v[1], *middles = &v[2], *ends = &v[3], *after = &v[4],
                    *out = &v[5];
    Py_ssize_t begin, end;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*w*nn", key, before, middles, ends, after, out, &begin,
                          &end))
        return NULL;
    const Py_ssize_t count = ends->len / 8;
    const int fine = key->len >= 1 && key->len <= 64 && ends->len % 8 == 0 &&
                     (uintptr_t)ends->buf % 8 == 0 && out->len == DIGEST * count && 0 <= begin &&
                     begin <= end && end <= count && are_ends(ends, middles->len);
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        const int64_t *to = ends->buf;
        struct digest common, one;
        start(&common, key);
        append(&common, before->buf, (size_t)before->len);
        for (Py_ssize_t i = begin; i < end; i++) {
            const int64_t from = i ? to[i - 1] : 0;
            one = common;
            append(&one, (const uint8_t *)middles->buf + from, (size_t)(to[i] - from));
            append(&one, after->buf, (size_t)after->len);
            finish(&one, (uint8_t *)out->buf + DIGEST * i);
        }
        Py_END_ALLOW_THREADS
    } else {
        PyErr_SetString(PyExc_ValueError, "a key, ascending ends, and 32 bytes for each of them");
    }
    for (int i = 0; i < 6; i++)
        PyBuffer_Release(&v[i]);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

PyMethodDef sv_keys_methods[] = {
    {"derive_keys", derive_keys, METH_VARARGS,
     "derive_keys(key, before, middles, ends, after, out, first, last): keyed BLAKE2b-256 of\n"
     "before + middle + after, for the middles that end at the given places"},
    {NULL, NULL, 0, NULL},
};
