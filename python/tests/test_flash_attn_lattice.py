# SPDX-License-Identifier: Apache-2.0
"""The lattice of FlashAttention's own tests of the two functions, on points drawn by a seed, against double precision.

TEST_SEED draws others, TEST_CASES as many of each function. A name of a test is its point: pytest -k NAME repeats it
under the same TEST_SEED.
"""

import inspect
import os
import random

import numpy as np
import pytest
import reference

import pagedcl

torch = pytest.importorskip("torch")

SEED = int(os.environ.get("TEST_SEED", "1"))
CASES = int(os.environ.get("TEST_CASES", "12"))

COMMON = {
    "dtype": ["float16", "bfloat16"],
    "mha_type": ["mha", "mqa", "gqa"],
    "causal": [False, True],
    "local": [False, True],
    "alibi": [False, True],
}
VARLEN = COMMON | {
    "softcap": [0.0, 50.0],
    "d": [32, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256],
    "seqlens": [(1, 147), (113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (512, 256), (339, 1)],
    "paged_kv_block_size": [None, 16, 256, 512],
}
KVCACHE = COMMON | {
    "num_splits": [1, 0],
    "new_kv": [False, True],
    "seqlen_new_eq_seqlen_q": [True, False],
    "rotary_interleaved": [False, True],
    "rotary_fraction": [0.0, 0.5, 1.0],
    "paged_kv_block_size": [None, 16, 256],
    "has_leftpad": [False, True],
    "has_batch_idx": [False, True],
    "d": [32, 59, 64, 80, 96, 128, 160, 192, 224, 256],
    "seqlens": [(1, 128), (1, 339), (3, 1024), (64, 800), (64, 256), (3, 799), (64, 2048), (16, 4000), (128, 128)],
}


def is_point_of_kvcache(point):
    """The combinations that FlashAttention's test leaves out."""
    paged = point["paged_kv_block_size"] is not None
    seqlen_q, seqlen_k = point["seqlens"]
    return not (
        (seqlen_q > seqlen_k and point["new_kv"])
        or (not point["new_kv"] and point["rotary_fraction"])
        or (paged and (point["has_batch_idx"] or point["has_leftpad"]))
    )


def points(axes, stream, is_point=lambda _: True):
    draw = random.Random(f"{SEED}/{stream}")
    drawn = []
    while len(drawn) < CASES:
        point = {name: draw.choice(values) for name, values in axes.items()}
        if is_point(point):
            drawn.append(pytest.param(point, id="-".join(f"{name}={value}" for name, value in point.items())))
    return drawn


def randn(*shape, dtype):
    return torch.randn(*shape).to(getattr(torch, dtype))


def exact(tensor):
    return tensor.double().numpy()


def heads_of(point):
    return 6, {"mha": 6, "mqa": 1, "gqa": 2}[point["mha_type"]]


def options_of(point, seqlen_k, batch, num_heads):
    """What both the function and the reference are given: window, slopes."""
    window = tuple(torch.randint(0, seqlen_k, (2,)).tolist()) if point["local"] else (-1, -1)
    slopes = torch.rand(batch, num_heads) * 0.3 if point["alibi"] else None
    return window, slopes


def paged(k, v, block_size):
    """Rows [batch, seqlen, heads, d] scattered over a pool three times as large, all else NaN; and their table."""
    batch, seqlen = k.shape[:2]
    blocks = -(-seqlen // block_size)
    table = torch.randperm(3 * batch * blocks)[: batch * blocks].reshape(batch, blocks).to(torch.int32)
    pools = []
    for tensor in (k, v):
        pool = torch.full((3 * batch * blocks, block_size, *tensor.shape[2:]), float("nan"), dtype=tensor.dtype)
        rows = torch.nn.functional.pad(tensor, (0, 0, 0, 0, 0, blocks * block_size - seqlen), value=float("nan"))
        pool[table.flatten().long()] = rows.reshape(-1, *pool.shape[1:])
        pools.append(pool)
    return *pools, table


def rows_of(pool, table, seqlen):
    return pool[table.long()].flatten(1, 2)[:, :seqlen]


@pytest.mark.parametrize("point", points(VARLEN, "varlen"))
def test_varlen(point):
    torch.manual_seed(SEED)
    dtype, d, batch = point["dtype"], point["d"], 3
    num_heads, kv_heads = heads_of(point)
    most_q, most_k = point["seqlens"]
    lens_q = torch.randint(max(0, most_q - 20), most_q + 1, (batch,))
    lens_k = torch.randint(max(0, most_k - 20), most_k + 1, (batch,))
    window, slopes = options_of(point, most_k, batch, num_heads)
    cu_q = torch.nn.functional.pad(lens_q.cumsum(0), (1, 0)).to(torch.int32)
    cu_k = torch.nn.functional.pad(lens_k.cumsum(0), (1, 0)).to(torch.int32)
    q = randn(int(cu_q[-1]), num_heads, d, dtype=dtype)
    keys = [randn(batch, most_k, kv_heads, d, dtype=dtype) for _ in range(2)]
    for tensor in keys:
        for row, length in zip(tensor, lens_k):
            row[length:] = float("nan")
    table = None
    if point["paged_kv_block_size"]:
        k, v, table = paged(*keys, point["paged_kv_block_size"])
    else:
        k, v = (torch.cat([row[:length] for row, length in zip(tensor, lens_k)]) for tensor in keys)
    out, lse, probs = pagedcl.flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, most_q, most_k,
        causal=point["causal"], window_size=window, softcap=point["softcap"], alibi_slopes=slopes,
        return_attn_probs=True, block_table=table,
    )  # fmt: skip
    assert out.shape == q.shape
    assert out.dtype == q.dtype
    assert probs.numel() == 0
    for b in range(batch):
        rows = slice(int(cu_q[b]), int(cu_q[b + 1]))
        q_b, k_b, v_b = exact(q[rows]), exact(keys[0][b, : lens_k[b]]), exact(keys[1][b, : lens_k[b]])
        expected, expected_lse = reference.attention(
            q_b, k_b, v_b, causal=point["causal"], window=window, softcap=point["softcap"],
            slopes=None if slopes is None else exact(slopes[b]),
        )  # fmt: skip
        np.testing.assert_allclose(exact(out[rows]), expected, rtol=0, atol=reference.tolerance(dtype, v_b))
        np.testing.assert_allclose(exact(lse[:, rows]), expected_lse, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("point", points(KVCACHE, "kvcache", is_point_of_kvcache))
def test_kvcache(point):
    torch.manual_seed(SEED)
    dtype, d, batch, interleaved = point["dtype"], point["d"], 2, point["rotary_interleaved"]
    num_heads, kv_heads = heads_of(point)
    seqlen_q, seqlen_k = point["seqlens"]
    window, slopes = options_of(point, seqlen_k, batch, num_heads)
    seqlen_new = seqlen_q if point["seqlen_new_eq_seqlen_q"] else int(torch.randint(1, seqlen_q + 1, ()))
    if not point["new_kv"]:
        seqlen_new = 0
    lengths = torch.randint(0 if point["new_kv"] else 1, seqlen_k - seqlen_new + 1, (batch,), dtype=torch.int32)
    leftpad = None
    if point["has_leftpad"]:
        leftpad = torch.stack([torch.randint(0, int(length) + 1, ()) for length in lengths]).to(torch.int32)
    batch_cache = 2 * batch if point["has_batch_idx"] else batch
    index = torch.randperm(batch_cache)[:batch].to(torch.int32) if point["has_batch_idx"] else None
    q = randn(batch, seqlen_q, num_heads, d, dtype=dtype)
    k_new, v_new = (randn(batch, seqlen_new, kv_heads, d, dtype=dtype) for _ in range(2))
    keys = [randn(batch_cache, seqlen_k, kv_heads, d, dtype=dtype) for _ in range(2)]
    row_of = list(range(batch)) if index is None else index.tolist()
    for tensor in keys:
        for b, row in enumerate(row_of):
            tensor[row, int(lengths[b]) :] = float("nan")
            tensor[row, : 0 if leftpad is None else int(leftpad[b])] = float("nan")
    rotary_dim = int(point["rotary_fraction"] * d) // 16 * 16
    cos = sin = None
    if rotary_dim:
        angles = torch.rand(seqlen_k, rotary_dim // 2) * 2 * np.pi
        cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)
    table = None
    k_cache, v_cache = (tensor.clone() for tensor in keys)
    if point["paged_kv_block_size"]:
        k_cache, v_cache, table = paged(*keys, point["paged_kv_block_size"])
    out, lse = pagedcl.flash_attn_with_kvcache(
        q, k_cache, v_cache, k_new if seqlen_new else None, v_new if seqlen_new else None,
        rotary_cos=cos, rotary_sin=sin, cache_seqlens=lengths, cache_batch_idx=index, cache_leftpad=leftpad,
        block_table=table, causal=point["causal"], window_size=window, rotary_interleaved=interleaved,
        alibi_slopes=slopes, num_splits=point["num_splits"], return_softmax_lse=True,
    )  # fmt: skip
    assert out.shape == q.shape
    assert out.dtype == q.dtype
    stored = [k_cache, v_cache] if table is None else [rows_of(pool, table, seqlen_k) for pool in (k_cache, v_cache)]
    for b, row in enumerate(row_of):
        length, first = int(lengths[b]), 0 if leftpad is None else int(leftpad[b])
        q_b, new_b = exact(q[b]), exact(k_new[b])
        if rotary_dim:
            steps = np.arange(seqlen_q) if point["causal"] or point["local"] else np.zeros(seqlen_q, int)
            q_b = reference.rotated(q_b, exact(cos), exact(sin), length + steps, interleaved)
            new_b = reference.rotated(new_b, exact(cos), exact(sin), length + np.arange(seqlen_new), interleaved)
        # What was there stays, NaN included, to the bit; what is new is there, rounded where it was turned.
        for got, before, new in ((stored[0], keys[0], new_b), (stored[1], keys[1], exact(v_new[b]))):
            behind = slice(length + seqlen_new, None)
            kept, expected = (torch.cat([cache[row, :length], cache[row, behind]]) for cache in (got, before))
            torch.testing.assert_close(kept, expected, rtol=0, atol=0, equal_nan=True)
            unit = 2 * reference.UNIT[dtype] if rotary_dim and new is new_b else 0.0
            np.testing.assert_allclose(exact(got[row, length : length + seqlen_new]), new, rtol=unit, atol=4 * unit)
        k_b = np.concatenate([exact(keys[0][row, first:length]), new_b])
        v_b = np.concatenate([exact(keys[1][row, first:length]), exact(v_new[b])])
        expected, expected_lse = reference.attention(
            q_b, k_b, v_b, causal=point["causal"], window=window, slopes=None if slopes is None else exact(slopes[b])
        )
        rounded = (q_b, k_b) if rotary_dim else ()
        allowed = reference.tolerance(dtype, v_b, *rounded)
        np.testing.assert_allclose(exact(out[b]), expected, rtol=0, atol=allowed)
        np.testing.assert_allclose(exact(lse[b]), expected_lse, rtol=1e-5, atol=1e-4 + (allowed if rounded else 0))


SIGNATURES = {
    "flash_attn_varlen_func": (
        "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, "
        "causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, "
        "return_attn_probs=False, block_table=None"
    ),
    "flash_attn_with_kvcache": (
        "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
        "cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, "
        "window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
        "return_softmax_lse=False"
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_are_those_of_flash_attention(name):
    parameters = inspect.signature(getattr(pagedcl, name)).parameters.values()
    assert ", ".join(str(p.replace(annotation=p.empty)).replace(" = ", "=") for p in parameters) == SIGNATURES[name]


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (0, 4)])
def test_nothing_to_do(shape):
    """Sequences without queries, or without keys, and no sequence at all."""
    total_q, total_k = shape
    q, k = torch.ones(total_q, 4, 16), torch.ones(total_k, 2, 16)
    for batch in (1, 0) if shape == (0, 0) else (1,):
        cu_q, cu_k = [0, total_q][: batch + 1], [0, total_k][: batch + 1]
        out, lse, _ = pagedcl.flash_attn_varlen_func(q, k, k, cu_q, cu_k, 3, 4, return_attn_probs=True)
        assert out.shape == q.shape
        assert not out.any()
        assert (lse == -torch.inf).all()


def test_whole_cache_without_lengths():
    q, k, v = torch.randn(2, 1, 4, 16), torch.randn(2, 7, 2, 16), torch.randn(2, 7, 2, 16)
    out = pagedcl.flash_attn_with_kvcache(q, k, v)
    torch.testing.assert_close(pagedcl.flash_attn_with_kvcache(q, k, v, cache_seqlens=7), out)
    expected, _ = reference.attention(exact(q[1]), exact(k[1]), exact(v[1]))
    np.testing.assert_allclose(exact(out[1]), expected, atol=1e-5)
