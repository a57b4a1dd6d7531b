/* The Python function that derives the keys of many inputs. */
#include <string.h>

#include "buffers.h"
#include "workers.h"

#define LEAST_KEYS 256 /* That a thread derives at once. */

struct deriving {
    struct sv_job job;
    const struct sv_keys *kernels;
    struct sv_messages messages;
    uint8_t *out;
};

static void derive_some(struct sv_job *job)
{
    const struct deriving *d = (const struct deriving *)job;
    for (size_t i, end; sv_take(job, &i, &end);)
        d->kernels->digests(&d->messages, i, end, d->out);
}

/* Adds the key, which fills a block, and whole blocks of the text with which all messages begin. The
   last block must wait, so a full one may be left over; `key_block` is that of the key. */
static void begin(struct deriving *d, const Py_buffer *key, const Py_buffer *text,
                  uint8_t key_block[SV_HASH_BLOCK])
{
    struct sv_messages *s = &d->messages;
    memcpy(s->state, SV_HASH_START, sizeof SV_HASH_START);
    s->state[0] ^= 0x01010000 ^ ((uint64_t)key->len << 8) ^ SV_DIGEST;
    memset(key_block, 0, SV_HASH_BLOCK);
    memcpy(key_block, key->buf, (size_t)key->len);
    s->begin = key_block, s->begin_size = SV_HASH_BLOCK, s->total = 0;
    for (size_t left = (size_t)text->len; left && s->begin_size == SV_HASH_BLOCK;) {
        s->total += SV_HASH_BLOCK;
        d->kernels->add_block(s->state, s->begin, s->total);
        s->begin = (const uint8_t *)text->buf + ((size_t)text->len - left);
        s->begin_size = left < SV_HASH_BLOCK ? left : SV_HASH_BLOCK;
        left -= s->begin_size;
    }
}

/* Checks that the chosen middles lie in `size` bytes. */
static int are_middles(const Py_buffer *chosen, const Py_buffer *ends, Py_ssize_t size)
{
    const int64_t *end = ends->buf, *number = chosen->buf;
    if (chosen->len % 8 || ends->len % 8 || (uintptr_t)end % 8 || (uintptr_t)number % 8)
        return 0;
    for (Py_ssize_t i = 0; i < chosen->len / 8; i++) {
        const int64_t n = number[i];
        if (n < 0 || n >= ends->len / 8)
            return 0;
        const int64_t from = n ? end[n - 1] : 0;
        if (from < 0 || end[n] < from || end[n] > size)
            return 0;
    }
    return 1;
}

static PyObject *derive_keys(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer v[7], *key = &v[0], *before = &v[1], *middles = &v[2], *ends = &v[3], *chosen = &v[4],
                    *after = &v[5], *out = &v[6];
    int level, threads, fine = 0;
    if (!PyArg_ParseTuple(args, "iy*y*y*y*y*y*w*i", &level, key, before, middles, ends, chosen,
                          after, out, &threads))
        return NULL;
    if (sv_checked_level(level) >= 0)
        fine = sv_require(key->len >= 1 && key->len <= 64 && threads >= 1 &&
                              threads <= SV_MAX_THREADS &&
                              are_middles(chosen, ends, middles->len) &&
                              out->len == SV_DIGEST * (chosen->len / 8),
                          "a key, middles that lie in their bytes, and 32 bytes for each choice");
    if (fine) {
        uint8_t key_block[SV_HASH_BLOCK];
        struct deriving d = {
            .job = {.work = derive_some, .size = (size_t)chosen->len / 8, .share = LEAST_KEYS},
            .kernels = SV_PICK(sv_keys, level),
            .messages = {.middles = middles->buf, .ends = ends->buf, .chosen = chosen->buf,
                         .end = after->buf, .end_size = (size_t)after->len},
            .out = out->buf,
        };
        Py_BEGIN_ALLOW_THREADS
        begin(&d, key, before, key_block);
        sv_run(&d.job, threads);
        Py_END_ALLOW_THREADS
    }
    for (int i = 0; i < 7; i++)
        PyBuffer_Release(&v[i]);
    if (!fine)
        return NULL;
    Py_RETURN_NONE;
}

PyMethodDef sv_keys_methods[] = {
    {"derive_keys", derive_keys, METH_VARARGS,
     "derive_keys(level, key, before, middles, ends, chosen, after, out, threads): keyed\n"
     "BLAKE2b-256 of before + middle + after, for the chosen ones of the middles that end at the\n"
     "given places"},
    {NULL, NULL, 0, NULL},
};
