# SPDX-License-Identifier: Apache-2.0
"""PagedCL's attention on a CPU beside ggml's flash attention: the same shapes and threads, in one run.

    pip install numpy ggml-py
    PAGEDCL_LIBRARY=build/runtime/libpagedcl.so PYTHONPATH=python python tools/peers/attention_ggml.py

PyPI's ggml-py compiles ggml for the processor that it is installed on. Runs of the two take turns. Times are from
before a call until its result is there; with --processor-time they are the processor time of all threads, divided by
their number, which other programs on the machine disturb less. Bytes are those of each key and value once, operations
4 * head_dim for each query head and pair of a query and a key that it sees. ggml gets contiguous tensors, and of two
orders of K and V the faster one counts: tokens of a head one behind the other, and heads of a token. PagedCL reads
blocks of 16 in shuffled order.

Before they are timed some rows of both are compared with attention by its definition in float64, and both with each
other. ggml's sums of float16 values are float16, so that it may be further off.
"""

import argparse
import ctypes
import importlib.util
import os
import pathlib
import statistics
import sys
import time

import numpy as np
import pagedcl
from measuring import HEADS, KV_HEADS, by_turns, cells, cost_of, name_of, plan_of, seconds_of, spread

# Largest errors of results whose values are about 1: of PagedCL, and of ggml.
ALLOWED = {"float32": (1e-4, 2e-3), "float16": (4e-3, 5e-2)}
GGML_TYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1}
PAUSE = 0.005  # seconds, so that threads of the other, which wait for work in a loop, sleep


class InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def open_ggml(folder):
    """The functions of ggml that are needed, from its shared libraries, by their names."""
    base = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
    cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"))
    pointer, number = ctypes.c_void_p, ctypes.c_int
    signatures = [
        (base, "ggml_version", ctypes.c_char_p, []),
        (base, "ggml_init", pointer, [InitParams]),
        (base, "ggml_free", None, [pointer]),
        (base, "ggml_new_tensor_4d", pointer, [pointer, number] + [ctypes.c_int64] * 4),
        (base, "ggml_permute", pointer, [pointer, pointer] + [number] * 4),
        (base, "ggml_get_data", pointer, [pointer]),
        (base, "ggml_flash_attn_ext", pointer, [pointer] * 5 + [ctypes.c_float] * 3),
        (base, "ggml_new_graph", pointer, [pointer]),
        (base, "ggml_build_forward_expand", None, [pointer, pointer]),
        (base, "ggml_backend_graph_compute", number, [pointer, pointer]),
        (cpu, "ggml_backend_cpu_init", pointer, []),
        (cpu, "ggml_backend_cpu_set_n_threads", None, [pointer, number]),
    ]
    functions = {}
    for library, name, result, arguments in signatures:
        functions[name] = getattr(library, name)
        functions[name].restype, functions[name].argtypes = result, arguments
    return functions


class GgmlAttention:
    """One graph of one flash attention. q [sequences, tokens, heads, head_dim], k and v likewise with their heads."""

    def __init__(self, ggml, backend, q, k, v, heads_first):
        self.ggml, self.backend = ggml, backend
        causal = q.shape[1] > 1
        self.context = ggml["ggml_init"](InitParams(2 * (k.nbytes + v.nbytes + 2 * q.nbytes) + (1 << 24), None, False))
        if not self.context:
            sys.exit("attention_ggml: no memory for ggml's tensors")
        tensors = [self._tensor(q, True), self._tensor(k, heads_first), self._tensor(v, heads_first)]
        mask = None
        if causal:
            tokens = q.shape[1]
            sees = np.where(np.tri(tokens, dtype=bool), np.float16(0), np.float16(-np.inf))
            mask = self._fill(sees.reshape(1, 1, tokens, tokens))
        scale = q.shape[-1] ** -0.5
        self.result = ggml["ggml_flash_attn_ext"](self.context, *tensors, mask, scale, 0, 0)
        self.shape = q.shape
        self.graph = ggml["ggml_new_graph"](self.context)
        ggml["ggml_build_forward_expand"](self.graph, self.result)

    def _data(self, tensor, shape, dtype):
        memory = ctypes.c_char * (int(np.prod(shape)) * np.dtype(dtype).itemsize)
        return np.frombuffer(memory.from_address(self.ggml["ggml_get_data"](tensor)), dtype).reshape(shape)

    def _fill(self, values):
        """A tensor that holds them; ggml names its dimensions from the last to the first."""
        tensor = self.ggml["ggml_new_tensor_4d"](self.context, GGML_TYPES[values.dtype], *reversed(values.shape))
        np.copyto(self._data(tensor, values.shape, values.dtype), values)
        return tensor

    def _tensor(self, rows, heads_first):
        """[sequences, heads, tokens, head_dim], in memory in that order or with tokens before heads."""
        if heads_first:
            return self._fill(np.ascontiguousarray(rows.swapaxes(1, 2)))
        return self.ggml["ggml_permute"](self.context, self._fill(rows), 0, 2, 1, 3)

    def run(self):
        if self.ggml["ggml_backend_graph_compute"](self.backend, self.graph) != 0:
            sys.exit("attention_ggml: ggml failed")

    def out(self):
        """As q."""
        return self._data(self.result, self.shape, np.float32)

    def close(self):
        self.ggml["ggml_free"](self.context)


def expected(q, k, v, prefill):
    """Attention of some tokens of the first sequence, in float64: the tokens, and [tokens, heads, head_dim]."""
    context = k.shape[1]
    tokens = sorted({0, context // 2, context - 1}) if prefill else [0]
    out = np.empty((len(tokens), HEADS, q.shape[-1]))
    for row, token in enumerate(tokens):
        seen = token + 1 if prefill else context
        for head in range(HEADS):
            kv_head = head // (HEADS // KV_HEADS)
            scores = k[0, :seen, kv_head].astype(np.float64) @ q[0, token, head].astype(np.float64)
            weights = np.exp((scores - scores.max()) * q.shape[-1] ** -0.5)
            out[row, head] = weights @ v[0, :seen, kv_head].astype(np.float64) / weights.sum()
    return tokens, out


def check(name, ours, theirs, tokens, wanted, dtype):
    """Ends the program unless both are near what is wanted, and all of their rows near each other; ggml's error."""
    errors = [np.abs(out[0, tokens] - wanted).max() for out in (ours, theirs)]
    difference = np.abs(ours - theirs).max()
    for who, error, allowed in zip(("PagedCL", "ggml"), errors, ALLOWED[dtype], strict=True):
        if not error < allowed:
            sys.exit(f"attention_ggml: {name}: the largest error of {who} is {error}")
    if not difference < sum(ALLOWED[dtype]):
        sys.exit(f"attention_ggml: {name}: the results differ by {difference}")
    return errors


def measure(device, ggml, backend, dtype, shape, arguments, threads):
    batch, context, head_dim, prefill = shape
    name = name_of(*shape, dtype)
    random = np.random.default_rng(1)

    def normal(tokens, heads, scale):
        values = random.standard_normal((batch, tokens, heads, head_dim), dtype=np.float32)
        return (scale * values).astype(dtype)

    k, v = normal(context, KV_HEADS, 1), normal(context, KV_HEADS, 1)
    q = normal(context if prefill else 1, HEADS, 4)  # so that few keys matter much, and results are about 1
    plan = plan_of((k, v), device, dtype, prefill)
    rows = q.reshape(-1, HEADS, head_dim)
    out = np.empty_like(rows)
    peers = [GgmlAttention(ggml, backend, q.astype(np.float32), k, v, heads_first) for heads_first in (True, False)]
    calls = [lambda: plan.run(rows, out=out), *(peer.run for peer in peers)]
    for call in calls:
        call()
    tokens, wanted = expected(q, k, v, prefill)
    errors = [check(name, out.reshape(q.shape).astype(np.float32), x.out(), tokens, wanted, dtype) for x in peers]
    clock = (lambda: time.process_time() / threads) if arguments.processor_time else time.perf_counter
    times = by_turns(calls, arguments.seconds, clock, PAUSE)
    amount, unit = cost_of(*shape, k.itemsize)
    best = min(times[1:], key=statistics.median)
    ratio = statistics.median(best) / statistics.median(times[0])
    print(
        f"{name:44} {spread(times[0], amount):28} {spread(best, amount):28} {unit:8} {ratio:5.1f}"
        f"  {errors[0][0]:.0e} {max(error for _, error in errors):.0e}",
        flush=True,
    )
    for peer in peers:
        peer.close()


def ggml_folder():
    """Of the package ggml-py, without loading it."""
    package = importlib.util.find_spec("ggml")
    if package is None:
        sys.exit("attention_ggml: no package ggml: pip install ggml-py, or name a folder with --ggml")
    return pathlib.Path(package.submodule_search_locations[0]) / "lib"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2, help="time for each of three ways and row (2)")
    parser.add_argument("--kind", choices=["decode", "prefill"], help="one of the two alone")
    parser.add_argument("--processor-time", action="store_true", help="of all threads, divided by their number")
    parser.add_argument("--ggml", type=pathlib.Path, metavar="FOLDER", help="of ggml's shared libraries (ggml-py's)")
    arguments = parser.parse_args()
    if arguments.processor_time:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # ggml's threads spin otherwise while they wait
    device = pagedcl.Device("cpu")
    threads = device.info["compute_units"]
    ggml = open_ggml(arguments.ggml or ggml_folder())
    backend = ggml["ggml_backend_cpu_init"]()
    ggml["ggml_backend_cpu_set_n_threads"](backend, threads)
    print(" ".join(["command:", *sys.argv]))
    version = ggml["ggml_version"]().decode()
    print(f"{threads} threads; PagedCL on {device.info['device_name']}; ggml {version}; ", end="")
    memory = np.ones(1 << 26, np.float32)
    rates = [memory.nbytes / seconds_of(memory.sum) / 1e9 for _ in range(7)]
    print(f"one thread of numpy.sum reads {statistics.median(rates):.1f} GB/s")
    print(f"{'median (quartiles)':44} {'PagedCL':28} {'ggml':28} {'':8} ratio  errors of both")
    for dtype in ALLOWED:
        for shape in cells(arguments.kind):
            measure(device, ggml, backend, dtype, shape, arguments, threads)


if __name__ == "__main__":
    main()
