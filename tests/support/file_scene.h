/* SPDX-License-Identifier: Apache-2.0 */
/* A folder with a file of sequences, and managers that save and load it. Whatever fails, fails the test. */
#ifndef FILE_SCENE_H
#define FILE_SCENE_H

#include "kv_pool.h"
#include "manager.h"

enum { SCENE_TOKENS = 64, SCENE_SEQS = 4, SCENE_FILE = 1 << 16 };

extern char *scene_folder, scene_path[512];
extern int32_t scene_tokens[SCENE_SEQS][SCENE_TOKENS];

/* Before and after each test: TestSuite(name, .init = scene_open, .fini = scene_close). */
void scene_open(void);
void scene_close(void);

/* A sequence of the first tokens of scene_tokens[i], admitted, filled and recorded. */
pagedcl_seq scene_computed(kv_pool *pool, int i, int64_t num_tokens);

void scene_save(kv_pool *pool, const pagedcl_seq *seqs, int64_t num_seqs);
pagedcl_status scene_load(kv_pool *pool, pagedcl_seq *seqs, int64_t *num_seqs);

/* The file's bytes, up to SCENE_FILE; how many. */
size_t scene_read_file(unsigned char *bytes);
void scene_write_file(const unsigned char *bytes, size_t size);
int scene_files(void);

/* A pool with a sequence, and a file of three; loading must not change the pool. */
typedef struct refusal {
    kv_pool pool;
    pagedcl_blocks_stats before;
    unsigned char bytes[SCENE_FILE];
    size_t size;
} refusal;

void refusal_prepare(refusal *r);

/* Loading is refused with that status, and nothing changes. `how` and `where` are for the message. */
void refusal_expect(refusal *r, pagedcl_status want, const char *how, size_t where);

#endif
