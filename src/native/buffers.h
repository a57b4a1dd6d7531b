/* Lists of buffers, and numbers that Python gave. */
#ifndef SV_BUFFERS_H
#define SV_BUFFERS_H

#include "native.h"

struct sv_buffers {
    Py_buffer held[SV_BITS_BATCH];
    uint8_t *start[SV_BITS_BATCH];
    int count;
};

/* Holds 1 to `most` contiguous buffers of a list; -1 and an exception if it cannot. */
int sv_hold(struct sv_buffers *buffers, PyObject *list, int most, int flags);
void sv_let_go(struct sv_buffers *buffers);

/* 0 and ValueError(text), unless `fine`. */
int sv_require(int fine, const char *text);

#endif
