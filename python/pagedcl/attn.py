# SPDX-License-Identifier: Apache-2.0
"""Attention operators, and plans of a step's batch."""

from __future__ import annotations

import weakref
from ctypes import byref, c_void_p
from typing import Any, Optional

import numpy as np

from . import _library
from ._library import Handle, lib
from .arrays import DTYPES, DeviceArray, View, dtype_value, int_array, is_pyopencl, is_torch, view
from .cache import Cache, as_rows
from .device import Device, check_device, tier_value
from .staging import Staging

_PATHS = {"all": 0, "varlen": 1, "decode": 2}
_DTYPE_NAMES = {value: name for name, value in DTYPES.items()}


def empty_like(tensor: Any, shape: tuple[int, ...], dtype: str, device: Device) -> Any:
    """A new contiguous tensor of the kind that `tensor` is; numpy's for kinds of the host that are not known."""
    if is_torch(tensor):
        import torch

        return torch.empty(shape, dtype=getattr(torch, dtype))
    if is_pyopencl(tensor):
        import pyopencl.array

        kind = tensor.dtype if tensor.dtype.name == dtype else np.dtype(dtype)
        return pyopencl.array.empty(tensor.queue, shape, kind, allocator=tensor.allocator)
    if isinstance(tensor, DeviceArray):
        return device.empty(shape, dtype)
    if dtype == "bfloat16":
        kind = getattr(tensor, "dtype", None)
        if not isinstance(kind, np.dtype):
            raise ValueError("numpy has no bfloat16 for the result: give out")
        return np.empty(shape, kind)
    return np.empty(shape, dtype)


class Attention(Handle):
    """An attention operator: heads, head_dim, dtypes, mask; see attn.h. Making it builds its kernels.

    cache: the pool that keys come from, which gives num_kv_heads, head_dim and kv_dtype; None: packed keys.
    window: (left, right), inclusive, -1 for unbounded. softmax_scale: 0 means 1 / sqrt(head_dim).
    alibi, sinks: runs are given alibi_slopes, sinks. paths: "all", "varlen" or "decode", what plans may be.

    Threads may use an operator at the same time, each with a plan of its own.
    """

    def __init__(
        self,
        device: Device,
        *,
        num_heads: int,
        cache: Optional[Cache] = None,
        num_kv_heads: int = 0,
        head_dim: int = 0,
        head_dim_v: int = 0,
        kv_dtype: Any = None,
        q_dtype: Any = None,
        out_dtype: Any = None,
        softmax_scale: float = 0.0,
        causal: bool = False,
        window: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi: bool = False,
        sinks: bool = False,
        rotary_dim: int = 0,
        rotary_interleaved: bool = False,
        tree: bool = False,
        tier: Optional[str] = None,
        paths: str = "all",
    ) -> None:
        check_device(device)
        if cache is not None and not isinstance(cache, Cache):
            raise TypeError(f"cache must be a pagedcl.Cache, not {cache!r}")
        if paths not in _PATHS:
            raise ValueError(f"paths {paths!r} is none of {', '.join(_PATHS)}")
        try:
            left, right = window
        except (TypeError, ValueError):
            raise ValueError(f"window must be (left, right), -1 for unbounded, not {window!r}") from None
        has_window = (left, right) != (-1, -1)
        desc = _library.AttnDesc(
            cache=cache._handle if cache is not None else None,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            head_dim_v=head_dim_v,
            kv_dtype=dtype_value(kv_dtype),
            q_dtype=dtype_value(q_dtype),
            out_dtype=dtype_value(out_dtype),
            softmax_scale=softmax_scale,
            causal=int(causal),
            has_window=int(has_window),
            window_left=left if has_window else 0,
            window_right=right if has_window else 0,
            softcap=softcap,
            has_alibi=int(alibi),
            has_sinks=int(sinks),
            rotary_dim=rotary_dim,
            rotary_interleaved=int(rotary_interleaved),
            has_tree=int(tree),
            tier=tier_value(tier),
            paths=_PATHS[paths],
        )
        handle = c_void_p()
        lib.attn_create(device._handle, byref(desc), byref(handle))
        self.device = device
        self.cache = cache
        self._handle = handle.value
        weakref.finalize(self, lib.attn_destroy, self._handle)
        came_to = _library.AttnDesc()
        lib.attn_get_desc(self._handle, byref(came_to))
        self.desc: dict[str, Any] = {name: value for name, value in came_to.as_dict().items() if name != "cache"}
        for name in ("kv_dtype", "q_dtype", "out_dtype"):
            self.desc[name] = _DTYPE_NAMES[self.desc[name]]

    def __repr__(self) -> str:
        desc = self.desc
        return f"<pagedcl.Attention {desc['num_heads']} heads of {desc['head_dim']}, {desc['num_kv_heads']} KV heads>"

    def plan(self) -> Plan:
        """An empty plan, for `Plan.varlen` and `Plan.decode`."""
        return Plan(self)

    def plan_varlen(self, cu_seqlens_q: Any, cu_seqlens_k: Any = None, **batch: Any) -> Plan:
        """A new plan of a varlen batch; see `Plan.varlen`."""
        return self.plan().varlen(cu_seqlens_q, cu_seqlens_k, **batch)

    def plan_decode(self, cache_seqlens: Any, block_table: Any, **batch: Any) -> Plan:
        """A new plan of a decode batch; see `Plan.decode`."""
        return self.plan().decode(cache_seqlens, block_table, **batch)


class Plan(Handle):
    """One step's batch: checked and uploaded once, for all layers. Not for two threads at once."""

    def __init__(self, attention: Attention) -> None:
        handle = c_void_p()
        lib.plan_create(attention._handle, byref(handle))
        self.attention = attention
        self._handle = handle.value
        weakref.finalize(self, lib.plan_destroy, self._handle)
        self._num_rows: Optional[int] = None
        self._num_keys = self._num_new = self._num_seqs = 0
        self._queue = attention.device.queue

    def varlen(
        self,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any = None,
        *,
        block_table: Any = None,
        cache_seqlens: Any = None,
        append: bool = False,
        tree_mask: Any = None,
    ) -> Plan:
        """A batch of sequences, of which b owns query rows cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1.

        Packed keys: cu_seqlens_k. Keys in the pool: block_table [num_seqs, blocks], -1 for none, and cache_seqlens, the
        tokens to read, those included that a run with append stores. tree_mask: uint32 words, with `tree`.
        """
        cu_q = int_array(cu_seqlens_q, "cu_seqlens_q").reshape(-1)
        if not len(cu_q):
            raise ValueError("cu_seqlens_q must have num_seqs + 1 entries")
        num_seqs = len(cu_q) - 1
        batch = _library.VarlenBatch(num_seqs=num_seqs, cu_seqlens_q=cu_q.ctypes.data, append=int(append))
        cu_k = table = lengths = tree = None
        if cu_seqlens_k is not None:
            cu_k = int_array(cu_seqlens_k, "cu_seqlens_k").reshape(-1)
            if len(cu_k) != len(cu_q):
                raise ValueError(f"cu_seqlens_k must have {len(cu_q)} entries, as cu_seqlens_q, not {len(cu_k)}")
            batch.cu_seqlens_k = cu_k.ctypes.data
        if block_table is not None:
            table = self._table(block_table, num_seqs)
            batch.block_table, batch.block_table_stride = table.ctypes.data, table.shape[1]
        if cache_seqlens is not None:
            lengths = self._lengths(cache_seqlens, num_seqs)
            batch.cache_seqlens = lengths.ctypes.data
        if tree_mask is not None:
            counts = np.diff(cu_q.astype(np.int64))
            tree = self._tree(tree_mask, int((counts * -(-counts // 32)).sum()))
            batch.tree_mask = tree.ctypes.data
        lib.plan_varlen(self._handle, self._queue, byref(batch))
        self._num_rows, self._num_seqs = int(cu_q[-1]), num_seqs
        self._num_keys = int(cu_k[-1]) if cu_k is not None else 0
        self._num_new = self._num_rows if append else 0
        return self

    def decode(
        self,
        cache_seqlens: Any,
        block_table: Any,
        *,
        seqlen_q: int = 1,
        seqlen_new: int = 0,
        num_splits: int = 0,
        tree_mask: Any = None,
    ) -> Plan:
        """A batch in which every sequence has seqlen_q query tokens, the last of its keys.

        cache_seqlens [num_seqs]: the lengths before the append; with seqlen_new > 0 a run stores as many tokens a
        sequence there first. block_table [num_seqs, blocks]. num_splits: 0, parts of fixed length; -1, the fastest.
        """
        lengths = int_array(cache_seqlens, "cache_seqlens").reshape(-1)
        table = self._table(block_table, len(lengths))
        batch = _library.DecodeBatch(
            num_seqs=len(lengths),
            seqlen_q=seqlen_q,
            seqlen_new=seqlen_new,
            cache_seqlens=lengths.ctypes.data,
            block_table=table.ctypes.data,
            block_table_stride=table.shape[1],
            num_splits=num_splits,
        )
        tree = None
        if tree_mask is not None:
            tree = self._tree(tree_mask, len(lengths) * seqlen_q * -(-seqlen_q // 32))
            batch.tree_mask = tree.ctypes.data
        lib.plan_decode(self._handle, self._queue, byref(batch))
        self._num_rows, self._num_seqs = len(lengths) * seqlen_q, len(lengths)
        self._num_keys, self._num_new = 0, len(lengths) * seqlen_new
        return self

    @staticmethod
    def _tree(tree_mask: Any, num_words: int) -> np.ndarray:
        tree = int_array(tree_mask, "tree_mask", np.uint32).reshape(-1)
        if len(tree) != num_words:
            raise ValueError(f"tree_mask must have {num_words} words, not {len(tree)}")
        return tree

    @staticmethod
    def _table(block_table: Any, num_seqs: int) -> np.ndarray:
        table = int_array(block_table, "block_table")
        if table.ndim != 2 or table.shape[0] != num_seqs:
            raise ValueError(f"block_table must have the shape [{num_seqs}, blocks], not {list(table.shape)}")
        return table

    @staticmethod
    def _lengths(cache_seqlens: Any, num_seqs: int) -> np.ndarray:
        lengths = int_array(cache_seqlens, "cache_seqlens").reshape(-1)
        if len(lengths) != num_seqs:
            raise ValueError(f"cache_seqlens must have {num_seqs} entries, not {len(lengths)}")
        return lengths

    def run(
        self,
        q: Any,
        k: Any = None,
        v: Any = None,
        *,
        k_new: Any = None,
        v_new: Any = None,
        layer: int = 0,
        out: Any = None,
        lse: Any = None,
        alibi_slopes: Any = None,
        sinks: Any = None,
        rotary_cos: Any = None,
        rotary_sin: Any = None,
    ) -> Any:
        """Stores the new keys and values of an appending plan, and attends. Returns out.

        q [T, num_heads, head_dim], T being the plan's query rows. k, v [total_k, num_kv_heads, head_dim]: packed keys.
        k_new, v_new: what an appending plan stores. out [T, num_heads, head_dim_v]: None makes one of q's kind.
        lse: float32 [T, num_heads], to be written. alibi_slopes: float32 [num_heads] or [num_seqs, num_heads]. sinks:
        float32 [num_heads]. rotary_cos, rotary_sin: float32 [positions, rotary_dim / 2].

        With tensors in device memory alone it only enqueues; with host tensors it waits.
        """
        desc, device = self.attention.desc, self.attention.device
        if self._num_rows is None:
            raise ValueError("the plan has no batch: call varlen or decode first")
        if out is None:
            out = empty_like(q, (self._num_rows, desc["num_heads"], desc["head_dim_v"]), desc["out_dtype"], device)
        heads, kv_heads = desc["num_heads"], desc["num_kv_heads"]
        dim, dim_v = desc["head_dim"], desc["head_dim_v"]
        rows = {
            "q": (q, self._num_rows, heads, dim, desc["q_dtype"]),
            "k": (k, self._num_keys, kv_heads, dim, desc["kv_dtype"]),
            "v": (v, self._num_keys, kv_heads, dim_v, desc["kv_dtype"]),
            "k_new": (k_new, self._num_new, kv_heads, dim, desc["q_dtype"]),
            "v_new": (v_new, self._num_new, kv_heads, dim_v, desc["q_dtype"]),
            "out": (out, self._num_rows, heads, dim_v, desc["out_dtype"]),
        }
        args = _library.AttnArgs(layer=layer)
        with Staging(device, self._queue) as staging:
            views = {}
            for name, (tensor, num_rows, num_heads, head_dim, dtype) in rows.items():
                if tensor is not None or name == "q":
                    views[name] = self._rows(tensor, name, num_rows, num_heads, head_dim, dtype)
                    staging.add(views[name], written=name == "out", read=name != "out")
            flat = {}
            for name, tensor in {
                "lse": lse, "alibi_slopes": alibi_slopes, "sinks": sinks,
                "rotary_cos": rotary_cos, "rotary_sin": rotary_sin,
            }.items():  # fmt: skip
                if tensor is not None:
                    flat[name] = self._float32(tensor, name)
                    staging.add(flat[name], written=name == "lse", read=name != "lse")
            self._check_flat(flat)
            staging.upload()
            for name, tensor in views.items():
                setattr(args, name, staging.tensor(tensor))
            for name, tensor in flat.items():
                setattr(args, name, staging.mem(tensor))
                setattr(args, "alibi_offset" if name == "alibi_slopes" else f"{name}_offset", staging.offset(tensor))
            if "alibi_slopes" in flat and len(flat["alibi_slopes"].shape) == 2:
                args.alibi_seq_stride = flat["alibi_slopes"].shape[1]
            if "rotary_cos" in flat:
                args.rotary_positions = flat["rotary_cos"].shape[0]
            lib.attn_run(self.attention._handle, self._queue, self._handle, byref(args), 0, None, None)
            if staging.has_host_memory:
                staging.download()
                if self.attention.cache is not None:
                    self.attention.cache.synchronize()
        return out

    @staticmethod
    def _rows(tensor: Any, name: str, num_rows: int, heads: int, head_dim: int, dtype: str) -> View:
        rows = view(tensor, name) if name == "out" else as_rows(tensor, name, heads, head_dim)
        if rows.shape != (num_rows, heads, head_dim) or rows.dtype != dtype:
            raise ValueError(
                f"{name} must be {dtype} [{num_rows}, {heads}, {head_dim}], not {rows.dtype} {list(rows.shape)}"
            )
        if name == "out" and not (rows.writable and rows.is_contiguous_from(2)):
            raise ValueError("out must be writable, and the elements of a head lie together")
        return rows

    @staticmethod
    def _float32(tensor: Any, name: str) -> View:
        flat = view(tensor, name)
        if flat.dtype != "float32" or not flat.is_contiguous_from(0):
            raise ValueError(f"{name} must be contiguous float32, not {flat.dtype} with strides {list(flat.strides)}")
        return flat

    def _check_flat(self, flat: dict[str, View]) -> None:
        heads, half = self.attention.desc["num_heads"], self.attention.desc["rotary_dim"] // 2
        allowed = {
            "lse": [(self._num_rows, heads)],
            "alibi_slopes": [(heads,), (self._num_seqs, heads)],
            "sinks": [(heads,)],
        }
        if ("rotary_cos" in flat) != ("rotary_sin" in flat):
            raise ValueError("rotary_cos and rotary_sin go together")
        for name, tensor in flat.items():
            if name in allowed and tensor.shape not in allowed[name]:
                shapes = " or ".join(str(list(shape)) for shape in allowed[name])
                raise ValueError(f"{name} must have the shape {shapes}, not {list(tensor.shape)}")
            if name.startswith("rotary") and tensor.shape != (flat["rotary_cos"].shape[0], half):
                raise ValueError(f"{name} must have the shape [positions, {half}], not {list(tensor.shape)}")
