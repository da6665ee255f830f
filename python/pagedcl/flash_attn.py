# SPDX-License-Identifier: Apache-2.0
"""FlashAttention's two functions for inference, on any OpenCL device.

Names, arguments and results are those of FlashAttention 2; float32 is welcome, too, and any head_dim up to 576. A row
that sees no key has output 0 and LSE -infinity (where FlashAttention says +infinity). There is no backward pass.

Operators, plans and pools are kept for the next call of the same shape, each thread its own. Host tensors are used
where they are when the device shares the host's memory; else they are uploaded, and results downloaded.
"""

from __future__ import annotations

import ctypes
import math
import numbers
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, Callable, Optional, Union

import numpy as np

from . import _library
from ._library import lib
from .arrays import DeviceArray, View, int_array, is_pyopencl, is_torch, rounded, view
from .attn import Attention, Plan, empty_like
from .cache import Cache, as_rows
from .device import Device, default_device, device_of_queue
from .errors import UnsupportedError
from .staging import Staging

# With more query tokens a sequence than this, rows that share what they read of the keys pay: varlen, not decode.
_MOST_DECODE_TOKENS = 8
# The library's most.
_MOST_SPLITS = 256
# Layouts kept by a thread; each has an operator, a plan and, with a cache, a pool.
_MOST_KEPT = 64
# Where host memory is copied, a pool keeps the device memory of its last call: not more than this.
_MOST_BYTES_KEPT = 1 << 28


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,  # noqa: ARG001 (results always are)
    return_attn_probs: bool = False,
    block_table: Any = None,
) -> Any:
    """Attention of sequences of any lengths, packed one behind the other.

    q: [total_q, num_heads, head_dim]; sequence b owns rows cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1.
    k, v: [total_k, num_kv_heads, head_dim], likewise by cu_seqlens_k; with a block_table [batch, blocks] a paged pool,
        [num_blocks, block_size, num_kv_heads, head_dim], from which sequence b reads its cu_seqlens_k[b + 1] -
        cu_seqlens_k[b] tokens.
    max_seqlen_q, max_seqlen_k: taken for compatibility; lengths come from cu_seqlens.
    softmax_scale: default 1 / sqrt(head_dim). causal: aligned to the bottom right. window_size: (left, right),
        inclusive, -1 for unbounded. softcap: 0 for none. alibi_slopes: float32 [num_heads] or [batch, num_heads].

    Returns out [total_q, num_heads, head_dim] of q's kind and dtype; with return_attn_probs (out, softmax_lse, S),
    where softmax_lse is float32 [num_heads, total_q] and S empty, as FlashAttention's is without dropout.
    """
    del max_seqlen_q, max_seqlen_k
    if dropout_p:
        raise UnsupportedError.of(f"dropout_p is {dropout_p}: PagedCL is for inference, give 0")
    q_view, k_view, v_view = as_rows(q, "q"), view(k, "k"), view(v, "v")
    dtype = _common_dtype(q=q_view, k=k_view, v=v_view)
    cu_q = int_array(cu_seqlens_q, "cu_seqlens_q").reshape(-1)
    cu_k = int_array(cu_seqlens_k, "cu_seqlens_k").reshape(-1)
    if len(cu_q) != len(cu_k) or not len(cu_q):
        raise ValueError(f"cu_seqlens_q and cu_seqlens_k must have batch + 1 entries, not {len(cu_q)} and {len(cu_k)}")
    _check_rows("cu_seqlens_q", cu_q, "q", q_view)
    batch = len(cu_q) - 1
    device = _device_of(q, k, v)
    call = _Call(q, device, batch, dtype, causal, window_size, softcap, softmax_scale, alibi_slopes, paths="varlen")
    if block_table is None:
        k_view, v_view = as_rows(k, "k"), as_rows(v, "v")
        _check_heads(q_view.shape[1:], k_view.shape[1:], v_view.shape[1:])
        _check_rows("cu_seqlens_k", cu_k, "k", k_view)
        _check_rows("cu_seqlens_k", cu_k, "v", v_view)
        call.tensors = {"q": q_view, "k": k_view, "v": v_view}
        call.plan = lambda plan: plan.varlen(cu_q, cu_k)
    else:
        _check_pool(k_view, v_view, q_view.shape[1:])
        table, lengths = int_array(block_table, "block_table"), np.diff(cu_k)
        call.tensors = {"q": q_view}
        call.pool = (k_view, v_view)
        call.plan = lambda plan: plan.varlen(cu_q, block_table=table, cache_seqlens=lengths)
    out, lse = call.run((q_view.shape[0], q_view.shape[1], v_view.shape[-1]), return_attn_probs)
    if not return_attn_probs:
        return out
    return out, _transposed(lse, (q_view.shape[0], q_view.shape[1])), empty_like(q, (0,), dtype, call.device)


def flash_attn_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Union[int, Any, None] = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Any = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Any = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention over a KV cache, into which new keys and values are stored first, in place.

    q: [batch, seqlen_q, num_heads, head_dim].
    k_cache, v_cache: [batch_cache, seqlen_cache, num_kv_heads, head_dim], or with a block_table [batch, blocks] a paged
        pool, [num_blocks, block_size, num_kv_heads, head_dim], of any block size.
    k, v: [batch, seqlen_new, num_kv_heads, head_dim], stored behind cache_seqlens.
    rotary_cos, rotary_sin: [positions, rotary_dim / 2], turn k, and q: with causal or a window at positions
        cache_seqlens, cache_seqlens + 1, ..., without at cache_seqlens alone.
    cache_seqlens: int32 [batch] or an int, the lengths before the append; None: the whole cache.
    cache_batch_idx: [batch], the cache's rows to use. cache_leftpad: [batch], where a row's tokens begin. Neither goes
        with a block_table.
    softmax_scale, causal, window_size, softcap, alibi_slopes: as in flash_attn_varlen_func.
    num_splits: parts that a sequence's keys are cut into, at most; 0: parts of a fixed length.

    Returns out [batch, seqlen_q, num_heads, head_dim] of q's kind and dtype; with return_softmax_lse (out,
    softmax_lse), float32 [batch, num_heads, seqlen_q].
    """
    q_view, cache_k, cache_v = view(q, "q"), view(k_cache, "k_cache"), view(v_cache, "v_cache")
    if len(q_view.shape) != 4:
        raise ValueError(f"q must have the shape [batch, seqlen_q, num_heads, head_dim], not {list(q_view.shape)}")
    batch, seqlen_q, num_heads, _ = q_view.shape
    if not seqlen_q:
        raise ValueError("seqlen_q is 0: every sequence needs a query token")
    _check_pool(cache_k, cache_v, q_view.shape[2:])
    if (k is None) != (v is None):
        raise ValueError("k and v go together")
    new = None if k is None else (view(k, "k"), view(v, "v"))
    seqlen_new = _check_new(new, batch, cache_k, cache_v)
    dtype = _common_dtype(q=q_view, k_cache=cache_k, v_cache=cache_v, k=new and new[0], v=new and new[1])
    if new is not None and cache_seqlens is None:
        raise ValueError("with k and v, cache_seqlens must say where they go")
    rows = _CacheRows.find(
        cache_k, cache_v, batch, seqlen_new, cache_seqlens, cache_batch_idx, cache_leftpad, block_table
    )

    rotary = None
    if rotary_cos is not None or rotary_sin is not None:
        if rotary_cos is None or rotary_sin is None or new is None:
            raise ValueError("rotary_cos and rotary_sin go together, and with k and v")
        rotary = (_host_float32(rotary_cos, "rotary_cos"), _host_float32(rotary_sin, "rotary_sin"))
        steps = np.arange(seqlen_q) if causal or _window(window_size) != (-1, -1) else np.zeros(seqlen_q, np.int64)
        _check_rotary(rotary, q_view.shape[3], int(rows.positions.max(initial=0)) + max(seqlen_new, int(steps[-1]) + 1))
        # The library turns a query at its key's position, row by row.
        is_as_in_the_library = seqlen_new == seqlen_q == steps[-1] + 1 and rows.first is None
        if not is_as_in_the_library:
            q_view = _rotated(q_view, rotary, rows.positions[:, None] + steps, rotary_interleaved)
            new_positions = rows.positions[:, None] + np.arange(seqlen_new)
            new = (_rotated(new[0], rotary, new_positions, rotary_interleaved), new[1])
            rotary = None

    decode = seqlen_q <= _MOST_DECODE_TOKENS or (new is not None and seqlen_new != seqlen_q)
    path = "decode" if decode else "varlen"
    device = _device_of(q, k_cache, v_cache, k, v)
    call = _Call(q, device, batch, dtype, causal, window_size, softcap, softmax_scale, alibi_slopes, paths=path)
    call.tensors = {"q": _merged(q_view)}
    if new is not None:
        call.tensors |= {"k_new": _merged(new[0]), "v_new": _merged(new[1])}
    call.pool = (rows.k, rows.v)
    call.rotary, call.rotary_interleaved = rotary, rotary_interleaved
    if decode:
        splits = min(max(int(num_splits), 0), _MOST_SPLITS)
        call.plan = lambda plan: plan.decode(
            rows.lengths, rows.table, seqlen_q=seqlen_q, seqlen_new=seqlen_new, num_splits=splits
        )
    else:
        cu_q = int_array(np.arange(batch + 1) * seqlen_q, "batch * seqlen_q")
        call.plan = lambda plan: plan.varlen(
            cu_q, block_table=rows.table, cache_seqlens=rows.lengths + seqlen_new, append=new is not None
        )
    out, lse = call.run((batch, seqlen_q, num_heads, cache_v.shape[3]), return_softmax_lse)
    return (out, _transposed(lse, (batch, seqlen_q, num_heads))) if return_softmax_lse else out


# ---- what is given ----


def _common_dtype(**tensors: Optional[View]) -> str:
    dtypes = {name: tensor.dtype for name, tensor in tensors.items() if tensor is not None}
    first = dtypes["q"]
    if first not in ("float16", "bfloat16", "float32") or set(dtypes.values()) != {first}:
        found = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        raise ValueError(f"the tensors must all be float16, all bfloat16 or all float32, not {found}")
    return first


def _check_rows(name: str, cu_seqlens: np.ndarray, tensor_name: str, tensor: View) -> None:
    if cu_seqlens[-1] > tensor.shape[0]:
        raise ValueError(f"{name} ends with {cu_seqlens[-1]}, but {tensor_name} has {tensor.shape[0]} rows")


def _check_heads(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> None:
    """Of [heads, head_dim] each."""
    if q[1] != k[1] or k[0] != v[0] or not all((*q, *k, *v)) or q[0] % k[0]:
        raise ValueError(
            f"q has {q[0]} heads of {q[1]}, k {k[0]} of {k[1]}, v {v[0]} of {v[1]}: q and k need one head_dim, k and v "
            "as many heads, and q a multiple of them"
        )


def _check_pool(k: View, v: View, q: tuple[int, ...]) -> None:
    if len(k.shape) != 4 or len(v.shape) != 4 or k.shape[:2] != v.shape[:2]:
        raise ValueError(
            "the caches must have the shapes [blocks or batch, tokens, num_kv_heads, head_dim], alike in the first "
            f"two, not {list(k.shape)} and {list(v.shape)}"
        )
    _check_heads(q, k.shape[2:], v.shape[2:])


def _check_new(new: Optional[tuple[View, View]], batch: int, cache_k: View, cache_v: View) -> int:
    """The number of new tokens a sequence."""
    if new is None:
        return 0
    for name, tensor, cache in (("k", new[0], cache_k), ("v", new[1], cache_v)):
        seqlen = new[0].shape[1] if len(new[0].shape) == 4 else -1
        if tensor.shape != (batch, seqlen, *cache.shape[2:]):
            expected = f"[{batch}, {seqlen if seqlen >= 0 else 'seqlen_new'}, {cache.shape[2]}, {cache.shape[3]}]"
            raise ValueError(f"{name} must have the shape {expected}, not {list(tensor.shape)}")
    return new[0].shape[1]


def _window(window_size: Any) -> tuple[int, int]:
    try:
        left, right = (max(int(bound), -1) for bound in window_size)
    except (TypeError, ValueError):
        raise ValueError(f"window_size must be (left, right), -1 for unbounded, not {window_size!r}") from None
    return left, right


def _merged(tensor: View) -> View:
    """[batch, seqlen, heads, head_dim] as [batch * seqlen, heads, head_dim], copied where that is no view."""
    batch, seqlen, heads, head_dim = tensor.shape
    to_batch, token, head, element = tensor.strides
    if seqlen == 1:
        token = to_batch
    if batch > 1 and to_batch != seqlen * token:
        if not tensor.on_host:
            raise ValueError("tensors on the device must have their tokens at equal distances")
        copy = view(np.ascontiguousarray(tensor.numpy()))
        return _merged(replace(copy, dtype=tensor.dtype))
    return as_rows(replace(tensor, shape=(batch * seqlen, heads, head_dim), strides=(token, head, element)), "a tensor")


@dataclass
class _CacheRows:
    """A cache as a pool: whose blocks are the sequences', in which order, and how many tokens they hold."""

    k: View
    v: View
    table: np.ndarray  # [batch, blocks]
    lengths: np.ndarray  # [batch], before the append
    positions: np.ndarray  # [batch], what the next token's position is called
    first: Optional[np.ndarray]  # [batch], leftpad

    @classmethod
    def find(cls, k, v, batch, seqlen_new, cache_seqlens, cache_batch_idx, cache_leftpad, block_table) -> _CacheRows:
        if block_table is not None:
            if cache_batch_idx is not None or cache_leftpad is not None:
                raise ValueError("a paged cache goes with neither cache_batch_idx nor cache_leftpad")
            table = int_array(block_table, "block_table")
            if table.ndim != 2 or table.shape[0] != batch:
                raise ValueError(f"block_table must have the shape [{batch}, blocks], not {list(table.shape)}")
            capacity = table.shape[1] * k.shape[1]
        else:
            rows = np.arange(batch) if cache_batch_idx is None else cache_batch_idx
            table = int_array(rows, "cache_batch_idx").reshape(-1, 1)
            if len(table) != batch:
                raise ValueError(f"cache_batch_idx must have {batch} entries, not {len(table)}")
            if table.min(initial=0) < 0 or table.max(initial=-1) >= k.shape[0]:
                named = f"batch is {batch}" if cache_batch_idx is None else f"cache_batch_idx is {rows}"
                raise ValueError(f"{named}, but the cache has {k.shape[0]} rows")
            capacity = k.shape[1]
        if cache_seqlens is None:
            cache_seqlens = capacity
        if isinstance(cache_seqlens, numbers.Integral):
            cache_seqlens = [cache_seqlens] * batch
        lengths = int_array(cache_seqlens, "cache_seqlens").reshape(-1)
        if len(lengths) != batch:
            raise ValueError(f"cache_seqlens must have {batch} entries, not {len(lengths)}")
        if block_table is None and lengths.max(initial=0) + seqlen_new > capacity:
            raise ValueError(
                f"cache_seqlens {lengths.tolist()} and {seqlen_new} new tokens go beyond a row of {capacity} tokens"
            )
        if cache_leftpad is None:
            return cls(k, v, table, lengths, lengths, None)
        first = int_array(cache_leftpad, "cache_leftpad").reshape(-1)
        return cls(k, v, table, lengths, lengths, first)._from_leftpad(seqlen_new)

    def _from_leftpad(self, seqlen_new: int) -> _CacheRows:
        """Rows that begin anywhere: a pool of single tokens."""
        batch, capacity = len(self.lengths), self.k.shape[1]
        if len(self.first) != batch or (self.first < 0).any() or (self.first > self.lengths).any():
            raise ValueError(f"cache_leftpad must have {batch} entries from 0 to cache_seqlens")
        row = self.table * capacity + self.first[:, None]
        counts = self.lengths - self.first + seqlen_new
        steps = np.arange(counts.max(initial=1), dtype=np.int32)
        table = int_array(np.where(steps < counts[:, None], row + steps, -1), "the cache's tokens")
        lengths = self.lengths - self.first
        return replace(self, k=self._tokens(self.k), v=self._tokens(self.v), table=table, lengths=lengths)

    @staticmethod
    def _tokens(cache: View) -> View:
        batch, capacity, heads, head_dim = cache.shape
        to_batch, token, head, element = cache.strides
        if batch > 1 and to_batch != capacity * token:
            raise ValueError("with cache_leftpad the rows of a cache must lie one behind the other")
        return replace(cache, shape=(batch * capacity, 1, heads, head_dim), strides=(token, token, head, element))


# ---- rotary embedding ----


def _host_float32(tensor: Any, name: str) -> np.ndarray:
    if is_pyopencl(tensor):
        tensor = tensor.get()
    elif isinstance(tensor, DeviceArray):
        tensor = tensor.numpy()
    table = view(tensor, name)
    if len(table.shape) != 2 or table.dtype not in ("float16", "bfloat16", "float32"):
        raise ValueError(f"{name} must be float16, bfloat16 or float32 [positions, rotary_dim / 2]")
    return np.ascontiguousarray(table.float32())


def _check_rotary(rotary: tuple[np.ndarray, np.ndarray], head_dim: int, positions: int) -> None:
    cos, sin = rotary
    if cos.shape != sin.shape or 2 * cos.shape[1] > head_dim or cos.shape[0] < positions:
        raise ValueError(
            f"rotary_cos and rotary_sin must be alike, with at least {positions} positions and at most {head_dim} / 2 "
            f"columns, not {list(cos.shape)} and {list(sin.shape)}"
        )


def _rotated(tensor: View, rotary: tuple[np.ndarray, np.ndarray], positions: np.ndarray, interleaved: bool) -> View:
    """[batch, seqlen, heads, head_dim] turned at positions [batch, seqlen]."""
    if not tensor.on_host:
        raise UnsupportedError.of(
            "on the device, q is turned at its keys' positions: with rotary tables give as many new tokens as query "
            "tokens, causal or a window, and no cache_leftpad"
        )
    cos, sin = (table[positions][:, :, None, :] for table in rotary)
    half = cos.shape[-1]
    values = tensor.float32()
    x, y = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    turned = values.copy()
    turned[..., x] = values[..., x] * cos - values[..., y] * sin
    turned[..., y] = values[..., y] * cos + values[..., x] * sin
    return rounded(turned, tensor.dtype)


# ---- the call ----


class _Kept(threading.local):
    """Operators, plans and pools of a thread; the least recently used go first."""

    def __init__(self) -> None:
        self.items: OrderedDict[Any, Any] = OrderedDict()

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self.items:
            self.items[key] = make()
            if len(self.items) > _MOST_KEPT:
                self.items.popitem(last=False)
        self.items.move_to_end(key)
        return self.items[key]


_kept = _Kept()


@dataclass
class _Operator:
    attention: Attention
    plan: Plan
    pool: Optional[Cache]


def _device_of(*tensors: Any) -> Device:
    """That of the first device tensor, a pyopencl array's by its queue; the default device when all are the host's."""
    for tensor in tensors:
        if isinstance(tensor, DeviceArray):
            return tensor.device
        if is_pyopencl(tensor):
            if tensor.queue is None:
                raise ValueError("a pyopencl array needs a queue: give it one by with_queue")
            return device_of_queue(tensor.queue)
    return default_device()


class _Call:
    """One run of an operator: what it is given, and the operator that it needs."""

    def __init__(
        self, q, device, batch, dtype, causal, window_size, softcap, softmax_scale, alibi_slopes, *, paths
    ) -> None:
        self.q = q
        self.batch = batch
        if softmax_scale == 0:
            raise ValueError("softmax_scale is 0, for which no key differs from another: give None for the default")
        self.device = device
        self.dtype = dtype
        self.alibi_slopes = alibi_slopes
        self.softmax_scale = softmax_scale
        self.options: dict[str, Any] = {
            "causal": bool(causal),
            "window": _window(window_size),
            "softcap": float(softcap),
            "alibi": alibi_slopes is not None,
            "paths": paths,
        }
        self.tensors: dict[str, View] = {}
        self.pool: Optional[tuple[View, View]] = None
        self.rotary: Optional[tuple[np.ndarray, np.ndarray]] = None
        self.rotary_interleaved = False
        self.plan: Callable[[Plan], Plan]

    def run(self, shape: tuple[int, ...], with_lse: bool) -> tuple[Any, Any]:
        """out of q's kind in that shape, and LSE, float32 [rows, num_heads], or None."""
        out = empty_like(self.q, shape, self.dtype, self.device)
        num_rows, num_heads, _ = self.tensors["q"].shape
        lse = empty_like(self.q, (num_rows, num_heads), "float32", self.device) if with_lse else None
        if not num_rows or not shape[0]:
            return out, lse
        out_rows = view(out)
        out_rows = _merged(out_rows) if len(shape) == 4 else out_rows
        with Staging(self.device, self.device.queue) as staging:
            for tensor in self.tensors.values():
                staging.add(tensor)
            for tensor in self.pool or ():
                if not tensor.writable and "k_new" in self.tensors:
                    raise ValueError("the caches must be writable")
                staging.add(tensor, written="k_new" in self.tensors)
            staging.add(out_rows, written=True, read=False)
            args = _library.AttnArgs()
            flat = self._flat(staging)
            if with_lse:
                flat["lse"] = staging.add(view(lse), written=True, read=False)
            staging.upload()
            operator = self._operator(staging, flat)
            self.plan(operator.plan)
            for name, tensor in self.tensors.items():
                setattr(args, name, staging.tensor(tensor))
            args.out = staging.tensor(out_rows)
            for name, tensor in flat.items():
                setattr(args, name, staging.mem(tensor))
                setattr(args, "alibi_offset" if name == "alibi_slopes" else f"{name}_offset", staging.offset(tensor))
            if "alibi_slopes" in flat and len(flat["alibi_slopes"].shape) == 2:
                args.alibi_seq_stride = num_heads
            if self.rotary is not None:
                args.rotary_positions = len(self.rotary[0])
            attention, plan = operator.attention._handle, operator.plan._handle
            lib.attn_run(attention, None, plan, ctypes.byref(args), 0, None, None)
            staging.download()
        return out, lse

    def _flat(self, staging: Staging) -> dict[str, View]:
        """The float32 tensors beside q, k and v."""
        flat = {}
        if self.alibi_slopes is not None:
            slopes, heads = view(self.alibi_slopes, "alibi_slopes"), self.tensors["q"].shape[1]
            if slopes.dtype != "float32" or slopes.shape not in ((heads,), (self.batch, heads)):
                raise ValueError(
                    f"alibi_slopes must be float32 [{heads}] or [{self.batch}, {heads}], "
                    f"not {slopes.dtype} {list(slopes.shape)}"
                )
            if not slopes.is_contiguous_from(0):
                slopes = view(np.ascontiguousarray(slopes.numpy()))
            flat["alibi_slopes"] = staging.add(slopes)
        if self.rotary is not None:
            flat["rotary_cos"], flat["rotary_sin"] = (staging.add_copy(table) for table in self.rotary)
        return flat

    def _operator(self, staging: Staging, flat: dict[str, View]) -> _Operator:
        """The operator for this layout, whose pool is in the buffers of this call."""
        _, num_heads, head_dim = self.tensors["q"].shape
        scale = self.softmax_scale
        self.options["softmax_scale"] = 1 / math.sqrt(head_dim) if scale is None else float(scale)
        self.options["rotary_dim"] = 2 * flat["rotary_cos"].shape[1] if self.rotary is not None else 0
        self.options["rotary_interleaved"] = self.rotary is not None and self.rotary_interleaved
        layout: Any = (self.tensors["v"].shape[1:] if self.pool is None else None,)
        if self.pool is not None:
            layout = tuple((t.shape, t.strides, staging.offset(t)) for t in self.pool)
        key = (self.device._handle, self.dtype, num_heads, head_dim, layout, *self.options.values())

        def make() -> _Operator:
            dimensions: dict[str, Any] = {}
            if self.pool is None:
                kv_heads, head_dim_v = self.tensors["v"].shape[1:]
                dimensions = {"num_kv_heads": kv_heads, "head_dim": head_dim, "head_dim_v": head_dim_v}
            else:
                dimensions = {"cache": Cache._on_buffers(self.device, staging, [self.pool[0]], [self.pool[1]])}
            attention = Attention(
                self.device, num_heads=num_heads, q_dtype=self.dtype, kv_dtype=self.dtype, **dimensions, **self.options
            )
            return _Operator(attention, attention.plan(), dimensions.get("cache"))

        operator = _kept.get(key, make)
        if operator.pool is not None:
            operator.pool._set_buffers(staging, [self.pool[0]], [self.pool[1]])
            if not self.device.shares_host_memory and operator.pool.nbytes > _MOST_BYTES_KEPT:
                _kept.items.pop(key)
        return operator


def _transposed(lse: Any, shape: tuple[int, ...]) -> Any:
    """[..., seqlen, heads] as [..., heads, seqlen], contiguous."""
    if isinstance(lse, DeviceArray):
        if math.prod(shape) != shape[0] * shape[-1] or len(shape) == 2:
            raise UnsupportedError.of("LSE of a DeviceArray: use Plan.run, which gives [rows, heads]")
        lse.shape = (*shape[:-2], shape[-1], shape[-2])
        return lse
    lse = lse.reshape(shape)
    if is_torch(lse):
        return lse.transpose(-1, -2).contiguous()
    return lse.transpose((*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)).copy()
