/* SPDX-License-Identifier: Apache-2.0 */
#include "file_scene.h"

#include "temp_folder.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

char *scene_folder, scene_path[512];
int32_t scene_tokens[SCENE_SEQS][SCENE_TOKENS];

void scene_open(void) {
    scene_folder = temp_folder_create();
    snprintf(scene_path, sizeof scene_path, "%s/sequences", scene_folder);
    for (int i = 0; i < SCENE_SEQS; i++)
        for (int p = 0; p < SCENE_TOKENS; p++)
            scene_tokens[i][p] = 1000 * i + p;
}

void scene_close(void) {
    temp_folder_remove(scene_folder);
}

pagedcl_seq scene_computed(kv_pool *pool, int i, int64_t num_tokens) {
    pagedcl_prompt prompt = manager_prompt(scene_tokens[i], num_tokens);
    pagedcl_seq seq = manager_admit(pool->blocks, &prompt, NULL);
    kv_pool_fill(pool, seq, scene_tokens[i], 0, num_tokens);
    return seq;
}

void scene_save(kv_pool *pool, const pagedcl_seq *seqs, int64_t num_seqs) {
    OK(pagedcl_blocks_save(pool->blocks, scene_path, kv_geometry, seqs, num_seqs, kv_pool_read, pool));
}

pagedcl_status scene_load(kv_pool *pool, pagedcl_seq *seqs, int64_t *num_seqs) {
    return pagedcl_blocks_load(pool->blocks, scene_path, kv_geometry, kv_pool_write, pool, seqs, SCENE_SEQS, num_seqs);
}

size_t scene_read_file(unsigned char *bytes) {
    FILE *file = fopen(scene_path, "rb");
    cr_assert_not_null(file);
    size_t size = fread(bytes, 1, SCENE_FILE, file);
    cr_assert_lt(size, SCENE_FILE);
    fclose(file);
    return size;
}

void scene_write_file(const unsigned char *bytes, size_t size) {
    FILE *file = fopen(scene_path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

int scene_files(void) {
    int count = 0;
    DIR *dir = opendir(scene_folder);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

void refusal_prepare(refusal *r) {
    kv_pool pool = kv_pool_create(40, 4, 4, NULL, true);
    const pagedcl_prefix_key key = {PAGEDCL_KEY_SALT, 0, "abc", 3};
    pagedcl_prompt prompt = manager_prompt(scene_tokens[1], 9);
    prompt.keys = &key;
    prompt.num_keys = 1;
    pagedcl_seq seqs[3] = {scene_computed(&pool, 0, 10), 0, manager_admit(pool.blocks, &prompt, NULL)};
    OK(pagedcl_blocks_share(pool.blocks, seqs[0], 8, &seqs[1]));
    kv_pool_fill(&pool, seqs[2], scene_tokens[1], 0, 9);
    scene_save(&pool, seqs, 3);
    kv_pool_destroy(&pool);
    r->size = scene_read_file(r->bytes);
    r->pool = kv_pool_create(20, 4, 4, NULL, true);
    scene_computed(&r->pool, 2, 7);
    r->before = manager_stats(r->pool.blocks);
}

void refusal_expect(refusal *r, pagedcl_status want, const char *how, size_t where) {
    pagedcl_seq seqs[SCENE_SEQS] = {77, 77, 77, 77};
    int64_t num_seqs = 77;
    pagedcl_status status = scene_load(&r->pool, seqs, &num_seqs);
    pagedcl_blocks_stats after = manager_stats(r->pool.blocks);
    cr_assert_eq(status, want, "%s %zu: %s, %s", how, where, pagedcl_status_name(status), pagedcl_last_error());
    cr_assert(seqs[0] == 77 && num_seqs == 77);
    after.peak_used = r->before.peak_used;
    cr_assert_eq(memcmp(&after, &r->before, sizeof after), 0, "%s %zu changed something", how, where);
}
