/* SPDX-License-Identifier: Apache-2.0 */
/* Managers in threads of their own, to be built with the thread sanitizer: different managers are independent. */
#include "support/blocks_model.h"
#include "support/random.h"

#include <pthread.h>
#include <stdio.h>

enum { THREADS = 4, RUNS = 40, BYTES = 2000 };

static void *run(void *argument) {
    blocks_model_counts *counts = argument;
    random_state random = {(uint64_t)counts->operations};
    for (int i = 0; i < RUNS; i++) {
        uint8_t data[BYTES];
        for (int b = 0; b < BYTES; b++)
            data[b] = (uint8_t)random_bits(&random);
        blocks_model_run(data, sizeof data, NULL, counts);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    blocks_model_counts counts[THREADS] = {{0}};
    int64_t operations = 0;
    for (int i = 0; i < THREADS; i++) {
        counts[i].operations = i; /* the seed */
        if (pthread_create(&threads[i], NULL, run, &counts[i]) != 0)
            return 2;
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        operations += counts[i].operations;
    }
    printf("%d threads, %lld operations\n", THREADS, (long long)operations);
    return operations > THREADS * RUNS ? 0 : 1;
}
