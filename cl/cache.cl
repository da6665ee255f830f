/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What moves rows of a pool: cache_write, cache_gather, cache_copy, cache_wipe. One program, since a compiler takes
 * longer to read what they have in common than to compile them.
 */
#include "cache/copy.h"
#include "cache/gather.h"
#include "cache/wipe.h"
#include "cache/write.h"
