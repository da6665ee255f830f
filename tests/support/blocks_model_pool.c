/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks_model_pool.h"

#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t value) {
    value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
    return value ^ value >> 31;
}

uint64_t model_salt(int salt) {
    return mix((uint64_t)salt + 1);
}

void model_value_at(model_seq *s, int64_t p) {
    s->values[p] = mix((p == 0 ? model_salt(s->salt) : s->values[p - 1]) + (uint64_t)(uint32_t)s->tokens[p] + 1);
}

int64_t model_blocks_for(const model_group *group, int64_t num_tokens) {
    return (num_tokens + group->block_size - 1) / group->block_size;
}

int64_t model_first_seen(const model_group *group, int64_t position) {
    int64_t left = position - group->window + 1;
    return group->window == 0 || left < 0 ? 0 : left / group->block_size;
}

void model_drop(model *m, model_seq *s, int64_t position) {
    if (position <= s->dropped_at)
        return;
    for (int32_t g = 0; g < m->num_groups; g++)
        m->counts->dropped += model_first_seen(&m->group[g], position) - model_first_seen(&m->group[g], s->dropped_at);
    s->dropped_at = position;
}

bool model_window_refuses(const model *m, const model_seq *s, int64_t num_tokens) {
    for (int32_t g = 0; g < m->num_groups; g++) {
        int64_t first = model_first_seen(&m->group[g], num_tokens);
        if (first < model_blocks_for(&m->group[g], num_tokens) && first < model_first_seen(&m->group[g], s->dropped_at))
            return true;
    }
    return false;
}

bool model_knows(const model *m, int32_t group, int64_t index, uint64_t value) {
    for (int32_t block = 0; block < m->num_blocks; block++) {
        const model_known *known = &m->known[block];
        if (known->known && known->group == group && known->index == index && known->value == value)
            return true;
    }
    return false;
}

void model_defer(model *m, model_deferred deferred) {
    if (m->num_deferred == m->deferred_capacity) {
        m->deferred_capacity = 2 * m->deferred_capacity + 64;
        m->deferred = realloc(m->deferred, m->deferred_capacity * sizeof *m->deferred);
        if (m->deferred == NULL)
            abort();
    }
    m->deferred[m->num_deferred++] = deferred;
}

void model_run_deferred(model *m, uint64_t fence) {
    size_t kept = 0;
    for (size_t i = 0; i < m->num_deferred; i++) {
        const model_deferred *d = &m->deferred[i];
        if (d->fence > fence) {
            m->deferred[kept++] = *d;
            continue;
        }
        int32_t size = m->group[d->group].block_size;
        uint64_t *host = &m->host[d->group][d->host * size], *block = &m->pool[d->group][d->slot];
        if (d->kind == MODEL_READ)
            continue;
        if (d->kind == MODEL_DOWNLOAD)
            memcpy(host, block, (size_t)size * sizeof *host);
        else
            memcpy(block, host, (size_t)size * sizeof *host);
    }
    m->num_deferred = kept;
}
