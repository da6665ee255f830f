/* SPDX-License-Identifier: Apache-2.0 */
/* Copies, wipes and swaps on the device against plain copies of bytes, and the manager that names them. */
#include "support/adopted_pool.h"
#include "support/block_image.h"
#include "support/expect.h"
#include "support/fixture.h"
#include "support/pool_shape.h"
#include "support/random.h"

#include <pagedcl/actions.h>
#include <pagedcl/prefix.h>

#include <stdio.h>
#include <stdlib.h>

enum { MAX_ACTIONS = 64 };

/* A pool, with a host pool of some blocks, of which so many go through the staging buffer at once; 0: all. */
typedef struct host_shape {
    pool_shape pool;
    int32_t host_blocks, staged_blocks;
} host_shape;

static const host_shape shapes[] = {
    {{"float32, all staged at once", 3, 9, 16, 2, 80, PAGEDCL_FLOAT32, .segment_blocks = 0}, 7, 0},
    {{"float16, units of 2 bytes", 2, 11, 1, 1, 7, PAGEDCL_FLOAT16, .segment_blocks = 0}, 12, 1},
    {{"int8, units of a byte", 1, 8, 3, 1, 5, PAGEDCL_INT8, .layout = PAGEDCL_LAYOUT_HND}, 5, 2},
    {{"int8, a scale per row", 2, 9, 3, 1, 5, PAGEDCL_INT8, .scale_per_row = 1}, 5, 2},
    {{"float8, heads first, scales", 2, 8, 16, 3, 24, PAGEDCL_FLOAT8_E4M3, 0, PAGEDCL_LAYOUT_HND, .scale_per_row = 1},
     9,
     3},
    {{"float8, V in K, scales", 2, 8, 5, 1, 40, PAGEDCL_FLOAT8_E5M2, .scale_per_row = 1, .head_dim_v = 24, .v_in_k = 1},
     6,
     2},
    {{"bfloat16, segments of two blocks", 2, 11, 7, 2, 40, PAGEDCL_BFLOAT16, .segment_blocks = 2}, 11, 4},
    {{"float16, K wider than V", 2, 8, 4, 2, 48, PAGEDCL_FLOAT16, .head_dim_v = 16}, 6, 5},
    {{"int4, odd rows", 2, 9, 3, 1, 33, PAGEDCL_INT4, .head_dim_v = 7}, 5, 2},
    {{"int4, heads first, segments", 2, 8, 16, 3, 80, PAGEDCL_INT4, .segment_blocks = 3, .layout = PAGEDCL_LAYOUT_HND},
     9,
     3},
    {{"float16, V in K", 2, 8, 4, 1, 72, PAGEDCL_FLOAT16, .head_dim_v = 64, .v_in_k = 1}, 6, 2},
};
enum { NUM_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

/* A pool and a host pool with random content, and what they should hold. */
typedef struct rig {
    const char *name;
    pagedcl_device *device;
    pagedcl_cache *cache;
    pagedcl_host_pool *host;
    block_image pool, host_image;
} rig;

static void make_host(rig *r, int32_t num_blocks, int32_t staged_blocks) {
    pagedcl_host_pool_desc desc = PAGEDCL_HOST_POOL_DESC_INIT;
    uint64_t bytes = 0;
    expect_ok(pagedcl_host_pool_block_bytes(r->cache, &bytes));
    cr_assert_eq(bytes, r->pool.block_bytes, "%s", r->name);
    desc.num_blocks = num_blocks;
    /* Rounded down to whole blocks. */
    desc.staging_bytes = staged_blocks == 0 ? 0 : (uint64_t)staged_blocks * bytes + bytes / 2;
    expect_ok(pagedcl_host_pool_create(r->cache, &desc, &r->host));
    r->host_image = block_image_create(r->cache, num_blocks);
    block_image_randomize(&r->host_image, r->cache, 2);
    for (int32_t block = 0; block < num_blocks; block++) {
        void *memory = NULL;
        expect_ok(pagedcl_host_pool_block(r->host, block, &memory));
        memcpy(memory, block_image_at(&r->host_image, block), bytes);
    }
}

static rig rig_open_with(const pagedcl_cache_desc *desc, const char *name, int32_t host_blocks, int32_t staged_blocks) {
    rig r = {.name = name, .device = fixture_open()};
    expect_ok(pagedcl_cache_create(r.device, desc, &r.cache));
    r.pool = block_image_create(r.cache, desc->num_blocks);
    block_image_randomize(&r.pool, r.cache, 1);
    block_image_upload(&r.pool, r.cache);
    make_host(&r, host_blocks, staged_blocks);
    return r;
}

static rig rig_open(const host_shape *shape) {
    pagedcl_cache_desc desc = pool_shape_desc(&shape->pool);
    return rig_open_with(&desc, shape->pool.name, shape->host_blocks, shape->staged_blocks);
}

static void rig_close(rig *r) {
    block_image_destroy(&r->pool);
    block_image_destroy(&r->host_image);
    pagedcl_cache_destroy(r->cache); /* the host pool keeps it */
    pagedcl_host_pool_destroy(r->host);
    pagedcl_device_destroy(r->device);
}

static void rig_expect(const rig *r, const char *name) {
    block_image_expect(&r->pool, r->cache, name);
    for (int32_t block = 0; block < r->host_image.num_blocks; block++) {
        void *memory = NULL;
        expect_ok(pagedcl_host_pool_block(r->host, block, &memory));
        expect_same_bytes(name, "host block", memory, block_image_at(&r->host_image, block), r->pool.block_bytes);
    }
}

/* The actions of the group, one after the other. */
static void act_on_images(rig *r, int32_t group, const pagedcl_action *actions, int64_t num) {
    for (int64_t i = 0; i < num; i++) {
        const pagedcl_action *a = &actions[i];
        const block_image *to = a->type == PAGEDCL_ACTION_SWAP_OUT ? &r->host_image : &r->pool;
        const block_image *from = a->type == PAGEDCL_ACTION_SWAP_IN ? &r->host_image : &r->pool;
        if (a->group != group && a->group != -1)
            continue;
        if (a->type == PAGEDCL_ACTION_WIPE)
            memset(block_image_at(to, a->dst), 0, to->block_bytes);
        else
            memcpy(block_image_at(to, a->dst), block_image_at(from, a->src), to->block_bytes);
    }
}

static void wait_for(cl_event event) {
    expect_cl(clWaitForEvents(1, &event));
    expect_cl(clReleaseEvent(event));
}

static cl_event user_event(const rig *r) {
    cl_int code;
    cl_event event = clCreateUserEvent(pagedcl_device_context(r->device), &code);
    expect_cl(code);
    return event;
}

static cl_command_queue make_queue(const rig *r, cl_command_queue_properties properties) {
    cl_int code;
    cl_command_queue queue =
        clCreateCommandQueue(pagedcl_device_context(r->device), pagedcl_device_id(r->device), properties, &code);
    expect_cl(code);
    return queue;
}

/* Runs of a type, as the manager names them, of which some depend on each other; some of another group. */
static int64_t random_actions(const rig *r, random_state *random, pagedcl_action *actions) {
    int64_t num = random_below(random, MAX_ACTIONS);
    int32_t blocks = r->pool.num_blocks, host_blocks = r->host_image.num_blocks;
    for (int64_t i = 0; i < num; i++) {
        pagedcl_action *a = &actions[i];
        a->type = i > 0 && random_below(random, 3) > 0 ? actions[i - 1].type
                                                       : (pagedcl_action_type)(1 + random_below(random, 4));
        bool out = a->type == PAGEDCL_ACTION_SWAP_OUT, in = a->type == PAGEDCL_ACTION_SWAP_IN;
        a->group = random_below(random, 5) == 0 ? 0 : 1;
        a->src = random_below(random, in ? host_blocks : blocks);
        /* Often the neighbour of the one before, so that transfers go together. */
        int32_t bound = out ? host_blocks : blocks;
        a->dst = i > 0 && random_below(random, 2) == 0 ? (actions[i - 1].dst + 1) % bound : random_below(random, bound);
        if (a->type == PAGEDCL_ACTION_COPY && a->src == a->dst)
            a->dst = (a->dst + 1) % blocks;
        if (a->type == PAGEDCL_ACTION_WIPE) {
            a->src = -1;
            a->group = -1;
        }
    }
    return num;
}

/* B93 too: the list is overwritten while its commands still wait. */
Test(host_pool, actions_take_effect_in_their_order, .timeout = 120) {
    for (int s = 0; s < NUM_SHAPES; s++) {
        rig r = rig_open(&shapes[s]);
        cl_command_queue queues[] = {NULL, make_queue(&r, 0), make_queue(&r, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)};
        random_state random = {(uint64_t)s + 77};
        for (int turn = 0; turn < 12; turn++) {
            pagedcl_action actions[MAX_ACTIONS];
            int64_t num = random_actions(&r, &random, actions);
            cl_event start = user_event(&r), event = NULL;
            expect_ok(pagedcl_actions_enqueue(r.cache, r.host, 1, queues[turn % 3], actions, num, 1, &start, &event));
            act_on_images(&r, 1, actions, num);
            memset(actions, 0x7f, sizeof actions);
            expect_cl(clSetUserEventStatus(start, CL_COMPLETE));
            expect_cl(clReleaseEvent(start));
            wait_for(event);
            rig_expect(&r, r.name);
        }
        for (int q = 1; q < 3; q++)
            expect_cl(clReleaseCommandQueue(queues[q]));
        rig_close(&r);
    }
}

Test(host_pool, wipes_in_every_shape) {
    for (int s = 0; s < NUM_SHAPES; s++) {
        rig r = rig_open(&shapes[s]);
        int32_t blocks[] = {5, 0, 7, 5};
        cl_event start = user_event(&r), event = NULL;
        expect_ok(pagedcl_cache_wipe_blocks(r.cache, NULL, blocks, 4, 1, &start, &event));
        for (int i = 0; i < 4; i++)
            memset(block_image_at(&r.pool, blocks[i]), 0, r.pool.block_bytes);
        memset(blocks, 0x7f, sizeof blocks);
        expect_cl(clSetUserEventStatus(start, CL_COMPLETE));
        expect_cl(clReleaseEvent(start));
        wait_for(event);
        rig_expect(&r, r.name);
        rig_close(&r);
    }
}

/* A caller's pools: wipes keep to the rows; swaps take any in which a block is one piece. */
Test(host_pool, pools_of_the_caller) {
    pagedcl_device *device = fixture_open();
    for (pool_form form = POOL_HND; form <= POOL_WITH_GAPS; form++) {
        pagedcl_cache_desc desc = pool_shape_desc(&shapes[0].pool);
        desc.num_layers = 2;
        desc.head_dim = 20;
        pool_model model = pool_model_create(&desc);
        pool_model_randomize(&model, 3);
        adopted_pool pool = adopted_pool_create(device, form, &model);
        adopted_pool_describe(&pool, &desc);
        pagedcl_cache *cache = NULL;
        pagedcl_host_pool *host = NULL;
        expect_ok(pagedcl_cache_create(device, &desc, &cache));
        const int32_t wiped[] = {3, 8};
        expect_ok(pagedcl_cache_wipe_blocks(cache, NULL, wiped, 2, 0, NULL, NULL));
        size_t block_bytes = (size_t)desc.block_size * model.row_bytes;
        for (int32_t layer = 0; layer < desc.num_layers; layer++)
            for (int i = 0; i < 2; i++) {
                memset(pool_model_k(&model, layer, (int64_t)wiped[i] * desc.block_size), 0, block_bytes);
                memset(pool_model_v(&model, layer, (int64_t)wiped[i] * desc.block_size), 0, block_bytes);
            }
        adopted_pool_expect(device, &pool, &model, "wiped");

        pagedcl_host_pool_desc host_desc = PAGEDCL_HOST_POOL_DESC_INIT;
        host_desc.num_blocks = 2;
        if (form == POOL_WITH_GAPS) {
            expect_refused(pagedcl_host_pool_create(cache, &host_desc, &host), PAGEDCL_UNSUPPORTED, "gaps");
        } else {
            const pagedcl_action actions[] = {{PAGEDCL_ACTION_SWAP_OUT, 0, 1, 0},
                                              {PAGEDCL_ACTION_SWAP_OUT, 0, 6, 1},
                                              {PAGEDCL_ACTION_SWAP_IN, 0, 0, 4},
                                              {PAGEDCL_ACTION_SWAP_IN, 0, 1, 0}};
            expect_ok(pagedcl_host_pool_create(cache, &host_desc, &host));
            expect_ok(pagedcl_actions_enqueue(cache, host, 0, NULL, actions, 4, 0, NULL, NULL));
            for (int32_t layer = 0; layer < desc.num_layers; layer++)
                for (int i = 0; i < 2; i++) {
                    int64_t from = (int64_t)(i == 0 ? 1 : 6) * desc.block_size, to = i == 0 ? 4 * desc.block_size : 0;
                    memcpy(pool_model_k(&model, layer, to), pool_model_k(&model, layer, from), block_bytes);
                    memcpy(pool_model_v(&model, layer, to), pool_model_v(&model, layer, from), block_bytes);
                }
            adopted_pool_expect(device, &pool, &model, "swapped");
        }
        pagedcl_host_pool_destroy(host);
        pagedcl_cache_destroy(cache);
        adopted_pool_destroy(&pool);
        pool_model_destroy(&model);
    }
    pagedcl_device_destroy(device);
}

/* ---- with the manager ---- */

static const host_shape small = {{"float32, small", 2, 6, 4, 1, 8, PAGEDCL_FLOAT32, .segment_blocks = 0}, 4, 0};

static pagedcl_blocks *make_manager(int32_t wipe) {
    pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
    desc.num_blocks = small.pool.num_blocks;
    desc.block_size = small.pool.block_size;
    desc.num_host_blocks = small.host_blocks;
    desc.wipe = wipe;
    pagedcl_blocks *blocks = NULL;
    expect_ok(pagedcl_blocks_create(&desc, &blocks));
    return blocks;
}

static pagedcl_blocks_stats stats_of(const pagedcl_blocks *blocks) {
    pagedcl_blocks_stats stats = PAGEDCL_BLOCKS_STATS_INIT;
    expect_ok(pagedcl_blocks_check(blocks));
    expect_ok(pagedcl_blocks_get_stats(blocks, &stats));
    return stats;
}

static pagedcl_seq make_sequence(pagedcl_blocks *blocks, int64_t num_tokens) {
    pagedcl_seq seq = 0;
    expect_ok(pagedcl_blocks_seq_create(blocks, &seq));
    expect_ok(pagedcl_blocks_append(blocks, seq, num_tokens, NULL, NULL));
    return seq;
}

/* Swaps the sequence on the device, too. */
static void swap(rig *r, pagedcl_blocks *blocks, pagedcl_seq seq, pagedcl_action_type type, uint64_t fence,
                 cl_command_queue queue, const cl_event *start, cl_event *event) {
    pagedcl_block_swap swaps[MAX_ACTIONS];
    pagedcl_action actions[MAX_ACTIONS];
    int64_t num = 0;
    if (type == PAGEDCL_ACTION_SWAP_OUT)
        expect_ok(pagedcl_blocks_swap_out(blocks, seq, fence, swaps, MAX_ACTIONS, &num));
    else
        expect_ok(pagedcl_blocks_swap_in(blocks, seq, fence, swaps, MAX_ACTIONS, &num));
    cr_assert_eq(pagedcl_actions_of_swaps(type, swaps, num, actions), num);
    expect_ok(pagedcl_actions_enqueue(r->cache, r->host, 0, queue, actions, num, start != NULL ? 1 : 0, start, event));
}

/* What the sequence's blocks hold on the device, read through its table. */
static void read_sequence(rig *r, pagedcl_blocks *blocks, pagedcl_seq seq, int64_t num_blocks, unsigned char *bytes) {
    int32_t row[MAX_ACTIONS];
    expect_ok(pagedcl_blocks_table(blocks, seq, 0, row, MAX_ACTIONS, NULL));
    for (int32_t layer = 0; layer < small.pool.num_layers; layer++) {
        cl_event event;
        size_t side = (size_t)num_blocks * r->pool.k_bytes;
        unsigned char *at = bytes + 2 * (size_t)layer * side;
        expect_ok(
            pagedcl_cache_download_blocks(r->cache, NULL, layer, row, num_blocks, at, at + side, 0, NULL, &event));
        wait_for(event);
    }
}

/* Out, somebody else writes all over the pool, and back into other blocks. */
Test(host_pool, a_sequence_comes_back_as_it_was) {
    pagedcl_cache_desc desc = pool_shape_desc(&small.pool);
    rig r = rig_open_with(&desc, small.pool.name, small.host_blocks, 1);
    pagedcl_blocks *blocks = make_manager(0);
    make_sequence(blocks, 3);
    pagedcl_seq seq = make_sequence(blocks, 14);
    size_t bytes = 4 * r.pool.block_bytes;
    unsigned char *before = fixture_alloc(bytes), *after = fixture_alloc(bytes);
    read_sequence(&r, blocks, seq, 4, before);
    swap(&r, blocks, seq, PAGEDCL_ACTION_SWAP_OUT, 0, NULL, NULL, NULL);
    const int32_t all[] = {0, 1, 2, 3, 4, 5};
    expect_ok(pagedcl_cache_wipe_blocks(r.cache, NULL, all, 6, 0, NULL, NULL));
    pagedcl_seq other = make_sequence(blocks, 4);
    swap(&r, blocks, seq, PAGEDCL_ACTION_SWAP_IN, 0, NULL, NULL, NULL);
    read_sequence(&r, blocks, seq, 4, after);
    expect_same_bytes(r.name, "the sequence", after, before, bytes);
    expect_ok(pagedcl_blocks_seq_free(blocks, other));
    free(before);
    free(after);
    pagedcl_blocks_destroy(blocks);
    rig_close(&r);
}

static bool is_complete(cl_event event) {
    cl_int state = CL_QUEUED;
    expect_cl(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL));
    return state == CL_COMPLETE;
}

/* Cancelled while its transfer in waits for the caller's event. (test_stub_host_pool has the transfer that fails.) */
Test(host_pool, b95_cancelled_while_on_its_way, .timeout = 30) {
    rig r = rig_open(&small);
    pagedcl_blocks *blocks = make_manager(0);
    cl_command_queue queue = make_queue(&r, 0);
    pagedcl_seq seq = make_sequence(blocks, 16), next = 0;
    cl_event event = NULL, start = user_event(&r);
    swap(&r, blocks, seq, PAGEDCL_ACTION_SWAP_OUT, 1, NULL, NULL, &event);
    wait_for(event);
    expect_ok(pagedcl_blocks_reached(blocks, 1));
    swap(&r, blocks, seq, PAGEDCL_ACTION_SWAP_IN, 2, queue, &start, &event);
    expect_ok(pagedcl_blocks_seq_free(blocks, seq));
    cr_assert(!is_complete(event));
    pagedcl_blocks_stats stats = stats_of(blocks);
    cr_assert(stats.waiting == 4 && stats.available == 2, "none of them is taken before");
    expect_ok(pagedcl_blocks_seq_create(blocks, &next));
    expect_refused(pagedcl_blocks_append(blocks, next, 12, NULL, NULL), PAGEDCL_OUT_OF_BLOCKS, "");

    expect_cl(clSetUserEventStatus(start, CL_COMPLETE));
    wait_for(event);
    expect_ok(pagedcl_blocks_reached(blocks, 2));
    expect_ok(pagedcl_blocks_append(blocks, next, 24, NULL, NULL));
    stats = stats_of(blocks);
    cr_assert(stats.waiting == 0 && stats.used == 6 && stats.host_free == small.host_blocks);

    /* The new owner's blocks hold what it writes, and the host pool serves on, on another queue. */
    for (int32_t block = 0; block < small.pool.num_blocks; block++)
        memset(block_image_at(&r.pool, block), block + 1, r.pool.block_bytes);
    block_image_upload(&r.pool, r.cache);
    expect_ok(pagedcl_blocks_truncate(blocks, next, 16));
    swap(&r, blocks, next, PAGEDCL_ACTION_SWAP_OUT, 0, NULL, NULL, &event);
    wait_for(event);
    int found = 0;
    for (int32_t block = 0; block < small.host_blocks; block++) {
        void *memory = NULL;
        expect_ok(pagedcl_host_pool_block(r.host, block, &memory));
        found |= 1 << *(unsigned char *)memory;
    }
    cr_assert_eq(__builtin_popcount((unsigned)found), 4, "blocks of the new owner: 0x%x", (unsigned)found);
    expect_cl(clReleaseEvent(start));
    expect_cl(clReleaseCommandQueue(queue));
    pagedcl_blocks_destroy(blocks);
    rig_close(&r);
}

static bool is_zero(const void *bytes, size_t size) {
    const unsigned char *b = bytes;
    return b[0] == 0 && memcmp(b, b + 1, size - 1) == 0;
}

/* A tenant's blocks, on the device and on the host, are zero before the next one gets them; a gather gives no more than
   the length whether they are wiped or not. */
Test(host_pool, b142_nothing_of_the_last_tenant_is_left) {
    for (int wipe = 0; wipe < 2; wipe++) {
        rig r = rig_open(&small); /* what rig_open put there is the first tenant's */
        pagedcl_blocks *blocks = make_manager(wipe);
        pagedcl_seq tenant = make_sequence(blocks, 4 * 4);
        swap(&r, blocks, tenant, PAGEDCL_ACTION_SWAP_OUT, 0, NULL, NULL, NULL);
        pagedcl_seq rest = make_sequence(blocks, wipe ? 2 * 4 : 6 * 4);
        expect_ok(pagedcl_blocks_seq_free(blocks, tenant));
        expect_ok(pagedcl_blocks_seq_free(blocks, rest));
        int32_t wiped[6], wiped_host[4];
        int64_t num_wiped = -1, num_wiped_host = -1;
        pagedcl_action actions[6];
        expect_ok(pagedcl_blocks_wipe(blocks, 0, wiped, 6, &num_wiped));
        expect_ok(pagedcl_blocks_wipe_host(blocks, wiped_host, 4, &num_wiped_host));
        cr_assert(num_wiped == (wipe ? 6 : 0) && num_wiped_host == (wipe ? 4 : 0));
        cr_assert_eq(pagedcl_actions_of_wipes(wiped, num_wiped, actions), num_wiped);
        expect_cl(clFinish(pagedcl_device_queue(r.device)));
        expect_ok(pagedcl_host_pool_wipe(r.host, wiped_host, num_wiped_host));
        expect_ok(pagedcl_actions_enqueue(r.cache, r.host, 0, NULL, actions, num_wiped, 0, NULL, NULL));

        pagedcl_seq next = make_sequence(blocks, 3);
        unsigned char *bytes = fixture_alloc(r.pool.block_bytes);
        read_sequence(&r, blocks, next, 1, bytes);
        cr_assert_eq(is_zero(bytes, r.pool.block_bytes), wipe, "wipe %d", wipe);
        for (int32_t block = 0; block < small.host_blocks; block++) {
            void *memory = NULL;
            expect_ok(pagedcl_host_pool_block(r.host, block, &memory));
            cr_assert_eq(is_zero(memory, r.pool.block_bytes), wipe, "host block %d, wipe %d", block, wipe);
        }

        int32_t row[1], length = 3;
        size_t row_bytes = 8 * sizeof(float);
        expect_ok(pagedcl_blocks_table(blocks, next, 0, row, 1, NULL));
        guarded k = guarded_create(r.device, 4 * row_bytes, NULL), v = guarded_create(r.device, 4 * row_bytes, NULL);
        pagedcl_tensor k_rows = {.mem = k.mem}, v_rows = {.mem = v.mem};
        expect_ok(pagedcl_cache_gather(r.cache, NULL, 0, row, 1, &length, 1, &k_rows, &v_rows, 0, NULL, NULL));
        unsigned char *got = guarded_read(r.device, &k, r.name), *poison = fixture_poisoned(row_bytes);
        expect_same_bytes(r.name, "the three tokens", got, bytes, 3 * row_bytes);
        expect_same_bytes(r.name, "behind them", got + 3 * row_bytes, poison, row_bytes);
        free(got);
        free(poison);
        free(bytes);
        guarded_destroy(&k);
        guarded_destroy(&v);
        pagedcl_blocks_destroy(blocks);
        rig_close(&r);
    }
}

/* A step of the manager's with all that it may name, in two lists: one call a group, whatever the order of groups. */
Test(host_pool, a_step_of_two_groups) {
    pagedcl_cache_desc descs[2] = {pool_shape_desc(&small.pool), pool_shape_desc(&small.pool)};
    descs[1].block_size = 2;
    descs[1].num_layers = 1;
    rig rigs[2];
    for (int g = 0; g < 2; g++)
        rigs[g] = rig_open_with(&descs[g], g == 0 ? "group 0" : "group 1", 6, 2);
    const int32_t sizes[2] = {4, 2};
    pagedcl_blocks_desc desc = PAGEDCL_BLOCKS_DESC_INIT;
    desc.num_blocks = small.pool.num_blocks;
    desc.block_size = 4;
    desc.num_groups = 2;
    desc.group_block_sizes = sizes;
    desc.num_host_blocks = 6;
    pagedcl_blocks *blocks = NULL;
    expect_ok(pagedcl_blocks_create(&desc, &blocks));

    pagedcl_seq parent = make_sequence(blocks, 3), child = 0; /* a block of 4 and two of 2 */
    expect_ok(pagedcl_blocks_fork(blocks, parent, &child));
    pagedcl_action actions[MAX_ACTIONS];
    pagedcl_block_copy copies[MAX_ACTIONS];
    pagedcl_block_swap swaps[MAX_ACTIONS];
    size_t num_copies = 0;
    int64_t num = 0, num_swaps = 0, num_moves = 0;
    expect_ok(pagedcl_blocks_append(blocks, child, 1, copies, &num_copies));
    cr_assert_eq(num_copies, 2u, "one of each group");
    num += pagedcl_actions_of_copies(copies, (int64_t)num_copies, actions + num);
    expect_ok(pagedcl_blocks_swap_out(blocks, parent, 0, swaps, MAX_ACTIONS, &num_swaps));
    num += pagedcl_actions_of_swaps(PAGEDCL_ACTION_SWAP_OUT, swaps, num_swaps, actions + num);
    expect_ok(pagedcl_blocks_compact(blocks, 0, copies, MAX_ACTIONS, &num_moves));
    cr_assert_gt(num_moves, 0);
    num += pagedcl_actions_of_copies(copies, num_moves, actions + num);
    expect_ok(pagedcl_blocks_swap_in(blocks, parent, 0, swaps, MAX_ACTIONS, &num_swaps));
    num += pagedcl_actions_of_swaps(PAGEDCL_ACTION_SWAP_IN, swaps, num_swaps, actions + num);
    for (int g = 1; g >= 0; g--) {
        expect_ok(pagedcl_actions_enqueue(rigs[g].cache, rigs[g].host, g, NULL, actions, num, 0, NULL, NULL));
        act_on_images(&rigs[g], g, actions, num);
        expect_cl(clFinish(pagedcl_device_queue(rigs[g].device)));
        rig_expect(&rigs[g], rigs[g].name);
    }
    pagedcl_blocks_destroy(blocks);
    for (int g = 0; g < 2; g++)
        rig_close(&rigs[g]);
}

/* ---- refusals ---- */

Test(host_pool, bad_actions_change_nothing) {
    rig r = rig_open(&small), other = rig_open(&small);
    const struct {
        pagedcl_action action;
        pagedcl_status status;
        const char *words;
    } rows[] = {
        {{(pagedcl_action_type)0, 0, 1, 2}, PAGEDCL_INVALID_ARGUMENT, "action 1 has type 0"},
        {{(pagedcl_action_type)5, 0, 1, 2}, PAGEDCL_INVALID_ARGUMENT, "action 1 has type 5"},
        {{PAGEDCL_ACTION_COPY, 0, -1, 2}, PAGEDCL_INVALID_BLOCK, "action 1 names block -1"},
        {{PAGEDCL_ACTION_COPY, 0, 1, 6}, PAGEDCL_INVALID_BLOCK, "action 1 names block 6"},
        {{PAGEDCL_ACTION_COPY, 0, 2, 2}, PAGEDCL_INVALID_BLOCK, "action 1 copies block 2 to itself"},
        {{PAGEDCL_ACTION_WIPE, -1, -1, 6}, PAGEDCL_INVALID_BLOCK, "action 1 names block 6"},
        {{PAGEDCL_ACTION_SWAP_OUT, 0, 6, 0}, PAGEDCL_INVALID_BLOCK, "action 1 names block 6"},
        {{PAGEDCL_ACTION_SWAP_OUT, 0, 0, 4}, PAGEDCL_INVALID_BLOCK, "action 1 names host block 4"},
        {{PAGEDCL_ACTION_SWAP_IN, 0, 4, 0}, PAGEDCL_INVALID_BLOCK, "action 1 names host block 4"},
        {{PAGEDCL_ACTION_SWAP_IN, 0, 0, INT32_MIN}, PAGEDCL_INVALID_BLOCK, "action 1 names block -2147483648"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const pagedcl_action actions[] = {{PAGEDCL_ACTION_WIPE, -1, -1, 0}, rows[i].action};
        cl_event event = NULL;
        expect_refused(pagedcl_actions_enqueue(r.cache, r.host, 0, NULL, actions, 2, 0, NULL, &event), rows[i].status,
                       rows[i].words);
        cr_assert_null(event);
    }
    const pagedcl_action swap_out = {PAGEDCL_ACTION_SWAP_OUT, 0, 0, 0};
#define ENQUEUE(cache, host, group, actions, num, num_events) \
    pagedcl_actions_enqueue(cache, host, group, NULL, actions, num, num_events, NULL, NULL)
    expect_refused(ENQUEUE(NULL, NULL, 0, &swap_out, 1, 0), PAGEDCL_INVALID_ARGUMENT, "cache is NULL");
    expect_refused(ENQUEUE(r.cache, NULL, 0, &swap_out, 1, 0), PAGEDCL_INVALID_ARGUMENT, "host is NULL");
    expect_refused(ENQUEUE(r.cache, other.host, 0, &swap_out, 1, 0), PAGEDCL_INVALID_ARGUMENT, "another cache");
    expect_refused(ENQUEUE(r.cache, r.host, -1, &swap_out, 1, 0), PAGEDCL_INVALID_ARGUMENT, "group -1");
    expect_refused(ENQUEUE(r.cache, r.host, 0, NULL, 1, 0), PAGEDCL_INVALID_ARGUMENT, "actions not NULL");
    expect_refused(ENQUEUE(r.cache, r.host, 0, &swap_out, -1, 0), PAGEDCL_INVALID_ARGUMENT, "num_actions -1");
    expect_refused(ENQUEUE(r.cache, r.host, 0, &swap_out, INT64_MAX, 0), PAGEDCL_SIZE_OVERFLOW, "actions");
    expect_refused(ENQUEUE(r.cache, r.host, 0, &swap_out, 1, 1), PAGEDCL_INVALID_ARGUMENT, "events");
    /* What is of no concern is not looked at. */
    expect_ok(ENQUEUE(r.cache, NULL, 3, &swap_out, 1, 0));
    expect_ok(ENQUEUE(r.cache, NULL, 0, NULL, 0, 0));
#undef ENQUEUE
    const int32_t blocks[] = {0, 6};
    expect_refused(pagedcl_cache_wipe_blocks(r.cache, NULL, blocks, 2, 0, NULL, NULL), PAGEDCL_INVALID_BLOCK,
                   "entry 1 names block 6");
    expect_refused(pagedcl_cache_wipe_blocks(NULL, NULL, blocks, 1, 0, NULL, NULL), PAGEDCL_INVALID_ARGUMENT, "cache");
    expect_refused(pagedcl_cache_wipe_blocks(r.cache, NULL, NULL, 1, 0, NULL, NULL), PAGEDCL_INVALID_ARGUMENT, "NULL");
    expect_refused(pagedcl_cache_wipe_blocks(r.cache, NULL, blocks, -1, 0, NULL, NULL), PAGEDCL_INVALID_ARGUMENT,
                   "num_blocks");
    expect_refused(pagedcl_host_pool_wipe(r.host, blocks, 2), PAGEDCL_INVALID_BLOCK, "entry 1 names host block 6");
    expect_refused(pagedcl_host_pool_wipe(NULL, blocks, 1), PAGEDCL_INVALID_ARGUMENT, "pool");
    expect_refused(pagedcl_host_pool_wipe(r.host, NULL, 1), PAGEDCL_INVALID_ARGUMENT, "host_blocks");
    expect_refused(pagedcl_host_pool_wipe(r.host, blocks, -1), PAGEDCL_INVALID_ARGUMENT, "num_blocks");
    void *memory = NULL;
    expect_refused(pagedcl_host_pool_block(r.host, -1, &memory), PAGEDCL_INVALID_BLOCK, "host block -1");
    expect_refused(pagedcl_host_pool_block(r.host, 0, NULL), PAGEDCL_INVALID_ARGUMENT, "NULL");
    expect_refused(pagedcl_host_pool_block(NULL, 0, &memory), PAGEDCL_INVALID_ARGUMENT, "NULL");
    cr_assert_null(memory);
    rig_expect(&r, r.name);
    rig_close(&r);
    rig_close(&other);
}

Test(host_pool, bad_descriptions) {
    rig r = rig_open(&small);
    pagedcl_host_pool_desc desc = PAGEDCL_HOST_POOL_DESC_INIT;
    pagedcl_host_pool *host = NULL;
    uint64_t bytes = 0;
    expect_refused(pagedcl_host_pool_create(r.cache, &desc, &host), PAGEDCL_INVALID_ARGUMENT, "num_blocks is 0");
    desc.num_blocks = INT32_MIN;
    expect_refused(pagedcl_host_pool_create(r.cache, &desc, &host), PAGEDCL_INVALID_ARGUMENT, "num_blocks is -2");
    desc.num_blocks = 1;
    expect_refused(pagedcl_host_pool_create(NULL, &desc, &host), PAGEDCL_INVALID_ARGUMENT, "cache is NULL");
    expect_refused(pagedcl_host_pool_create(r.cache, NULL, &host), PAGEDCL_INVALID_ARGUMENT, "NULL");
    expect_refused(pagedcl_host_pool_create(r.cache, &desc, NULL), PAGEDCL_INVALID_ARGUMENT, "NULL");
    expect_refused(pagedcl_host_pool_block_bytes(NULL, &bytes), PAGEDCL_INVALID_ARGUMENT, "cache");
    expect_refused(pagedcl_host_pool_block_bytes(r.cache, NULL), PAGEDCL_INVALID_ARGUMENT, "bytes");
    cr_assert_null(host);
    pagedcl_host_pool_destroy(NULL);

    /* The caller's own memory. */
    desc.memory = fixture_poisoned(r.pool.block_bytes);
    expect_ok(pagedcl_host_pool_create(r.cache, &desc, &host));
    const pagedcl_action swap_out = {PAGEDCL_ACTION_SWAP_OUT, 0, 5, 0};
    cl_event event;
    expect_ok(pagedcl_actions_enqueue(r.cache, host, 0, NULL, &swap_out, 1, 0, NULL, &event));
    wait_for(event);
    expect_same_bytes(r.name, "the caller's memory", desc.memory, block_image_at(&r.pool, 5), r.pool.block_bytes);
    pagedcl_host_pool_destroy(host);
    free(desc.memory);
    rig_close(&r);
}
