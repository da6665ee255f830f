# SPDX-License-Identifier: Apache-2.0
"""Attention in double precision, one sequence at a time, as attn.h defines it."""

import numpy as np

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}


def attention(q, k, v, *, causal=False, window=(-1, -1), softcap=0.0, slopes=None, scale=None):
    """q [seqlen_q, heads, d], k and v [seqlen_k, kv_heads, d], float64. Returns out, LSE [heads, seqlen_q]."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) * (q.shape[2] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    at = np.arange(len(q))[:, None] + len(k) - len(q)
    key = np.arange(len(k))[None, :]
    if slopes is not None:
        scores -= slopes[:, None, None] * np.abs(at - key)
    hidden = np.zeros((len(q), len(k)), bool)
    if causal:
        hidden |= key > at
    if window[0] >= 0:
        hidden |= key < at - window[0]
    if window[1] >= 0:
        hidden |= key > at + window[1]
    scores[:, hidden] = -np.inf
    top = scores.max(axis=2, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(axis=2, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + np.where(np.isfinite(top), top, 0))[:, :, 0]
    return np.einsum("hqk,khd->qhd", weights / np.where(total == 0, 1, total), v), lse


def rotated(x, cos, sin, positions, interleaved):
    """x [seqlen, heads, d] turned at positions [seqlen]."""
    half = cos.shape[1]
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    cos, sin = cos[positions][:, None, :], sin[positions][:, None, :]
    turned = x.copy()
    turned[..., first] = x[..., first] * cos - x[..., second] * sin
    turned[..., second] = x[..., second] * cos + x[..., first] * sin
    return turned


def tolerance(dtype, v, q=None, k=None, scale=None):
    """What rounding may do to an output: the result's own, and that of weights; with q and k, which were themselves
    rounded, that of every score."""
    unit = UNIT[dtype]
    largest = np.abs(v).max(initial=0.0)
    allowed = 2 * unit * largest + 2e-6 * max(largest, 1.0)
    if q is not None and q.size and k.size:
        group = q.shape[1] // k.shape[1]
        sums = np.einsum("qhd,khd->hqk", np.abs(q), np.repeat(np.abs(k), group, axis=1)).max(initial=0.0)
        allowed += 4 * unit * (q.shape[2] ** -0.5 if scale is None else scale) * sums * largest
    return allowed
