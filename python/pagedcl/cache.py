# SPDX-License-Identifier: Apache-2.0
"""The KV pool of one cache group on the device."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import byref, c_uint64, c_void_p
from typing import Any, Optional

import numpy as np

from . import _library
from ._library import Handle, lib
from .arrays import DTYPES, View, dtype_value, int_array, view
from .device import Device, check_device
from .staging import Staging

_LAYOUTS = {"NHD": 0, "HND": 1}
_PAGE = 4096


def as_rows(tensor: Any, name: str, heads: Optional[int] = None, head_dim: Optional[int] = None) -> View:
    """A tensor [tokens, heads, head_dim] as the library can take it: elements of a head lie together. Copied if not,
    which only host memory can be."""
    rows = view(tensor, name)
    if len(rows.shape) != 3:
        raise ValueError(f"{name} must have the shape [tokens, heads, head_dim], not {list(rows.shape)}")
    if (heads is not None and rows.shape[1] != heads) or (head_dim is not None and rows.shape[2] != head_dim):
        raise ValueError(f"{name} must have the shape [tokens, {heads}, {head_dim}], not {list(rows.shape)}")
    if rows.dtype not in ("float32", "float16", "bfloat16"):
        raise ValueError(f"{name} must be float32, float16 or bfloat16, not {rows.dtype}")
    if rows.is_contiguous_from(2) and all(stride > 0 for stride in rows.strides[:2]):
        return rows
    if not rows.on_host:
        raise ValueError(f"the elements of a head of {name} must lie together on the device")
    copy = view(np.ascontiguousarray(rows.numpy()))
    return View(copy.shape, copy.strides, rows.dtype, copy.address, None, 0, True, copy.owner)


def pool_strides(tensor: View, name: str) -> _library.PoolStrides:
    if len(tensor.shape) != 4:
        raise ValueError(
            f"{name} must have the shape [num_blocks, block_size, num_kv_heads, head_dim], not {list(tensor.shape)}"
        )
    if not tensor.is_contiguous_from(3):
        raise ValueError(f"the elements of a head of {name} must lie together")
    if not tensor.writable:
        raise ValueError(f"{name} must be writable")
    block, token, head, _ = tensor.strides
    return _library.PoolStrides(block=block, token=token, head=head)


class Cache(Handle):
    """A pool of num_blocks blocks of block_size tokens for num_layers layers; see cache.h.

    dtype: "float16", "float32", "bfloat16", "int8", "float8_e4m3", "float8_e5m2", "int4".
    layout: "NHD", a token's heads lie together, or "HND", a head's tokens. v_in_k: V is the front of K (MLA).
    scale_per_row, k_scale, v_scale: of 8-bit dtypes. max_segment_bytes: 0, the device's largest allocation.

    `Cache.adopt` uses tensors of the caller as the pool. A cache must not be used from two threads at once.
    """

    def __init__(
        self,
        device: Device,
        *,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: Any = "float16",
        num_layers: int = 1,
        head_dim_v: int = 0,
        v_in_k: bool = False,
        layout: str = "NHD",
        scale_per_row: bool = False,
        k_scale: float = 0.0,
        v_scale: float = 0.0,
        max_segment_bytes: int = 0,
    ) -> None:
        if layout not in _LAYOUTS:
            raise ValueError(f"layout {layout!r} is none of {', '.join(_LAYOUTS)}")
        self._create(
            device,
            _library.CacheDesc(
                num_layers=num_layers,
                num_blocks=num_blocks,
                block_size=block_size,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                dtype=dtype_value(dtype),
                head_dim_v=head_dim_v,
                v_in_k=int(v_in_k),
                layout=_LAYOUTS[layout],
                scale_per_row=int(scale_per_row),
                k_scale=k_scale,
                v_scale=v_scale,
                max_segment_bytes=max_segment_bytes,
            ),
        )

    @classmethod
    def adopt(cls, device: Device, k: Any, v: Any) -> Cache:
        """The caller's tensors [num_blocks, block_size, num_kv_heads, head_dim] as the pool, without a copy.

        k and v: device tensors, or host tensors where the device shares the host's memory (a GPU that does wants them
        to begin at a page); for several layers lists of them, alike in shape and strides. They stay alive with it.
        Host tensors are up to date behind `synchronize`, which a run with host tensors calls.
        """
        check_device(device)
        keys = [view(tensor, "k") for tensor in (k if isinstance(k, (list, tuple)) else [k])]
        values = [view(tensor, "v") for tensor in (v if isinstance(v, (list, tuple)) else [v])]
        if len(keys) != len(values) or not keys:
            raise ValueError(f"as many K as V are needed, and one at least, not {len(keys)} and {len(values)}")
        tensors = keys + values
        if any(tensor.on_host for tensor in tensors) and not device.shares_host_memory:
            raise ValueError(f"{device.info['device_name']} does not share the host's memory: adopt device tensors")
        if device.info["kind"] != "cpu" and any(t.on_host and t.extent[0] % _PAGE for t in tensors):
            raise ValueError(f"host tensors must begin at a multiple of {_PAGE} bytes: drivers of GPUs copy others")
        staging = Staging(device, device.queue)
        for tensor in tensors:
            staging.add(tensor, written=True)
        staging.upload()
        self = cls._on_buffers(device, staging, keys, values)
        self._staging = staging
        weakref.finalize(self, staging.release)
        return self

    @classmethod
    def _on_buffers(cls, device: Device, staging: Staging, keys: list[View], values: list[View]) -> Cache:
        """The staged tensors as the pool."""
        shape, shape_v = keys[0].shape, values[0].shape
        strides, strides_v = pool_strides(keys[0], "k"), pool_strides(values[0], "v")
        for tensors in (keys, values):
            like = (tensors[0].shape, tensors[0].strides, keys[0].dtype)
            if any((tensor.shape, tensor.strides, tensor.dtype) != like for tensor in tensors):
                raise ValueError("the tensors of all layers must have one shape, one dtype and the same strides")
        if shape[:3] != shape_v[:3]:
            raise ValueError(f"k {list(shape)} and v {list(shape_v)} differ in more than head_dim")
        if keys[0].dtype not in ("float32", "float16", "bfloat16"):
            raise ValueError(f"a caller's pool must be float32, float16 or bfloat16, not {keys[0].dtype}")
        buffers = cls._buffers(staging, keys, values)
        self = cls.__new__(cls)
        self._create(
            device,
            _library.CacheDesc(
                num_layers=len(keys),
                num_blocks=shape[0],
                block_size=shape[1],
                num_kv_heads=shape[2],
                head_dim=shape[3],
                head_dim_v=shape_v[3],
                dtype=DTYPES[keys[0].dtype],
                buffers=ctypes.cast(buffers, ctypes.POINTER(_library.PoolBuffers)),
                k_strides=strides,
                v_strides=strides_v,
            ),
        )
        return self

    @staticmethod
    def _buffers(staging: Staging, keys: list[View], values: list[View]) -> ctypes.Array:
        buffers = (_library.PoolBuffers * len(keys))()
        for buffer, key, value in zip(buffers, keys, values):
            buffer.k, buffer.k_offset = staging.mem(key), staging.offset(key)
            buffer.v, buffer.v_offset = staging.mem(value), staging.offset(value)
        return buffers

    def _set_buffers(self, staging: Staging, keys: list[View], values: list[View]) -> None:
        """Other staged tensors of the same layout as the pool."""
        lib.cache_set_buffers(self._handle, self._buffers(staging, keys, values))

    def _create(self, device: Device, desc: _library.CacheDesc) -> None:
        check_device(device)
        handle = c_void_p()
        lib.cache_create(device._handle, byref(desc), byref(handle))
        self.device = device
        self._handle = handle.value
        self._staging: Optional[Staging] = None
        self._finalizer = weakref.finalize(self, lib.cache_destroy, self._handle)
        came_to = _library.CacheDesc()
        lib.cache_get_desc(self._handle, byref(came_to))
        self.desc = {k: v for k, v in came_to.as_dict().items() if k not in ("buffers", "k_strides", "v_strides")}
        names = {value: name for name, value in DTYPES.items()}
        self.desc["dtype"] = names[came_to.dtype]
        self._bytes_desc = desc

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that the pool takes."""
        value = c_uint64()
        lib.cache_bytes(byref(self._bytes_desc), byref(value))
        return value.value

    def synchronize(self) -> None:
        """Waits, and lets adopted host tensors hold what was written."""
        if self._staging is not None:
            self._staging.download()
        self.device.finish()

    def write(self, k: Any, v: Any, slots: Any, *, layer: int = 0) -> None:
        """Stores row t of k and v [num_slots, num_kv_heads, head_dim] into slot slots[t]; -1 skips the row.

        v: None where V lies in K. Waits when k or v is in host memory.
        """
        heads, head_dim = self.desc["num_kv_heads"], self.desc["head_dim"]
        slots = int_array(slots, "slots", np.int64).reshape(-1)
        rows_k = as_rows(k, "k", heads, head_dim)
        rows_v = None if v is None else as_rows(v, "v", heads, self.desc["head_dim_v"])
        for name, rows in (("k", rows_k), ("v", rows_v)):
            if rows is not None and (rows.shape[0] != len(slots) or rows.dtype != rows_k.dtype):
                raise ValueError(
                    f"{name} must have {len(slots)} rows of {rows_k.dtype}, as there are slots, not {rows.shape[0]} of "
                    f"{rows.dtype}"
                )
        with Staging(self.device, self.device.queue) as staging:
            staging.add(rows_k)
            if rows_v is not None:
                staging.add(rows_v)
            staging.upload()
            tensor_k = staging.tensor(rows_k)
            tensor_v = None if rows_v is None else byref(staging.tensor(rows_v))
            lib.cache_write(
                self._handle,
                None,
                layer,
                byref(tensor_k),
                tensor_v,
                DTYPES[rows_k.dtype],
                slots.ctypes.data,
                len(slots),
                0,
                None,
                None,
            )
            if staging.has_host_memory:
                self.synchronize()

    def gather(self, block_table: Any, seqlens: Any, *, layer: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """The first seqlens[i] tokens of each sequence, packed: K and V as new numpy arrays, bfloat16 as uint16.

        block_table: [num_seqs, blocks]. A quantised pool gives float32.
        """
        table, lengths = int_array(block_table, "block_table"), int_array(seqlens, "seqlens").reshape(-1)
        if table.ndim != 2 or len(table) != len(lengths):
            raise ValueError(f"block_table must have the shape [{len(lengths)}, blocks], not {list(table.shape)}")
        kind = self.desc["dtype"] if DTYPES[self.desc["dtype"]] <= DTYPES["bfloat16"] else "float32"
        total, heads = int(lengths.clip(0).sum(dtype=np.int64)), self.desc["num_kv_heads"]
        k = self.device.empty((total, heads, self.desc["head_dim"]), kind)
        v = self.device.empty((total, heads, self.desc["head_dim_v"]), kind)
        lib.cache_gather(
            self._handle,
            None,
            layer,
            table.ctypes.data,
            table.shape[1],
            lengths.ctypes.data,
            len(lengths),
            byref(_library.Tensor(mem=k.mem)),
            byref(_library.Tensor(mem=v.mem)),
            0,
            None,
            None,
        )
        return k.numpy(), v.numpy()

    def copy_blocks(self, pairs: Any) -> None:
        """Copies whole blocks in all layers: pairs[i] = (source, destination), in that order. Does not wait."""
        pairs = int_array(pairs, "pairs")
        if pairs.size and pairs.shape[1:] != (2,):
            raise ValueError(f"pairs must have the shape [pairs, 2], not {list(pairs.shape)}")
        pairs = pairs.reshape(-1, 2)
        lib.cache_copy_blocks(self._handle, None, pairs.ctypes.data, len(pairs), 0, None, None)

    def wipe_blocks(self, blocks: Any) -> None:
        """Fills whole blocks with zeros in all layers. Does not wait."""
        blocks = int_array(blocks, "blocks").reshape(-1)
        lib.cache_wipe_blocks(self._handle, None, blocks.ctypes.data, len(blocks), 0, None, None)

    def __repr__(self) -> str:
        desc = self.desc
        return f"<pagedcl.Cache {desc['num_blocks']} blocks of {desc['block_size']} tokens, {desc['dtype']}>"
