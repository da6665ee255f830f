/* SPDX-License-Identifier: Apache-2.0 */
/* What the block manager names, done on the device in the order in which it was named. */
#include <pagedcl/actions.h>

#include "host_pool.h"
#include "status.h"

#include <inttypes.h>

int64_t pagedcl_actions_of_copies(const pagedcl_block_copy *copies, int64_t num, pagedcl_action *actions) {
    for (int64_t i = 0; i < num; i++)
        actions[i] = (pagedcl_action){PAGEDCL_ACTION_COPY, copies[i].group, copies[i].src, copies[i].dst};
    return num;
}

int64_t pagedcl_actions_of_wipes(const int32_t *blocks, int64_t num, pagedcl_action *actions) {
    for (int64_t i = 0; i < num; i++)
        actions[i] = (pagedcl_action){PAGEDCL_ACTION_WIPE, -1, -1, blocks[i]};
    return num;
}

int64_t pagedcl_actions_of_swaps(pagedcl_action_type type, const pagedcl_block_swap *swaps, int64_t num,
                                 pagedcl_action *actions) {
    for (int64_t i = 0; i < num; i++) {
        const pagedcl_block_swap *swap = &swaps[i];
        bool out = type == PAGEDCL_ACTION_SWAP_OUT;
        actions[i] = (pagedcl_action){type, swap->group, out ? swap->block : swap->host_block,
                                      out ? swap->host_block : swap->block};
    }
    return num;
}

static bool concerns(const pagedcl_action *action, int32_t group) {
    return action->group == group || action->group == -1;
}

static pagedcl_status check_action(const pagedcl_cache *cache, const pagedcl_host_pool *host,
                                   const pagedcl_action *action, int64_t index) {
    if ((int)action->type < PAGEDCL_ACTION_COPY || action->type > PAGEDCL_ACTION_SWAP_IN)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "action %" PRId64 " has type %d, which is no pagedcl_action_type",
                        index, (int)action->type);
    if (action->type >= PAGEDCL_ACTION_SWAP_OUT && host == NULL)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "action %" PRId64 " is a swap, and host is NULL", index);
    if (action->type == PAGEDCL_ACTION_SWAP_IN)
        PCL_TRY(pcl_host_pool_check_block(host, "action", index, action->src));
    else if (action->type != PAGEDCL_ACTION_WIPE)
        PCL_TRY(pcl_cache_check_block(cache, "action", index, action->src));
    if (action->type == PAGEDCL_ACTION_SWAP_OUT)
        return pcl_host_pool_check_block(host, "action", index, action->dst);
    PCL_TRY(pcl_cache_check_block(cache, "action", index, action->dst));
    if (action->type == PAGEDCL_ACTION_COPY && action->src == action->dst)
        return pcl_fail(PAGEDCL_INVALID_BLOCK, "action %" PRId64 " copies block %d to itself", index, action->src);
    return PAGEDCL_SUCCESS;
}

/* Those of the group from actions[*at] on that have one type, up to the first that has another; *at is that one's. */
static int64_t take_run(const pagedcl_action *actions, int64_t num_actions, int32_t group, int64_t *at,
                        pagedcl_action_type *type) {
    int64_t count = 0;
    for (; *at < num_actions; ++*at) {
        if (!concerns(&actions[*at], group))
            continue;
        if (count > 0 && actions[*at].type != *type)
            break;
        *type = actions[*at].type;
        count++;
    }
    return count;
}

static void write_pairs(const pagedcl_action *actions, int64_t num_actions, int32_t group, int32_t *pairs) {
    for (int64_t i = 0; i < num_actions; i++) {
        if (!concerns(&actions[i], group))
            continue;
        *pairs++ = actions[i].type == PAGEDCL_ACTION_WIPE ? -1 : actions[i].src;
        *pairs++ = actions[i].dst;
    }
}

static pagedcl_status enqueue(pagedcl_cache *cache, pagedcl_host_pool *host, int32_t group, pcl_chain *chain,
                              const pagedcl_action *actions, int64_t num_actions, int64_t num_kept) {
    size_t size = (size_t)num_kept * 2 * sizeof(int32_t);
    void *staging = NULL;
    PCL_TRY(pcl_upload_begin(&cache->upload, size, &staging));
    const int32_t *pairs = staging;
    write_pairs(actions, num_actions, group, staging);
    PCL_TRY(pcl_upload_send(&cache->upload, chain, size));
    pagedcl_status status = PAGEDCL_SUCCESS;
    for (int64_t at = 0, done = 0, count = 0; done < num_kept && status == PAGEDCL_SUCCESS; done += count) {
        pagedcl_action_type type = PAGEDCL_ACTION_COPY;
        count = take_run(actions, num_actions, group, &at, &type);
        if (type == PAGEDCL_ACTION_COPY)
            status = pcl_cache_enqueue_copies(cache, chain, pairs + 2 * done, 2 * done, count);
        else if (type == PAGEDCL_ACTION_WIPE)
            status = pcl_cache_enqueue_wipes(cache, chain, 2 * done, count);
        else
            status = pcl_host_pool_enqueue(host, chain, pairs + 2 * done, pcl_upload_buffer(&cache->upload), 2 * done,
                                           count, type == PAGEDCL_ACTION_SWAP_OUT);
    }
    /* After a failure too: the commands before it still read the pairs. */
    pcl_upload_used(&cache->upload, chain);
    return status;
}

pagedcl_status pagedcl_actions_enqueue(pagedcl_cache *cache, pagedcl_host_pool *host, int32_t group,
                                       cl_command_queue queue, const pagedcl_action *actions, int64_t num_actions,
                                       cl_uint num_events, const cl_event *events, cl_event *event) {
    PCL_TRY(pcl_cache_check_layer(cache, 0));
    if (host != NULL && host->cache != cache)
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT, "host is of another cache");
    if (group < 0 || num_actions < 0 || (actions == NULL && num_actions > 0))
        return pcl_fail(PAGEDCL_INVALID_ARGUMENT,
                        "group %d and num_actions %" PRId64 " must not be below 0, actions not NULL", group,
                        num_actions);
    if (num_actions > INT32_MAX)
        return pcl_fail(PAGEDCL_SIZE_OVERFLOW, "%" PRId64 " actions", num_actions);
    int64_t num_kept = 0;
    for (int64_t i = 0; i < num_actions; i++) {
        if (!concerns(&actions[i], group))
            continue;
        PCL_TRY(check_action(cache, host, &actions[i], i));
        num_kept++;
    }
    pcl_chain chain;
    PCL_TRY(pcl_chain_begin(&chain, cache->device, queue, num_events, events));
    pagedcl_status status = PAGEDCL_SUCCESS;
    if (num_kept > 0)
        status = enqueue(cache, host, group, &chain, actions, num_actions, num_kept);
    return pcl_chain_end(&chain, status, event);
}
