# SPDX-License-Identifier: Apache-2.0
"""PagedCL's attention on a CPU beside PyTorch's scaled_dot_product_attention: the same shapes and threads, in one run.

    PAGEDCL_LIBRARY=build/runtime/libpagedcl.so PYTHONPATH=python python tools/peers/attention_cpu.py

Needs numpy and torch (PyPI's, without CUDA). Runs of the two take turns. Times are from before a call until its result
is there. Bytes are those of each key and value once, operations 4 * head_dim for each query head and pair of a query
and a key that it sees. PyTorch gets contiguous tensors, and of two ways to call it the faster one counts: with
enable_gqa, and with K and V that were repeated for each query head beforehand. PagedCL reads blocks of 16 in shuffled
order.
"""

import argparse
import statistics
import sys
import time

import numpy as np
import pagedcl
import torch
from torch.nn import functional

HEADS, KV_HEADS, BLOCK = 32, 8, 16
DECODE = [(1, 32768), (16, 4096)]
PREFILL = [(4, 512), (1, 2048)]
ALLOWED = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}


def seconds_of(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def by_turns(calls, budget):
    """The seconds of each call, in runs that take turns, after one that does not count."""
    for call in calls:
        call()
    times = [[] for _ in calls]
    end = time.perf_counter() + budget * len(calls)
    while len(times[0]) < 5 or (time.perf_counter() < end and len(times[0]) < 200):
        for call, own in zip(calls, times, strict=True):
            own.append(seconds_of(call))
    return times


def spread(times, amount):
    """Median and quartiles of a rate, in 10^9 a second."""
    low, middle, high = statistics.quantiles([amount / t / 1e9 for t in times], n=4)
    return f"{middle:8.1f} ({low:.1f} to {high:.1f})"


def pool_of(rows, table, device, dtype, head_dim):
    """A pool that holds rows, a pair of [sequences, context, KV heads, head_dim], as the table says."""
    cache = pagedcl.Cache(
        device, num_blocks=table.size, block_size=BLOCK, num_kv_heads=KV_HEADS, head_dim=head_dim, dtype=dtype
    )
    positions = np.arange(rows[0].shape[1])
    slots = (table[:, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK).reshape(-1)
    cache.write(*(x.reshape(-1, KV_HEADS, head_dim) for x in rows), slots)
    return cache


def measure(device, dtype, batch, context, head_dim, prefill, budget):
    torch.manual_seed(1)
    kind = getattr(torch, dtype)
    tokens = context if prefill else 1
    k, v = (torch.randn(batch, context, KV_HEADS, head_dim).to(kind) for _ in range(2))
    q = torch.randn(batch, tokens, HEADS, head_dim).to(kind)
    table = np.random.default_rng(1).permutation(batch * context // BLOCK).astype(np.int32).reshape(batch, -1)
    cache = pool_of((k, v), table, device, dtype, head_dim)
    attention = pagedcl.Attention(device, cache=cache, num_heads=HEADS, causal=True, q_dtype=dtype)
    lengths = [context] * batch
    if prefill:
        plan = attention.plan_varlen([i * context for i in range(batch + 1)], cache_seqlens=lengths, block_table=table)
    else:
        plan = attention.plan_decode(lengths, table)
    rows = q.reshape(-1, HEADS, head_dim)
    out = torch.empty_like(rows)

    heads_first = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    repeated = [heads_first[0], *(x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in heads_first[1:])]

    def attend(tensors, gqa):
        return functional.scaled_dot_product_attention(*tensors, is_causal=prefill, enable_gqa=gqa)

    calls = [
        lambda: plan.run(rows, out=out),
        lambda: attend(heads_first, True),
        lambda: attend(repeated, False),
    ]
    with torch.inference_mode():
        times = by_turns(calls, budget)
        wanted = attend([x.float() for x in repeated], False).transpose(1, 2).reshape(rows.shape)
    error = (out.float() - wanted).abs().max().item()
    if not error < ALLOWED[dtype]:
        sys.exit(f"attention_cpu: {dtype} {batch} x {context}: the results differ by {error}")
    if prefill:
        amount, unit = 4 * head_dim * HEADS * batch * context * (context + 1) / 2, "GFLOP/s"
    else:
        amount, unit = 2 * k.nbytes, "GB/s"
    best = min(times[1:], key=statistics.median)
    name = f"{'prefill' if prefill else 'decode'} {batch} x {context}, {dtype}, head_dim {head_dim}"
    ratio = statistics.median(best) / statistics.median(times[0])
    print(f"{name:44} {spread(times[0], amount):28} {spread(best, amount):28} {unit:8} {ratio:5.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2, help="time for each of three ways and row (2)")
    parser.add_argument("--kind", choices=["decode", "prefill"], help="one of the two alone")
    arguments = parser.parse_args()
    device = pagedcl.Device("cpu")
    print(f"{torch.get_num_threads()} threads; PagedCL on {device.info['device_name']}; torch {torch.__version__}")
    memory = torch.ones(1 << 26)
    rates = [memory.nbytes / seconds_of(memory.sum) / 1e9 for _ in range(7)]
    print(f"torch.sum reads {statistics.median(rates):.1f} GB/s")
    print(f"{'median (quartiles)':44} {'PagedCL':28} {'PyTorch':28} {'':8} ratio")
    for dtype in ALLOWED:
        if arguments.kind != "prefill":
            for batch, context in DECODE:
                measure(device, dtype, batch, context, 128, False, arguments.seconds)
        if arguments.kind != "decode":
            for head_dim in (64, 128):
                for batch, context in PREFILL:
                    measure(device, dtype, batch, context, head_dim, True, arguments.seconds)


if __name__ == "__main__":
    main()
