/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A decode step of sequences that share a prefix, with and without sharing its reading: milliseconds of a run, the
 * median of several, and of making the plan. The results must be equal, bit for bit.
 */
#define _POSIX_C_SOURCE 200809L

#include <pagedcl/pagedcl.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCK_SIZE = 16, MAX_RUNS = 101 };

static void check(pagedcl_status status) {
    if (status == PAGEDCL_SUCCESS)
        return;
    fprintf(stderr, "bench_share: %s: %s\n", pagedcl_status_name(status), pagedcl_last_error());
    exit(1);
}

static void check_cl(cl_int code) {
    if (code == CL_SUCCESS)
        return;
    fprintf(stderr, "bench_share: OpenCL error %d\n", code);
    exit(1);
}

static void *allocate(size_t bytes) {
    void *memory = malloc(bytes);
    if (memory == NULL) {
        fprintf(stderr, "bench_share: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return memory;
}

/* ---- the case ---- */

static struct {
    const char *name;
    int32_t value;
} options[] = {{"seqs", 16}, {"shared", 8192},  {"own", 100}, {"kv-heads", 8},
               {"group", 4}, {"head-dim", 128}, {"runs", 15}, {"tier", PAGEDCL_TIER_AUTO}};
enum { SEQS, SHARED, OWN, KV_HEADS, GROUP, HEAD_DIM, RUNS, TIER, NUM_OPTIONS };

static int32_t of(int option) {
    return options[option].value;
}

static void read_options(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        int option = 0;
        const char *value = strchr(argv[i], '=');
        while (option < NUM_OPTIONS &&
               (value == NULL || strncmp(argv[i], options[option].name, (size_t)(value - argv[i])) != 0))
            option++;
        if (option == NUM_OPTIONS) {
            fprintf(stderr, "usage: bench_share [OPTION=NUMBER]...\n");
            for (option = 0; option < NUM_OPTIONS; option++)
                fprintf(stderr, "  %s=%d\n", options[option].name, options[option].value);
            exit(2);
        }
        options[option].value = (int32_t)strtol(value + 1, NULL, 10);
    }
    if (of(RUNS) > MAX_RUNS || of(RUNS) < 1)
        options[RUNS].value = MAX_RUNS;
}

/* Halves of magnitude 1/4 to 1, of either sign. */
static uint16_t *random_halves(size_t count) {
    uint16_t *halves = allocate(count * sizeof *halves);
    uint64_t state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        halves[i] = (uint16_t)((state >> 48 & 0x83ff) | (13 + (state >> 40 & 1)) << 10);
    }
    return halves;
}

typedef struct bench {
    pagedcl_device *device;
    pagedcl_cache *cache;
    pagedcl_attn *attn;
    pagedcl_plan *plan;
    pagedcl_attn_args args;
    pagedcl_decode_batch batch;
    size_t out_bytes;
} bench;

static cl_mem buffer_of(const bench *b, size_t bytes, void *content) {
    cl_int code;
    cl_mem mem =
        clCreateBuffer(pagedcl_device_context(b->device),
                       CL_MEM_READ_WRITE | (content != NULL ? CL_MEM_COPY_HOST_PTR : 0), bytes, content, &code);
    check_cl(code);
    return mem;
}

/* The prefix lies in the first blocks, what each sequence has of its own behind it. */
static int32_t *make_table(int32_t *stride, int32_t *num_blocks) {
    int32_t shared = of(SHARED) / BLOCK_SIZE,
            own = (of(SHARED) % BLOCK_SIZE + of(OWN) + 1 + BLOCK_SIZE - 1) / BLOCK_SIZE;
    *stride = shared + own;
    *num_blocks = shared + of(SEQS) * own;
    int32_t *table = allocate((size_t)of(SEQS) * (size_t)*stride * sizeof *table);
    for (int32_t seq = 0; seq < of(SEQS); seq++)
        for (int32_t i = 0; i < *stride; i++)
            table[seq * *stride + i] = i < shared ? i : shared + seq * own + i - shared;
    return table;
}

static bench open_bench(void) {
    bench b = {.args = PAGEDCL_ATTN_ARGS_INIT, .batch = PAGEDCL_DECODE_BATCH_INIT};
    int32_t stride, num_blocks, *table = make_table(&stride, &num_blocks);
    int32_t *lengths = allocate((size_t)of(SEQS) * sizeof *lengths);
    for (int32_t seq = 0; seq < of(SEQS); seq++)
        lengths[seq] = of(SHARED) + of(OWN);
    check(pagedcl_device_open(NULL, NULL, &b.device));

    pagedcl_cache_desc pool = PAGEDCL_CACHE_DESC_INIT;
    pool.num_blocks = num_blocks;
    pool.block_size = BLOCK_SIZE;
    pool.num_kv_heads = of(KV_HEADS);
    pool.head_dim = of(HEAD_DIM);
    check(pagedcl_cache_create(b.device, &pool, &b.cache));
    size_t elements = (size_t)num_blocks * BLOCK_SIZE * (size_t)of(KV_HEADS) * (size_t)of(HEAD_DIM);
    uint16_t *halves = random_halves(elements);
    check(pagedcl_cache_upload_blocks(b.cache, NULL, 0, NULL, num_blocks, halves, halves, 0, NULL, NULL));
    check_cl(clFinish(pagedcl_device_queue(b.device)));

    pagedcl_attn_desc desc = PAGEDCL_ATTN_DESC_INIT;
    desc.cache = b.cache;
    desc.num_heads = of(KV_HEADS) * of(GROUP);
    desc.causal = 1;
    desc.paths = PAGEDCL_PATH_DECODE;
    desc.tier = (pagedcl_tier)of(TIER);
    check(pagedcl_attn_create(b.device, &desc, &b.attn));
    check(pagedcl_plan_create(b.attn, &b.plan));
    size_t rows = (size_t)of(SEQS) * (size_t)of(KV_HEADS) * (size_t)of(HEAD_DIM);
    b.out_bytes = rows * (size_t)of(GROUP) * sizeof *halves;
    b.args.q.mem = buffer_of(&b, b.out_bytes, halves);
    b.args.k_new.mem = b.args.v_new.mem = buffer_of(&b, rows * sizeof *halves, halves);
    b.args.out.mem = buffer_of(&b, b.out_bytes, NULL);
    free(halves);
    b.batch.num_seqs = of(SEQS);
    b.batch.seqlen_q = b.batch.seqlen_new = 1;
    b.batch.cache_seqlens = lengths;
    b.batch.block_table = table;
    b.batch.block_table_stride = stride;
    return b;
}

static void close_bench(bench *b) {
    clReleaseMemObject(b->args.q.mem);
    clReleaseMemObject(b->args.k_new.mem);
    clReleaseMemObject(b->args.out.mem);
    pagedcl_plan_destroy(b->plan);
    pagedcl_attn_destroy(b->attn);
    pagedcl_cache_destroy(b->cache);
    pagedcl_device_destroy(b->device);
    free((void *)b->batch.cache_seqlens);
    free((void *)b->batch.block_table);
}

/* ---- measuring ---- */

static double milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

/* A run's time is that of four in a row, so that launching is not what is measured. */
static void *measure(bench *b, const char *name, pagedcl_sharing share) {
    enum { IN_A_ROW = 4 };
    cl_command_queue queue = pagedcl_device_queue(b->device);
    double plans[MAX_RUNS], runs[MAX_RUNS];
    b->batch.share_prefix = share;
    for (int i = -2; i < of(RUNS); i++) {
        double start = milliseconds();
        check(pagedcl_plan_decode(b->plan, queue, &b->batch));
        double planned = milliseconds();
        check_cl(clFinish(queue));
        double before = milliseconds();
        for (int run = 0; run < IN_A_ROW; run++)
            check(pagedcl_attn_run(b->attn, queue, b->plan, &b->args, 0, NULL, NULL));
        check_cl(clFinish(queue));
        if (i < 0)
            continue;
        plans[i] = planned - start;
        runs[i] = (milliseconds() - before) / IN_A_ROW;
    }
    void *out = allocate(b->out_bytes);
    check_cl(clEnqueueReadBuffer(queue, b->args.out.mem, CL_TRUE, 0, b->out_bytes, out, 0, NULL, NULL));
    printf("%-8s run %9.3f ms   plan %7.3f ms\n", name, median(runs, of(RUNS)), median(plans, of(RUNS)));
    return out;
}

int main(int argc, char **argv) {
    read_options(argc, argv);
    bench b = open_bench();
    pagedcl_device_info info = PAGEDCL_DEVICE_INFO_INIT;
    check(pagedcl_device_get_info(b.device, &info));
    printf("%s: %d sequences of %d shared and %d own tokens, %d/%d heads of %d, float16\n", info.device_name, of(SEQS),
           of(SHARED), of(OWN), of(KV_HEADS) * of(GROUP), of(KV_HEADS), of(HEAD_DIM));
    void *off = measure(&b, "off", PAGEDCL_SHARE_OFF), *automatic = measure(&b, "auto", PAGEDCL_SHARE_AUTO),
         *all = measure(&b, "all", PAGEDCL_SHARE_ALL);
    int differs = memcmp(off, automatic, b.out_bytes) != 0 || memcmp(off, all, b.out_bytes) != 0;
    if (differs)
        fprintf(stderr, "bench_share: the results differ\n");
    free(off);
    free(automatic);
    free(all);
    close_bench(&b);
    return differs;
}
