/* SPDX-License-Identifier: Apache-2.0 */
#include "block_image.h"

#include "block_layout.h"
#include "expect.h"
#include "fixture.h"
#include "random.h"

#include <stdio.h>
#include <stdlib.h>

static pagedcl_cache_desc desc_of(const pagedcl_cache *cache) {
    pagedcl_cache_desc desc = PAGEDCL_CACHE_DESC_INIT;
    expect_ok(pagedcl_cache_get_desc(cache, &desc));
    return desc;
}

block_image block_image_create(const pagedcl_cache *cache, int32_t num_blocks) {
    pagedcl_cache_desc desc = desc_of(cache);
    block_image image = {.num_layers = desc.num_layers, .num_blocks = num_blocks};
    image.k_bytes = block_layout_of(&desc, desc.head_dim, 0).bytes;
    image.v_bytes = desc.v_in_k ? 0 : block_layout_of(&desc, desc.head_dim_v, 0).bytes;
    image.block_bytes = (size_t)desc.num_layers * (image.k_bytes + image.v_bytes);
    image.bytes = fixture_poisoned((size_t)num_blocks * image.block_bytes);
    return image;
}

void block_image_destroy(block_image *image) {
    free(image->bytes);
    *image = (block_image){0};
}

static void randomize_side(const pagedcl_cache_desc *desc, int32_t head_dim, random_state *random,
                           unsigned char *bytes) {
    const block_layout layout = block_layout_of(desc, head_dim, 0);
    for (size_t i = 0; i < layout.bytes; i++) {
        bool used = i < layout.elements_end || (i >= layout.scales_offset && i < layout.scales_end);
        bytes[i] = used ? (unsigned char)random_bits(random) : 0;
    }
}

void block_image_randomize(block_image *image, const pagedcl_cache *cache, uint64_t seed) {
    pagedcl_cache_desc desc = desc_of(cache);
    random_state random = {seed};
    for (int32_t i = 0; i < image->num_blocks * image->num_layers; i++) {
        unsigned char *at = image->bytes + (size_t)i * (image->k_bytes + image->v_bytes);
        randomize_side(&desc, desc.head_dim, &random, at);
        if (image->v_bytes > 0)
            randomize_side(&desc, desc.head_dim_v, &random, at + image->k_bytes);
    }
}

unsigned char *block_image_at(const block_image *image, int32_t block) {
    return image->bytes + (size_t)block * image->block_bytes;
}

/* One layer between the image and arrays of K and of V. */
static void exchange(const block_image *image, int32_t layer, unsigned char *k, unsigned char *v, bool into_image) {
    for (int32_t block = 0; block < image->num_blocks; block++) {
        unsigned char *own = block_image_at(image, block) + (size_t)layer * (image->k_bytes + image->v_bytes);
        unsigned char *other = k + (size_t)block * image->k_bytes;
        memcpy(into_image ? own : other, into_image ? other : own, image->k_bytes);
        if (image->v_bytes == 0)
            continue;
        own += image->k_bytes;
        other = v + (size_t)block * image->v_bytes;
        memcpy(into_image ? own : other, into_image ? other : own, image->v_bytes);
    }
}

static void transfer(const block_image *image, pagedcl_cache *cache, bool download) {
    size_t blocks = (size_t)image->num_blocks;
    unsigned char *k = fixture_alloc(blocks * image->k_bytes),
                  *v = image->v_bytes > 0 ? fixture_alloc(blocks * image->v_bytes) : NULL;
    for (int32_t layer = 0; layer < image->num_layers; layer++) {
        cl_event event;
        if (download) {
            expect_ok(
                pagedcl_cache_download_blocks(cache, NULL, layer, NULL, image->num_blocks, k, v, 0, NULL, &event));
        } else {
            exchange(image, layer, k, v, false);
            expect_ok(pagedcl_cache_upload_blocks(cache, NULL, layer, NULL, image->num_blocks, k, v, 0, NULL, &event));
        }
        expect_cl(clWaitForEvents(1, &event));
        expect_cl(clReleaseEvent(event));
        if (download)
            exchange(image, layer, k, v, true);
    }
    free(k);
    free(v);
}

block_image block_image_download(pagedcl_cache *cache) {
    block_image image = block_image_create(cache, desc_of(cache).num_blocks);
    transfer(&image, cache, true);
    return image;
}

void block_image_upload(const block_image *image, pagedcl_cache *cache) {
    transfer(image, cache, false);
}

void block_image_expect(const block_image *image, pagedcl_cache *cache, const char *name) {
    block_image got = block_image_download(cache);
    for (int32_t block = 0; block < image->num_blocks; block++) {
        char what[32];
        snprintf(what, sizeof what, "block %d", block);
        expect_same_bytes(name, what, block_image_at(&got, block), block_image_at(image, block), image->block_bytes);
    }
    block_image_destroy(&got);
}
