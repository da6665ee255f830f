/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opencl_missing WORDS: a program of a library that loads OpenCL at run time starts without it, is told so in words that
 * hold WORDS, by every thread, and uses what needs no device. Exit status 0 unless that is what fails.
 */
#include <pagedcl/blocks.h>
#include <pagedcl/device.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 8 };

static const char *words;

/* NULL: as it should be. */
static const char *told(pagedcl_status status) {
    if (status != PAGEDCL_NO_PLATFORM)
        return pagedcl_status_name(status);
    if (strstr(pagedcl_last_error(), words) == NULL || strstr(pagedcl_last_error(), "install") == NULL)
        return pagedcl_last_error();
    return NULL;
}

static void *ask(void *result) {
    pagedcl_device *device = NULL;
    size_t count = 0;
    const char **wrong = result;
    *wrong = told(pagedcl_device_open(NULL, NULL, &device));
    if (*wrong == NULL)
        *wrong = told(pagedcl_device_list(NULL, 0, &count));
    if (*wrong != NULL)
        printf("%s\n", *wrong);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    words = argv[1];
    pthread_t threads[THREADS];
    const char *wrong[THREADS];
    int failed = 0;
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, ask, &wrong[i]) != 0)
            return 2;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        failed |= wrong[i] != NULL;
    }

    pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
    pagedcl_blocks *blocks = NULL;
    pagedcl_seq seq;
    desc.num_blocks = desc.block_size = 4;
    failed |= pagedcl_blocks_create(&desc, &blocks) != PAGEDCL_SUCCESS ||
              pagedcl_blocks_seq_create(blocks, &seq) != PAGEDCL_SUCCESS ||
              pagedcl_blocks_append(blocks, seq, 16, NULL, NULL) != PAGEDCL_SUCCESS;
    pagedcl_blocks_destroy(blocks);
    return failed;
}
