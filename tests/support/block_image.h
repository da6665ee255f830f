/* SPDX-License-Identifier: Apache-2.0 */
/* All bytes of a pool on the host, block by block as a host pool holds them: for each layer K, then V. */
#ifndef BLOCK_IMAGE_H
#define BLOCK_IMAGE_H

#include <pagedcl/host_pool.h>

typedef struct block_image {
    int32_t num_layers, num_blocks;
    size_t k_bytes, v_bytes; /* of a block in one layer; v_bytes 0: V lies in K */
    size_t block_bytes;
    unsigned char *bytes; /* [num_blocks, num_layers, k_bytes + v_bytes] */
} block_image;

/* An image of num_blocks blocks such as the cache's, all bytes poison. */
block_image block_image_create(const pagedcl_cache *cache, int32_t num_blocks);
void block_image_destroy(block_image *image);

/* Random bytes, save those that fill up a block, which are 0. */
void block_image_randomize(block_image *image, const pagedcl_cache *cache, uint64_t seed);

unsigned char *block_image_at(const block_image *image, int32_t block);

/* Of the device's blocks, as many as the cache has: to free by block_image_destroy. */
block_image block_image_download(pagedcl_cache *cache);

/* To the device, blocking. The image has as many blocks as the cache. */
void block_image_upload(const block_image *image, pagedcl_cache *cache);

/* Asserts that the device holds the same bytes. `name` is the case. */
void block_image_expect(const block_image *image, pagedcl_cache *cache, const char *name);

#endif
