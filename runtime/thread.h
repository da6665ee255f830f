/* SPDX-License-Identifier: Apache-2.0 */
/* The one place that knows the system's threads. On Windows they are those of MinGW-w64's winpthreads. */
#ifndef PCL_THREAD_H
#define PCL_THREAD_H

#include <pthread.h>
#include <stddef.h>

typedef pthread_mutex_t pcl_mutex;

/* False when the system refuses. */
static inline int pcl_mutex_init(pcl_mutex *mutex) {
    return pthread_mutex_init(mutex, NULL) == 0;
}
static inline void pcl_mutex_destroy(pcl_mutex *mutex) {
    pthread_mutex_destroy(mutex);
}
static inline void pcl_mutex_lock(pcl_mutex *mutex) {
    pthread_mutex_lock(mutex);
}
static inline void pcl_mutex_unlock(pcl_mutex *mutex) {
    pthread_mutex_unlock(mutex);
}

typedef pthread_once_t pcl_once;
#define PCL_ONCE_INIT PTHREAD_ONCE_INIT

/* Calls `call` if nobody did yet, and returns when it has returned. */
static inline void pcl_call_once(pcl_once *once, void (*call)(void)) {
    pthread_once(once, call);
}

/*
 * Calls work(arg, i) once for each i below count, on up to the machine's number of processors of threads, the
 * caller's among them, and returns when all are done. Where no thread can be made, the caller's does it all.
 */
void pcl_parallel(size_t count, void (*work)(void *arg, size_t i), void *arg);

/* Seconds of a clock that never goes back. */
double pcl_clock(void);

#endif
