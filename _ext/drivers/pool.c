/* Our own threads, on POSIX systems. A team of OpenMP ends when every one of its threads has arrived: on a busy machine a call waits for
 * threads that the system has not run yet, milliseconds for work of microseconds. Here the caller begins at once and takes all units
 * that no thread has taken; it waits only for units that another thread has begun. Threads that find nothing to do keep looking for a
 * short while, since the next call often follows soon, and then sleep. */
#if defined(__linux__)
#define _GNU_SOURCE /* affinity */
#endif
#include "drivers/parallel.h"

#if defined(_OPENMP) && (defined(__unix__) || defined(__APPLE__))
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

/* How often a thread looks before it sleeps: tens of microseconds. */
enum { LOOKS = 1 << 11 };

/* The work of one call, on the stack of its caller; the pool's lock guards what is not atomic. */
typedef struct job {
    void (*body)(void *context, size_t unit, int thread);
    void *context;
    size_t units, chunk;
    int team, joined;
    atomic_int inside;
    atomic_size_t next;
    struct job *after;
} job;

/* A thread of the pool, on its own stack; it never ends. */
typedef struct worker {
    pthread_t thread;
    pthread_cond_t woken;
    int asleep, away_from; /* away_from: the CPU that it was kept off last; -1 at first */
#if defined(__linux__)
    cpu_set_t allowed, given; /* CPUs that it may run on, and those of them that it was given last */
#endif
    struct worker *after;
} worker;

struct bs_pool {
    pthread_mutex_t lock;
    pthread_cond_t left;
    job *jobs;
    worker *workers;
    int threads;
    atomic_uint calls;
};

static struct bs_pool own = {.lock = PTHREAD_MUTEX_INITIALIZER, .left = PTHREAD_COND_INITIALIZER};
static struct bs_pool *pool = &own;

void *bs_own_pool(void) { return &own; }
void bs_use_pool(void *of_another) { pool = of_another; }

static void rest(void)
{
#ifdef BS_X86
    __builtin_ia32_pause();
#endif
}

static void take_units(job *mine, int thread)
{
    for (;;) {
        const size_t first = atomic_fetch_add_explicit(&mine->next, mine->chunk, memory_order_relaxed);
        if (first >= mine->units)
            return;
        const size_t end = bs_min(mine->units, first + mine->chunk);
        for (size_t unit = first; unit < end; unit++)
            mine->body(mine->context, unit, thread);
    }
}

/* A job that can use one more thread and has units that nobody has taken; NULL if there is none. */
static job *open_job(void)
{
    for (job *one = pool->jobs; one; one = one->after)
        if (one->joined + 1 < one->team && atomic_load_explicit(&one->next, memory_order_relaxed) < one->units)
            return one;
    return NULL;
}

/* Linux often wakes a thread on the CPU of its waker, which goes on computing: the two then take turns for milliseconds while other CPUs
 * have less to do, or nothing. So a thread is kept off its caller's CPU before it is woken. This takes system calls only if the caller's
 * CPU has changed since the last time. */
static void keep_away(worker *one)
{
#if defined(__linux__)
    const int cpu = sched_getcpu();
    cpu_set_t now;
    if (one->away_from == cpu || pthread_getaffinity_np(one->thread, sizeof now, &now))
        return;
    /* If the thread has other CPUs than we gave it, somebody else has chosen them. */
    if (!CPU_EQUAL(&now, &one->given))
        one->allowed = now;
    one->given = one->allowed;
    CPU_CLR((size_t)cpu, &one->given);
    if (!CPU_COUNT(&one->given))
        one->given = one->allowed;
    if (!pthread_setaffinity_np(one->thread, sizeof one->given, &one->given))
        one->away_from = cpu;
#else
    (void)one;
#endif
}

/* Wakes `threads` of the sleeping threads, or all if there are fewer. Under the lock. */
static void wake(int threads)
{
    for (worker *one = pool->workers; one && threads; one = one->after)
        if (one->asleep) {
            keep_away(one);
            one->asleep = 0;
            pthread_cond_signal(&one->woken);
            threads--;
        }
}

static void *work(void *unused)
{
    (void)unused;
    int looked = 1;
    worker me = {.thread = pthread_self(), .woken = PTHREAD_COND_INITIALIZER, .away_from = -1};
    pthread_mutex_lock(&pool->lock);
    me.after = pool->workers;
    pool->workers = &me;
    for (;;) {
        job *one = open_job();
        if (one) {
            const int thread = ++one->joined;
            atomic_fetch_add(&one->inside, 1);
            pthread_mutex_unlock(&pool->lock);
            take_units(one, thread);
            pthread_mutex_lock(&pool->lock);
            /* Under the lock: the caller checks again only with the lock, and may then leave and take the job with it. */
            if (atomic_fetch_sub(&one->inside, 1) == 1)
                pthread_cond_broadcast(&pool->left);
            looked = 0;
        } else if (!looked) {
            const unsigned seen = atomic_load(&pool->calls);
            pthread_mutex_unlock(&pool->lock);
            for (int i = 0; i < LOOKS && atomic_load_explicit(&pool->calls, memory_order_relaxed) == seen; i++)
                rest();
            pthread_mutex_lock(&pool->lock);
            looked = 1;
        } else {
            for (me.asleep = 1; me.asleep;)
                pthread_cond_wait(&me.woken, &pool->lock);
            looked = 0; /* even if this thread came too late, the next call may be near */
        }
    }
    return NULL;
}

/* Starts threads until there are as many as asked for, or as many as possible. Under the lock. */
static void grow(int threads)
{
    sigset_t all, before;
    if (pool->threads >= threads)
        return;
    /* Signals are left to the threads of the program. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool->threads < threads) {
        pthread_t one;
        if (pthread_create(&one, NULL, work, NULL) != 0)
            break;
        pthread_detach(one);
        pool->threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void bs_share_out(void (*body)(void *context, size_t unit, int thread), void *context, size_t units, size_t chunk, int team)
{
    job mine = {.body = body, .context = context, .units = units, .chunk = chunk, .team = team};
    pthread_mutex_lock(&pool->lock);
    grow(team - 1);
    mine.after = pool->jobs;
    pool->jobs = &mine;
    atomic_fetch_add(&pool->calls, 1);
    wake(team - 1);
    pthread_mutex_unlock(&pool->lock);
    take_units(&mine, 0);
    for (int i = 0; i < LOOKS && atomic_load_explicit(&mine.inside, memory_order_relaxed); i++)
        rest();
    pthread_mutex_lock(&pool->lock);
    job **at = &pool->jobs;
    while (*at != &mine)
        at = &(*at)->after;
    *at = mine.after;
    while (atomic_load(&mine.inside))
        pthread_cond_wait(&pool->left, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

#else

#ifdef _OPENMP
#include <omp.h>
#endif

void *bs_own_pool(void) { return NULL; }
void bs_use_pool(void *of_another) { (void)of_another; }

void bs_share_out(void (*body)(void *context, size_t unit, int thread), void *context, size_t units, size_t chunk, int team)
{
#ifdef _OPENMP
#pragma omp parallel for num_threads(team) schedule(dynamic, (long)chunk)
    for (ptrdiff_t unit = 0; unit < (ptrdiff_t)units; unit++)
        body(context, (size_t)unit, omp_get_thread_num());
#else
    (void)chunk;
    (void)team;
    for (size_t unit = 0; unit < units; unit++)
        body(context, unit, 0);
#endif
}

#endif
