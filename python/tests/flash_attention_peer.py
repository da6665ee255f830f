# SPDX-License-Identifier: Apache-2.0
"""Runs FlashAttention's own tests on PagedCL: the forward checks of tests/test_flash_attn.py of a clone of it.

    python flash_attention_peer.py CLONE [--sample N] [--seed S] [--seconds T] [PYTEST'S ARGUMENTS]

CLONE may be its unpacked source distribution as well: `python/check flash-attention` fetches that. The file is taken
as it is but for the import, the device and the backward pass: `flash_attn` is PagedCL's functions, "cuda" is "cpu", and
what computes or compares gradients is left out: PagedCL has none. Dropout is skipped. Where torch has a GPU, "cuda"
remains, for the references' sake, and PagedCL is given copies in host memory.

--sample: of each test that many points, drawn by the seed, in place of all, which are some hundred thousand.
--seconds: begin no other point after that time. The points of all tests are mixed, so that each test has some.
"""

import argparse
import ast
import collections
import importlib.util
import math
import os
import pathlib
import random
import re
import sys
import time
import types

import numpy as np
import pytest
import torch

import pagedcl

GRADIENT = re.compile(r"d(q|k|v|kv|qkv)(_(ref|pt|unpad|atol|equal)|\d)?$")
FUNCTIONS = re.compile(r"flash_attn_(\w+_)?(func|with_kvcache)$")
LEFT_OUT = ("_bwd_", "_deterministic", "_overflow")
HAS_CUDA = torch.cuda.is_available()


def or_skip(function, *arguments, written=(), **options):
    """What PagedCL does not support is skipped, with its own words; gradients are not asked for.

    written: the arguments that the function writes into.
    """

    def moved(value, device):
        return value.to(device) if isinstance(value, torch.Tensor) else value

    host = [moved(value, "cpu") for value in arguments]
    host_options = {name: moved(value, "cpu") for name, value in options.items()}
    try:
        with torch.no_grad():
            result = function(*host, **host_options)
            for index in written:
                arguments[index].copy_(host[index])
    except pagedcl.UnsupportedError as error:
        pytest.skip(error.message)
    device = arguments[0].device
    return tuple(moved(value, device) for value in result) if isinstance(result, tuple) else result.to(device)


def varlen(*arguments, **options):
    return or_skip(pagedcl.flash_attn_varlen_func, *arguments, **options)


def varlen_kvpacked(q, kv, *arguments, **options):
    return varlen(q, kv[:, 0], kv[:, 1], *arguments, **options)


def varlen_qkvpacked(qkv, cu_seqlens, max_seqlen, *arguments, **options):
    q, k, v = qkv.unbind(1)
    return varlen(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *arguments, **options)


def fixed(q, k, v, *arguments, **options):
    """Sequences of one length."""
    (batch, seqlen_q), seqlen_k = q.shape[:2], k.shape[1]
    steps = np.arange(batch + 1)
    rows = (tensor.flatten(0, 1) for tensor in (q, k, v))
    result = varlen(*rows, steps * seqlen_q, steps * seqlen_k, seqlen_q, seqlen_k, *arguments, **options)
    if not isinstance(result, tuple):
        return result.unflatten(0, (batch, seqlen_q))
    out, lse, probs = result
    return out.unflatten(0, (batch, seqlen_q)), lse.unflatten(1, (batch, seqlen_q)).transpose(0, 1), probs


def fixed_kvpacked(q, kv, *arguments, **options):
    return fixed(q, kv[:, :, 0], kv[:, :, 1], *arguments, **options)


def fixed_qkvpacked(qkv, *arguments, **options):
    return fixed(*qkv.unbind(2), *arguments, **options)


def with_kvcache(*arguments, **options):
    return or_skip(pagedcl.flash_attn_with_kvcache, *arguments, written=(1, 2), **options)


def apply_rotary_emb(x, cos, sin, interleaved=False, seqlen_offsets=0):
    """[batch, seqlen, heads, d], batch b turned from position seqlen_offsets[b] on; FlashAttention's is for GPUs."""
    batch, seqlen, _, _ = x.shape
    half = cos.shape[1]
    first = torch.as_tensor(seqlen_offsets, device=x.device).expand(batch).long()
    at = first[:, None] + torch.arange(seqlen, device=x.device)
    cos, sin = cos.float()[at][:, :, None], sin.float()[at][:, :, None]
    a, b = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    values, turned = x.float(), x.float().clone()
    turned[..., a] = values[..., a] * cos - values[..., b] * sin
    turned[..., b] = values[..., b] * cos + values[..., a] * sin
    return turned.to(x.dtype)


def install_flash_attn(clone):
    """`flash_attn` as the tests import it, with the padding functions of the clone."""
    names = {
        "flash_attn": {
            "flash_attn_func": fixed,
            "flash_attn_kvpacked_func": fixed_kvpacked,
            "flash_attn_qkvpacked_func": fixed_qkvpacked,
            "flash_attn_varlen_func": varlen,
            "flash_attn_varlen_kvpacked_func": varlen_kvpacked,
            "flash_attn_varlen_qkvpacked_func": varlen_qkvpacked,
            "flash_attn_with_kvcache": with_kvcache,
        },
        "flash_attn.flash_attn_interface": {"_get_block_size_n": None},  # of dropout, which is skipped
        "flash_attn.layers": {},
        "flash_attn.layers.rotary": {"apply_rotary_emb": apply_rotary_emb},
    }
    for name, members in names.items():
        module = types.ModuleType(name)
        vars(module).update(members, __path__=[])
        sys.modules[name] = module
    spec = importlib.util.spec_from_file_location("flash_attn.bert_padding", clone / "flash_attn" / "bert_padding.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[spec.name] = module


def pretend_cuda():
    """What the tests ask of the GPU, where there is none: one that computes bfloat16, with the host's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    torch.cuda.get_device_capability = lambda *_: (8, 0)
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=memory)


class Forward(ast.NodeTransformer):
    """Calls the CPU the device, and leaves out, of tests, the statements about gradients."""

    def __init__(self):
        self.in_test = False

    def visit_Constant(self, node):
        return ast.copy_location(ast.Constant("cpu"), node) if node.value == "cuda" and not HAS_CUDA else node

    def visit_FunctionDef(self, node):
        self.in_test = node.name.startswith("test_")
        return self.generic_visit(node)

    def generic_visit(self, node):
        is_simple = isinstance(node, ast.stmt) and not hasattr(node, "body")
        about = node.test if isinstance(node, ast.If) else node if is_simple else None
        if self.in_test and about is not None and is_backward(about):
            return ast.copy_location(ast.Pass(), node)
        return super().generic_visit(node)


def is_backward(node):
    nodes = list(ast.walk(node))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return bool(attributes & {"autograd", "backward", "grad"}) or any(GRADIENT.match(name) for name in names)


def axes_of(function):
    """The parametrizations of a test: names, and lists of as many values."""
    axes = []
    for mark in getattr(function, "pytestmark", []):
        names, values = [name.strip() for name in mark.args[0].split(",")], list(mark.args[1])
        axes.append((names, values if len(names) > 1 else [(value,) for value in values]))
    return axes


def point(axes, index):
    """The index-th of all combinations, as one tuple of values."""
    values = []
    for _, choices in axes:
        index, at = divmod(index, len(choices))
        values += choices[at]
    return tuple(values)


def keep(module, sample, seed):
    """Removes tests that are not wanted, and of the others all but a sample of their points. Returns of how many."""
    totals = {}
    tests = {name: value for name, value in vars(module).items() if name.startswith("test_")}
    for name, function in tests.items():
        calls = any(FUNCTIONS.match(used) for used in function.__code__.co_names)
        if not calls or any(part in name for part in LEFT_OUT):
            delattr(module, name)
            continue
        axes = axes_of(function)
        total = math.prod(len(choices) for _, choices in axes)
        totals[name] = total
        if sample and sample < total:
            points = [point(axes, index) for index in random.Random(f"{seed}/{name}").sample(range(total), sample)]
            function.pytestmark = [pytest.mark.parametrize([name for names, _ in axes for name in names], points)]
    return totals


class Peer(pytest.Module):
    """The file, changed as said."""

    def _getobj(self):
        options = self.config.peer
        tree = Forward().visit(ast.parse(self.path.read_text(), str(self.path)))
        module = types.ModuleType("flash_attention_tests")
        exec(compile(ast.fix_missing_locations(tree), str(self.path), "exec"), vars(module))
        self.config.peer_totals = keep(module, options.sample, options.seed)
        return module


class Plugin:
    def __init__(self, file, options):
        self.file, self.options = file, options
        self.end = time.monotonic() + options.seconds
        self.not_run = 0
        self.outcomes = collections.defaultdict(collections.Counter)

    def pytest_configure(self, config):
        config.peer = self.options

    def pytest_collect_file(self, file_path, parent):
        return Peer.from_parent(parent, path=file_path) if file_path == self.file else None

    def pytest_collection_modifyitems(self, items):
        if self.end < math.inf:
            items.sort(key=lambda item: random.Random(f"{self.options.seed}/{item.name}").random())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self):
        if time.monotonic() < self.end:
            return None
        self.not_run += 1
        return True

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or not report.passed:
            self.outcomes[report.location[2].partition("[")[0]][report.outcome] += 1

    def pytest_sessionfinish(self, session, exitstatus):
        if exitstatus == pytest.ExitCode.OK and not any(counts["passed"] for counts in self.outcomes.values()):
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter, config):
        for name, counts in sorted(self.outcomes.items()):
            words = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))
            terminalreporter.write_line(f"{name}, {config.peer_totals[name]} points: {words}")
        if self.not_run:
            terminalreporter.write_line(f"{self.not_run} points not run: {self.options.seconds:g} seconds were over")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("clone", type=pathlib.Path)
    parser.add_argument("--sample", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--seconds", type=float, default=math.inf, metavar="T")
    options, rest = parser.parse_known_args()
    file = (options.clone / "tests" / "test_flash_attn.py").resolve()
    if not file.is_file():
        parser.error(f"{file} is not there: CLONE must be a clone of FlashAttention's repository")
    install_flash_attn(options.clone)
    if not HAS_CUDA:
        pretend_cuda()
    # The folder, and no file by its name: pytest would take the file as it is, too.
    own = ["-p", "no:cacheprovider", "-rs", "-o", "python_files=", "--rootdir", str(file.parent), str(file.parent)]
    sys.exit(pytest.main([*own, *rest], plugins=[Plugin(file, options)]))


if __name__ == "__main__":
    main()
