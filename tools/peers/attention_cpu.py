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

import pagedcl
import torch
from measuring import HEADS, KV_HEADS, by_turns, cells, cost_of, name_of, plan_of, seconds_of, spread
from torch.nn import functional

ALLOWED = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 3e-2}


def measure(device, dtype, shape, budget):
    batch, context, head_dim, prefill = shape
    torch.manual_seed(1)
    kind = getattr(torch, dtype)
    k, v = (torch.randn(batch, context, KV_HEADS, head_dim).to(kind) for _ in range(2))
    q = torch.randn(batch, context if prefill else 1, HEADS, head_dim).to(kind)
    plan = plan_of((k, v), device, dtype, prefill)
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
    amount, unit = cost_of(*shape, k.element_size())
    best = min(times[1:], key=statistics.median)
    ratio = statistics.median(best) / statistics.median(times[0])
    name = name_of(*shape, dtype)
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
        for shape in cells(arguments.kind):
            measure(device, dtype, shape, arguments.seconds)


if __name__ == "__main__":
    main()
