/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#define _DARWIN_C_SOURCE /* macOS: the number of processors is not POSIX's */

#include "thread.h"

#include <stdatomic.h>
#include <time.h>
#ifdef _WIN32
#include <windows.h>
#else
#include <unistd.h>
#endif

enum { MAX_THREADS = 16 };

typedef struct parallel {
    atomic_size_t next;
    size_t count;
    void (*work)(void *arg, size_t i);
    void *arg;
} parallel;

static long count_processors(void) {
#ifdef _WIN32
    return (long)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
#else
    return sysconf(_SC_NPROCESSORS_ONLN);
#endif
}

static void *worker(void *arg) {
    parallel *p = arg;
    for (size_t i = atomic_fetch_add(&p->next, 1); i < p->count; i = atomic_fetch_add(&p->next, 1))
        p->work(p->arg, i);
    return NULL;
}

void pcl_parallel(size_t count, void (*work)(void *arg, size_t i), void *arg) {
    parallel p = {.count = count, .work = work, .arg = arg};
    pthread_t threads[MAX_THREADS];
    long processors = count_processors();
    size_t wanted = processors < 1 ? 1 : processors > MAX_THREADS ? MAX_THREADS : (size_t)processors;
    if (wanted > count)
        wanted = count;
    size_t made = 0;
    while (made + 1 < wanted && pthread_create(&threads[made], NULL, worker, &p) == 0)
        made++;
    worker(&p);
    for (size_t i = 0; i < made; i++)
        pthread_join(threads[i], NULL);
}

double pcl_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
