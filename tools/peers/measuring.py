# SPDX-License-Identifier: Apache-2.0
"""What the scripts of this folder share: the shapes, PagedCL's pool, and times of calls that take turns."""

import statistics
import time

import numpy as np
import pagedcl

HEADS, KV_HEADS, BLOCK = 32, 8, 16
DECODE = [(1, 32768), (16, 4096)]  # sequences and their tokens, head_dim 128
PREFILL = [(4, 512), (1, 2048)]  # head_dim 64 and 128


def seconds_of(call, clock=time.perf_counter):
    begin = clock()
    call()
    return clock() - begin


def by_turns(calls, budget, clock=time.perf_counter, pause=0):
    """The seconds of each call, in runs that take turns, after one that does not count. pause: before each run."""
    for call in calls:
        call()
    times = [[] for _ in calls]
    end = time.perf_counter() + budget * len(calls)
    while len(times[0]) < 5 or (time.perf_counter() < end and len(times[0]) < 200):
        for call, own in zip(calls, times, strict=True):
            time.sleep(pause)
            own.append(seconds_of(call, clock))
    return times


def spread(times, amount):
    """Median and quartiles of a rate, in 10^9 a second."""
    low, middle, high = statistics.quantiles([amount / t / 1e9 for t in times], n=4)
    return f"{middle:8.1f} ({low:.1f} to {high:.1f})"


def shuffled_table(batch, context):
    """A block table of whole blocks in shuffled order, the same every time."""
    return np.random.default_rng(1).permutation(batch * context // BLOCK).astype(np.int32).reshape(batch, -1)


def plan_of(rows, device, dtype, prefill):
    """A plan of causal attention over a pool that holds rows, a pair of [sequences, context, KV heads, head_dim]:
    of all tokens of each sequence, or of its last."""
    batch, context, _, head_dim = rows[0].shape
    table = shuffled_table(batch, context)
    cache = pagedcl.Cache(
        device, num_blocks=table.size, block_size=BLOCK, num_kv_heads=KV_HEADS, head_dim=head_dim, dtype=dtype
    )
    positions = np.arange(context)
    slots = (table[:, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK).reshape(-1)
    cache.write(*(x.reshape(-1, KV_HEADS, head_dim) for x in rows), slots)
    attention = pagedcl.Attention(device, cache=cache, num_heads=HEADS, causal=True, q_dtype=dtype)
    lengths = [context] * batch
    if not prefill:
        return attention.plan_decode(lengths, table)
    return attention.plan_varlen([i * context for i in range(batch + 1)], cache_seqlens=lengths, block_table=table)


def cost_of(batch, context, head_dim, prefill, element_bytes):
    """What a run costs, and the unit of its rate: in decode the bytes of each key and value once, in prefill
    4 * head_dim operations for each query head and pair of a query and a key that it sees."""
    if prefill:
        return 4 * head_dim * HEADS * batch * context * (context + 1) / 2, "GFLOP/s"
    return 2 * batch * context * KV_HEADS * head_dim * element_bytes, "GB/s"


def name_of(batch, context, head_dim, prefill, dtype):
    return f"{'prefill' if prefill else 'decode'} {batch} x {context}, {dtype}, head_dim {head_dim}"


def cells(kind):
    """Of each row: sequences, context, head_dim, and whether it is prefill. kind: of one alone, or None."""
    decode = [(batch, context, 128, False) for batch, context in DECODE]
    prefill = [(batch, context, head_dim, True) for head_dim in (64, 128) for batch, context in PREFILL]
    return (decode if kind != "prefill" else []) + (prefill if kind != "decode" else [])
