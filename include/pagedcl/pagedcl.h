/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PagedCL: paged attention for LLM inference on any OpenCL device.
 *
 * An engine's step:
 *   pagedcl_prefix_seq_create      admit a prompt: share what is cached of it
 *   pagedcl_blocks_append          make room for the new tokens; may name blocks to copy
 *   pagedcl_actions_enqueue        enqueue those copies
 *   pagedcl_plan_varlen / _decode  check and upload the step's batch, once for all layers
 *   pagedcl_attn_run               per layer: store the new keys and values, attend
 *   pagedcl_prefix_record          let the new blocks be found by their tokens
 *
 * docs/embedding.md has the shortest complete program.
 */
#ifndef PAGEDCL_H
#define PAGEDCL_H

#include <pagedcl/actions.h>
#include <pagedcl/attn.h>
#include <pagedcl/blocks.h>
#include <pagedcl/blocks_file.h>
#include <pagedcl/blocks_report.h>
#include <pagedcl/cache.h>
#include <pagedcl/cache_file.h>
#include <pagedcl/device.h>
#include <pagedcl/dtype.h>
#include <pagedcl/host_pool.h>
#include <pagedcl/merge.h>
#include <pagedcl/prefix.h>
#include <pagedcl/program.h>
#include <pagedcl/status.h>
#include <pagedcl/step.h>
#include <pagedcl/swap.h>
#include <pagedcl/tuning.h>
#include <pagedcl/version.h>

#endif
