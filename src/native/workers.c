/* Threads that share the work of one call.

A thread that begins a job takes ranges of it like every other, so a job ends even if all workers are
busy with other jobs. Workers are started when they are first needed, and then wait. */
#define _POSIX_C_SOURCE 200809L /* For signals. */
#include "workers.h"

#include <pthread.h>
#include <signal.h>

struct pool {
    pthread_mutex_t guard;
    pthread_cond_t wanted, left;
    struct sv_job *jobs;
    int started;
};

static const struct pool empty = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER,
                                  PTHREAD_COND_INITIALIZER, NULL, 0};
static struct pool pool = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER,
                           PTHREAD_COND_INITIALIZER, NULL, 0};

int sv_take(struct sv_job *job, size_t *begin, size_t *end)
{
    *begin = __atomic_fetch_add(&job->taken, job->share, __ATOMIC_RELAXED);
    if (*begin >= job->size)
        return 0;
    *end = job->size - *begin < job->share ? job->size : *begin + job->share;
    return 1;
}

/* Works on a job while the guard is held before and after. */
static void join(struct sv_job *job)
{
    job->seats--, job->working++;
    pthread_mutex_unlock(&pool.guard);
    job->work(job);
    pthread_mutex_lock(&pool.guard);
    job->seats = 0; /* Nothing is left that another thread could take. */
    if (--job->working == 0)
        pthread_cond_broadcast(&pool.left);
}

static void *help(void *none)
{
    (void)none;
    pthread_mutex_lock(&pool.guard);
    for (;;) {
        struct sv_job *job = pool.jobs;
        while (job && job->seats == 0)
            job = job->other;
        if (job)
            join(job);
        else
            pthread_cond_wait(&pool.wanted, &pool.guard);
    }
    return NULL;
}

/* A forked child has no workers, and what the parent's threads were doing does not concern it. */
static void forget(void)
{
    pool = empty;
}

/* Starts workers until there are as many, or the system refuses. Signals are for other threads. */
static void start(int workers)
{
    sigset_t all, before;
    static int forgets = 0;
    if (pool.started >= workers)
        return;
    if (!forgets)
        forgets = pthread_atfork(NULL, NULL, forget) == 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (pthread_t thread; forgets && pool.started < workers; pool.started++) {
        if (pthread_create(&thread, NULL, help, NULL))
            break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void remove_job(const struct sv_job *job)
{
    struct sv_job **place = &pool.jobs;
    while (*place != job)
        place = &(*place)->other;
    *place = job->other;
}

int sv_run(struct sv_job *job, int threads)
{
    const size_t ranges = job->size / job->share + 1;
    threads = ranges < (size_t)threads ? (int)ranges : threads;
    job->taken = 0, job->working = 0;
    if (threads < 2 || job->size <= job->share) {
        job->work(job);
        return job->taken >= job->size;
    }
    pthread_mutex_lock(&pool.guard);
    start(threads - 1);
    job->seats = threads - 1, job->other = pool.jobs, pool.jobs = job;
    pthread_mutex_unlock(&pool.guard);
    for (int k = 1; k < threads; k++)
        pthread_cond_signal(&pool.wanted);
    job->work(job);
    pthread_mutex_lock(&pool.guard);
    remove_job(job);
    while (job->working)
        pthread_cond_wait(&pool.left, &pool.guard);
    pthread_mutex_unlock(&pool.guard);
    return job->taken >= job->size;
}
