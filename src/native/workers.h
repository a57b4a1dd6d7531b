/* Threads that share the work of one call; they never take the interpreter's lock. */
#ifndef SV_WORKERS_H
#define SV_WORKERS_H

#include <stddef.h>

#define SV_MAX_THREADS 256

/* Work on the numbers 0 ... size - 1: rows, or columns. It is the first member of a larger struct,
   which tells `work` what to do. */
struct sv_job {
    /* Takes ranges with `sv_take` until there are none; called once on each thread. A thread that
       lacks memory returns at once and leaves the ranges to the others. */
    void (*work)(struct sv_job *job);
    size_t size, share; /* A range has `share` numbers, or fewer at the end. */
    size_t taken;       /* The rest is the workers' own. */
    int seats, working;
    struct sv_job *other;
};

/* Takes a range that no thread has taken; returns 0 if there is none. */
int sv_take(struct sv_job *job, size_t *begin, size_t *end);

/* Does a job on up to `threads` threads, of which the caller's is one, without the interpreter's
   lock; returns whether all of it is done. */
int sv_run(struct sv_job *job, int threads);

#endif
