/* SPDX-License-Identifier: Apache-2.0 */
/* Events, Prometheus text, the dump, the map. */
#include "support/manager.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pagedcl_blocks *create(void) {
    return manager_create((pagedcl_blocks_desc){
        .num_blocks = 12, .block_size = 4, .prefix_cache = 1, .num_host_blocks = 4, .prefix_hash_seed = 1});
}

typedef struct event_log {
    pagedcl_block_event events[32];
    int32_t first_tokens[32];
    int count;
} event_log;

static void listen(void *user, const pagedcl_block_event *event) {
    event_log *log = user;
    log->first_tokens[log->count] = event->num_tokens > 0 ? event->tokens[0] : 0;
    log->events[log->count++] = *event;
}

Test(blocks_report, events) {
    pagedcl_blocks *blocks = create();
    event_log log = {0};
    OK(pagedcl_blocks_set_listener(blocks, listen, &log));
    const int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    pagedcl_prompt prompt = manager_prompt(tokens, 9);
    pagedcl_seq seq = manager_admit(blocks, &prompt, NULL);
    cr_assert_eq(log.count, 2);
    for (int i = 0; i < 2; i++) {
        const pagedcl_block_event *event = &log.events[i];
        cr_assert(event->type == PAGEDCL_BLOCK_STORED && event->seq == seq && event->num_tokens == 4 &&
                  event->block == manager_block(blocks, seq, 0, i) && log.first_tokens[i] == tokens[4 * i] &&
                  event->host_block == -1);
    }
    cr_assert_eq(log.events[1].parent_hash, log.events[0].hash);

    pagedcl_block_swap swaps[6];
    int64_t num_swaps;
    OK(pagedcl_blocks_swap_out(blocks, seq, 0, swaps, 3, &num_swaps));
    OK(pagedcl_blocks_swap_in(blocks, seq, 0, swaps + 3, 3, &num_swaps));
    cr_assert_eq(log.count, 8);
    for (int i = 0; i < 6; i++) {
        const pagedcl_block_event *event = &log.events[2 + i];
        cr_assert(event->type == (i < 3 ? PAGEDCL_BLOCK_SWAPPED_OUT : PAGEDCL_BLOCK_SWAPPED_IN) && event->seq == seq &&
                      event->group == swaps[i].group && event->block == swaps[i].block &&
                      event->host_block == swaps[i].host_block,
                  "swap %d", i);
    }
    OK(pagedcl_prefix_evict(blocks, 9, NULL));
    cr_assert_eq(log.count, 10);
    cr_assert(log.events[8].type == PAGEDCL_BLOCK_EVICTED && log.events[8].hash == log.events[1].hash);
    OK(pagedcl_blocks_set_listener(blocks, NULL, NULL));
    manager_serve(blocks, &prompt);
    cr_assert_eq(log.count, 10);
    manager_destroy(blocks);
}

/* Makes the text of `write`, after the lengths that are too small were refused. */
#define TEXT_OF(write, ...)                                                   \
    do {                                                                      \
        size_t length = 0, again = 0;                                         \
        FAILS(write(__VA_ARGS__, NULL, 0, &length), BUFFER_TOO_SMALL);        \
        cr_assert(length < sizeof text - 1);                                  \
        memset(text, '#', sizeof text);                                       \
        FAILS(write(__VA_ARGS__, text, length, &again), BUFFER_TOO_SMALL);    \
        cr_assert(again == length && text[0] == '#');                         \
        OK(write(__VA_ARGS__, text, length + 1, &again));                     \
        cr_assert(strlen(text) == length && text[length + 1] == '#');         \
        FAILS(write(__VA_ARGS__, NULL, 1, &length), INVALID_ARGUMENT);        \
        FAILS(write(__VA_ARGS__, text, sizeof text, NULL), INVALID_ARGUMENT); \
    } while (0)

static char text[16384];

Test(blocks_report, prometheus) {
    pagedcl_blocks *blocks = create();
    manager_sequence(blocks, 9);
    TEXT_OF(pagedcl_blocks_prometheus, blocks);
    cr_assert(strstr(text, "\npagedcl_blocks_used 3\n"), "%s", text);
    cr_assert(strstr(text, "\npagedcl_blocks_free 9\n"));
    cr_assert(strstr(text, "\n# TYPE pagedcl_blocks_evicted_total counter\npagedcl_blocks_evicted_total 0\n"));
    /* Every line is a comment, or a name, a space and a number. */
    int lines = 0;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"), lines++) {
        char name[64], end;
        long long value;
        if (line[0] == '#')
            continue;
        cr_assert_eq(sscanf(line, "pagedcl_blocks_%63[a-z_] %lld%c", name, &value, &end), 2, "%s", line);
    }
    cr_assert_eq(lines % 3, 0);
    manager_destroy(blocks);
}

Test(blocks_report, dump) {
    pagedcl_blocks *blocks = create();
    const int32_t tokens[5] = {1, 2, 3, 4, 5};
    pagedcl_prompt prompt = manager_prompt(tokens, 5);
    pagedcl_seq seq = manager_admit(blocks, &prompt, NULL);
    TEXT_OF(pagedcl_blocks_dump, blocks);
    char want[128];
    snprintf(want, sizeof want, "sequence 0x%llx: 5 tokens, 5 recorded, fence 0\n  group 0, blocks: 0 1\n",
             (unsigned long long)seq);
    cr_assert_eq(strncmp(text, want, strlen(want)), 0, "%s", text);
    cr_assert(strstr(text, "block 0: 1 references, known by hash "), "%s", text);
    manager_destroy(blocks);
}

Test(blocks_report, map) {
    pagedcl_blocks *blocks = create();
    const int32_t tokens[13] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};
    pagedcl_prompt prompt = manager_prompt(tokens, 13), pinned = manager_prompt(tokens, 4);
    manager_serve(blocks, &prompt);
    OK(pagedcl_prefix_set_priority(blocks, &pinned, PAGEDCL_PRIORITY_PINNED, NULL));
    pagedcl_seq seq = manager_sequence(blocks, 12), fork = 0, gone = manager_sequence(blocks, 4);
    for (int i = 0; i < 9; i++)
        OK(pagedcl_blocks_share(blocks, seq, i == 0 ? 8 : 4, &fork));
    OK(pagedcl_blocks_use(blocks, gone, 1));
    OK(pagedcl_blocks_seq_free(blocks, gone));
    TEXT_OF(pagedcl_blocks_map, blocks, 5);
    cr_assert_str_eq(text, "Ccc+2\n1~...\n..\n");
    TEXT_OF(pagedcl_blocks_map, blocks, 0);
    cr_assert_str_eq(text, "Ccc+21~.....\n");
    size_t length;
    FAILS(pagedcl_blocks_map(blocks, -1, text, sizeof text, &length), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_map(NULL, 1, text, sizeof text, &length), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_dump(NULL, text, sizeof text, &length), INVALID_ARGUMENT);
    FAILS(pagedcl_blocks_set_listener(NULL, listen, NULL), INVALID_ARGUMENT);
    manager_destroy(blocks);
}
