/* Checks of lists of buffers and of numbers that Python passes. */
#ifndef SV_BUFFERS_H
#define SV_BUFFERS_H

#include "native.h"

struct sv_buffers {
    Py_buffer held[SV_BITS_BATCH];
    uint8_t *start[SV_BITS_BATCH];
    int count;
};

/* Acquires the 1 to `most` contiguous buffers of a list; returns -1 with an exception set if it
   cannot. */
int sv_hold(struct sv_buffers *buffers, PyObject *list, int most, int flags);
void sv_let_go(struct sv_buffers *buffers);

/* Returns `fine`; if it is 0, sets ValueError(text). */
int sv_require(int fine, const char *text);

#endif
