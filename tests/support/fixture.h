/* SPDX-License-Identifier: Apache-2.0 */
/* The device under test, and memory on it that shows every byte that should not have been touched. */
#ifndef FIXTURE_H
#define FIXTURE_H

#include <pagedcl/attn.h>
#include <pagedcl/device.h>

#include <stdbool.h>

/* The device that the environment variable PAGEDCL_DEVICE names, or the best one. Ends the test when there is none. */
pagedcl_device *fixture_open(void);

/* The tiers that the device can run; how many. */
enum { FIXTURE_MAX_TIERS = 3 };
int fixture_tiers(const pagedcl_device *device, pagedcl_tier tiers[FIXTURE_MAX_TIERS]);

/* pagedcl_attn_create in a tier, or, where that does not serve the operator, in the next simpler one that does. */
pagedcl_status fixture_attn_create(pagedcl_device *device, pagedcl_attn_desc *desc, pagedcl_tier tier,
                                   pagedcl_attn **attn);

/* malloc that ends the test instead of returning NULL; never NULL for 0 bytes. */
void *fixture_alloc(size_t bytes);

/*
 * What memory holds that nobody has written: every byte is 0xff, so an element is NaN in each float dtype and -1 in
 * each integer type.
 */
enum { POISON = 0xff };
void *fixture_poisoned(size_t bytes);

/*
 * A buffer of exactly `bytes` bytes between two poisoned guards: a sub-buffer of a larger one, so that reading past
 * its end finds NaN and writing past its end is seen.
 */
typedef struct guarded {
    cl_mem whole;
    cl_mem mem; /* what the library is given; NULL when bytes is 0 */
    size_t bytes;
    size_t guard;
} guarded;

/* initial: `bytes` bytes, or NULL for poison. */
guarded guarded_create(const pagedcl_device *device, size_t bytes, const void *initial);

/* Waits for the device's own queue, asserts that the guards are intact, and returns a copy of the bytes to free. */
void *guarded_read(const pagedcl_device *device, const guarded *buffer, const char *name);

void guarded_destroy(guarded *buffer);

#endif
