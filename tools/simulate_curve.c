/* SPDX-License-Identifier: Apache-2.0 */
#include "simulate_curve.h"

#include <string.h>

/* From the largest pool down, as long as they are good. */
static void judge(simulate_curve *curve) {
    curve->enough = curve->knee = -1;
    double best = -1;
    for (int32_t i = 0; i < curve->num_pools; i++) {
        const simulate_result *pool = &curve->pools[i];
        if (pool->status == PAGEDCL_SUCCESS && (best < 0 || pool->mean_first_token < best))
            best = pool->mean_first_token;
    }
    bool calm = true, quick = true;
    for (int32_t i = curve->num_pools; i-- > 0;) {
        const simulate_result *pool = &curve->pools[i];
        bool fits = pool->status == PAGEDCL_SUCCESS;
        calm = calm && fits && pool->preemptions == 0;
        quick = quick && fits && pool->mean_first_token <= best * (1 + CURVE_KNEE_SLACK);
        if (calm)
            curve->enough = i;
        if (quick)
            curve->knee = i;
    }
}

pagedcl_status curve_add(simulate_curve *curve, const trace *t, const simulate_options *options, int32_t num_blocks,
                         simulate_progress progress, void *user) {
    int32_t at = 0;
    while (at < curve->num_pools && curve->pools[at].num_blocks < num_blocks)
        at++;
    if (at < curve->num_pools && curve->pools[at].num_blocks == num_blocks)
        return PAGEDCL_SUCCESS;
    simulate_result result;
    pagedcl_status status = simulate_run(t, options, num_blocks, progress, user, &result);
    if (status != PAGEDCL_SUCCESS)
        return status;
    memmove(curve->pools + at + 1, curve->pools + at, (size_t)(curve->num_pools - at) * sizeof *curve->pools);
    curve->pools[at] = result;
    curve->num_pools++;
    judge(curve);
    return PAGEDCL_SUCCESS;
}

pagedcl_status curve_search(simulate_curve *curve, const trace *t, const simulate_options *options,
                            simulate_progress progress, void *user) {
    enum { CLOSE = 64, MAX_HALVINGS = 8 };   /* within 1/64 the end of preemption is known well enough */
    static const double shorter_wait = 0.98; /* of what half as many blocks more must bring to be worth a look */
    int64_t size = simulate_blocks_needed(simulate_largest(t), options->block_size) + options->watermark;
    double wait_before = 0;
    while (size <= INT32_MAX && curve->num_pools < CURVE_MAX_POOLS - MAX_HALVINGS) {
        pagedcl_status status = curve_add(curve, t, options, (int32_t)size, progress, user);
        if (status != PAGEDCL_SUCCESS)
            return status;
        const simulate_result *last = &curve->pools[curve->num_pools - 1];
        if (curve->num_pools > 1 && last->preemptions == 0 && last->mean_first_token >= shorter_wait * wait_before)
            break;
        wait_before = last->mean_first_token;
        size += size / 2 + 1;
    }
    for (int32_t i = 0; i < MAX_HALVINGS && curve->enough > 0; i++) {
        int32_t enough = curve->pools[curve->enough].num_blocks;
        int32_t too_few = curve->pools[curve->enough - 1].num_blocks;
        if (enough - too_few <= 1 + enough / CLOSE)
            break;
        pagedcl_status status = curve_add(curve, t, options, too_few + (enough - too_few) / 2, progress, user);
        if (status != PAGEDCL_SUCCESS)
            return status;
    }
    return PAGEDCL_SUCCESS;
}
