# SPDX-License-Identifier: Apache-2.0
"""The C library: where it is found, its structs and its functions. The headers in include/pagedcl are the reference."""

from __future__ import annotations

import ctypes
import ctypes.util
import operator
import os
import pathlib
import sys
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from .errors import error_for_status

_FILE_NAMES = {"win32": "libpagedcl.dll", "darwin": "libpagedcl.dylib"}


def _load() -> ctypes.CDLL:
    beside = pathlib.Path(__file__).with_name(_FILE_NAMES.get(sys.platform, "libpagedcl.so"))
    chosen = os.environ.get("PAGEDCL_LIBRARY")
    path = chosen or (str(beside) if beside.exists() else ctypes.util.find_library("pagedcl"))
    if not path:
        raise ImportError(
            f"libpagedcl was not found: not at {beside}, nor where the system looks. "
            "Install the wheel (pip install python/), or set PAGEDCL_LIBRARY to the path of the shared library."
        )
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"libpagedcl could not be loaded from {path}: {error}") from error


# The integers that callers choose, with their bounds: ctypes drops the bits that do not fit.
_INTEGERS = {
    c_int32: (-(1 << 31), (1 << 31) - 1),
    c_int64: (-(1 << 63), (1 << 63) - 1),
    c_uint64: (0, (1 << 64) - 1),
}


def integer(value: Any, kind: Any, name: str) -> int:
    """The value as an int that fits the kind."""
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}") from None
    low, high = _INTEGERS[kind]
    if not low <= value <= high:
        raise OverflowError(f"{name} is {value}, which does not fit {8 * ctypes.sizeof(kind)} bits")
    return value


class Handle:
    """What stands for an object of the C library. A copy would outlive it."""

    def __reduce__(self):
        raise TypeError(f"a pagedcl.{type(self).__name__} is a handle of this process: it cannot be copied or pickled")


class Struct(ctypes.Structure):
    """A struct that the caller fills: begins with struct_size where it has one, and is 0 otherwise."""

    def __init_subclass__(cls):
        super().__init_subclass__()
        cls._integers = {name: kind for name, kind, *_ in cls._fields_ if kind in _INTEGERS}

    def __init__(self, **values):
        super().__init__()
        if self._fields_[0][0] == "struct_size":
            self.struct_size = ctypes.sizeof(self)
        for name, value in values.items():
            kind = self._integers.get(name)
            setattr(self, name, value if kind is None else integer(value, kind, name))

    def as_dict(self) -> dict:
        """The fields by name, struct_size left out, strings decoded."""
        fields = {name: getattr(self, name) for name, *_ in self._fields_ if name != "struct_size"}
        return {name: value.decode() if isinstance(value, bytes) else value for name, value in fields.items()}


class DeviceInfo(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("platform_index", c_int32),
        ("device_index", c_int32),
        ("kind", c_int32),
        ("platform_name", ctypes.c_char * 128),
        ("platform_version", ctypes.c_char * 128),
        ("device_name", ctypes.c_char * 128),
        ("vendor", ctypes.c_char * 128),
        ("device_version", ctypes.c_char * 128),
        ("driver_version", ctypes.c_char * 128),
        ("opencl_c_version", ctypes.c_char * 64),
        ("global_memory", c_uint64),
        ("max_allocation", c_uint64),
        ("local_memory", c_uint64),
        ("compute_units", c_uint32),
        ("max_work_group_size", c_uint64),
        ("has_fp16", c_int32),
        ("has_subgroups", c_int32),
        ("usable", c_int32),
        ("tier", c_int32),
        ("tier_reason", ctypes.c_char * 256),
    ]


LogCallback = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p)


class DeviceOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("log", LogCallback),
        ("log_user", c_void_p),
        ("tier", c_int32),
        ("cache_dir", c_char_p),
        ("profiling", c_int32),
        ("tuning", c_char_p),
    ]


class BuildStats(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("compiled", c_int64),
        ("loaded", c_int64),
        ("compile_seconds", c_double),
        ("load_seconds", c_double),
    ]


class PoolStrides(Struct):
    _fields_ = [("block", c_int64), ("token", c_int64), ("head", c_int64)]


class PoolBuffers(Struct):
    _fields_ = [("k", c_void_p), ("k_offset", c_int64), ("v", c_void_p), ("v_offset", c_int64)]


class CacheDesc(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_layers", c_int32),
        ("num_blocks", c_int32),
        ("block_size", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("dtype", c_int32),
        ("max_segment_bytes", c_uint64),
        ("head_dim_v", c_int32),
        ("v_in_k", c_int32),
        ("layout", c_int32),
        ("buffers", POINTER(PoolBuffers)),
        ("k_strides", PoolStrides),
        ("v_strides", PoolStrides),
        ("scale_per_row", c_int32),
        ("k_scale", c_float),
        ("v_scale", c_float),
    ]


class Tensor(Struct):
    _fields_ = [("mem", c_void_p), ("offset", c_int64), ("token_stride", c_int64), ("head_stride", c_int64)]


class AttnDesc(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("cache", c_void_p),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("kv_dtype", c_int32),
        ("q_dtype", c_int32),
        ("out_dtype", c_int32),
        ("softmax_scale", c_float),
        ("causal", c_int32),
        ("tier", c_int32),
        ("head_dim_v", c_int32),
        ("has_window", c_int32),
        ("window_left", c_int32),
        ("window_right", c_int32),
        ("softcap", c_float),
        ("has_alibi", c_int32),
        ("has_sinks", c_int32),
        ("rotary_dim", c_int32),
        ("rotary_interleaved", c_int32),
        ("has_tree", c_int32),
        ("paths", c_int32),
        ("device_tables", c_int32),
    ]


class VarlenBatch(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_seqs", c_int32),
        ("cu_seqlens_q", c_void_p),
        ("cu_seqlens_k", c_void_p),
        ("block_table", c_void_p),
        ("block_table_stride", c_int64),
        ("cache_seqlens", c_void_p),
        ("append", c_int32),
        ("tree_mask", c_void_p),
        ("block_table_mem", c_void_p),
        ("block_table_offset", c_int64),
        ("num_events", c_uint32),
        ("events", c_void_p),
    ]


class DecodeBatch(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_seqs", c_int32),
        ("seqlen_q", c_int32),
        ("seqlen_new", c_int32),
        ("cache_seqlens", c_void_p),
        ("block_table", c_void_p),
        ("block_table_stride", c_int64),
        ("num_splits", c_int32),
        ("tree_mask", c_void_p),
        ("block_table_mem", c_void_p),
        ("block_table_offset", c_int64),
        ("num_events", c_uint32),
        ("events", c_void_p),
        ("share_prefix", c_int32),
    ]


class AttnArgs(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("layer", c_int32),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("k_new", Tensor),
        ("v_new", Tensor),
        ("out", Tensor),
        ("lse", c_void_p),
        ("lse_offset", c_int64),
        ("alibi_slopes", c_void_p),
        ("alibi_offset", c_int64),
        ("alibi_seq_stride", c_int64),
        ("sinks", c_void_p),
        ("sinks_offset", c_int64),
        ("rotary_cos", c_void_p),
        ("rotary_sin", c_void_p),
        ("rotary_cos_offset", c_int64),
        ("rotary_sin_offset", c_int64),
        ("rotary_positions", c_int64),
    ]


class MergeDesc(Struct):
    _fields_ = [("struct_size", c_size_t), ("num_heads", c_int32), ("head_dim", c_int32), ("dtype", c_int32)]


class Partial(Struct):
    _fields_ = [("out", Tensor), ("lse", c_void_p), ("lse_offset", c_int64)]


class BlocksDesc(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_blocks", c_int32),
        ("block_size", c_int32),
        ("num_groups", c_int32),
        ("group_block_sizes", c_void_p),
        ("group_windows", c_void_p),
        ("prefix_cache", c_int32),
        ("wipe", c_int32),
        ("watermark", c_int32),
        ("num_host_blocks", c_int32),
        ("prefix_hash_seed", c_uint64),
    ]


class BlockCopy(Struct):
    _fields_ = [("group", c_int32), ("src", c_int32), ("dst", c_int32)]


_COUNTERS = (
    "total free used shared references peak_used num_seqs num_tokens copies out_of_blocks cached available waiting "
    "unwiped lookups hits lookup_tokens hit_tokens stored evicted host_total host_free host_used num_swapped "
    "swapped_out swapped_in compacted host_unwiped"
)


class BlocksStats(Struct):
    _fields_ = [("struct_size", c_size_t)] + [(name, c_int64) for name in _COUNTERS.split()]


class Prompt(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("tokens", c_void_p),
        ("num_tokens", c_int64),
        ("keys", c_void_p),
        ("num_keys", c_int64),
        ("min_partial", c_int32),
    ]


# What functions end with: num_events, events, event.
_EVENTS = [c_uint32, c_void_p, c_void_p]
_TENSOR = POINTER(Tensor)
_PARTIAL = POINTER(Partial)

# Those that return a pagedcl_status, without their prefix.
_CALLS = {
    "device_list": [c_void_p, c_size_t, POINTER(c_size_t)],
    "device_open": [c_char_p, POINTER(DeviceOptions), POINTER(c_void_p)],
    "device_adopt": [c_void_p, c_void_p, c_void_p, POINTER(DeviceOptions), POINTER(c_void_p)],
    "device_get_info": [c_void_p, POINTER(DeviceInfo)],
    "device_get_build_stats": [c_void_p, POINTER(BuildStats)],
    "cache_create": [c_void_p, POINTER(CacheDesc), POINTER(c_void_p)],
    "cache_bytes": [POINTER(CacheDesc), POINTER(c_uint64)],
    "cache_get_desc": [c_void_p, POINTER(CacheDesc)],
    "cache_set_buffers": [c_void_p, POINTER(PoolBuffers)],
    "cache_write": [c_void_p, c_void_p, c_int32, _TENSOR, _TENSOR, c_int32, c_void_p, c_int64, *_EVENTS],
    "cache_gather": [
        c_void_p,
        c_void_p,
        c_int32,
        c_void_p,
        c_int64,
        c_void_p,
        c_int32,
        _TENSOR,
        _TENSOR,
        *_EVENTS,
    ],
    "cache_copy_blocks": [c_void_p, c_void_p, c_void_p, c_int64, *_EVENTS],
    "cache_wipe_blocks": [c_void_p, c_void_p, c_void_p, c_int64, *_EVENTS],
    "attn_create": [c_void_p, POINTER(AttnDesc), POINTER(c_void_p)],
    "attn_get_desc": [c_void_p, POINTER(AttnDesc)],
    "plan_create": [c_void_p, POINTER(c_void_p)],
    "plan_varlen": [c_void_p, c_void_p, POINTER(VarlenBatch)],
    "plan_decode": [c_void_p, c_void_p, POINTER(DecodeBatch)],
    "attn_run": [c_void_p, c_void_p, c_void_p, POINTER(AttnArgs), *_EVENTS],
    "merge_create": [c_void_p, POINTER(MergeDesc), POINTER(c_void_p)],
    "merge_run": [c_void_p, c_void_p, c_int64, _PARTIAL, _PARTIAL, _PARTIAL, *_EVENTS],
    "blocks_create": [POINTER(BlocksDesc), POINTER(c_void_p)],
    "blocks_seq_create": [c_void_p, POINTER(c_uint64)],
    "blocks_share": [c_void_p, c_uint64, c_int64, POINTER(c_uint64)],
    "blocks_append": [c_void_p, c_uint64, c_int64, POINTER(BlockCopy), POINTER(c_size_t)],
    "blocks_needed": [c_void_p, c_uint64, c_int64, POINTER(c_int64)],
    "blocks_truncate": [c_void_p, c_uint64, c_int64],
    "blocks_seq_free": [c_void_p, c_uint64],
    "blocks_seq_length": [c_void_p, c_uint64, POINTER(c_int64)],
    "blocks_table": [c_void_p, c_uint64, c_int32, c_void_p, c_int64, POINTER(c_int64)],
    "blocks_slots": [c_void_p, c_uint64, c_int32, c_int64, c_int64, c_void_p],
    "blocks_get_stats": [c_void_p, POINTER(BlocksStats)],
    "blocks_check": [c_void_p],
    "prefix_seq_create": [c_void_p, POINTER(Prompt), POINTER(c_uint64), POINTER(c_int64)],
    "prefix_record": [c_void_p, c_uint64, c_void_p, c_int64],
}

_OTHERS = {
    "version": (c_char_p, []),
    "status_name": (c_char_p, [c_int32]),
    "status_text": (c_char_p, [c_int32]),
    "last_error": (c_char_p, []),
    "device_kind_name": (c_char_p, [c_int32]),
    "tier_name": (c_char_p, [c_int32]),
    "device_destroy": (None, [c_void_p]),
    "device_context": (c_void_p, [c_void_p]),
    "device_id": (c_void_p, [c_void_p]),
    "device_queue": (c_void_p, [c_void_p]),
    "cache_destroy": (None, [c_void_p]),
    "attn_destroy": (None, [c_void_p]),
    "plan_destroy": (None, [c_void_p]),
    "merge_destroy": (None, [c_void_p]),
    "blocks_destroy": (None, [c_void_p]),
}


class _Functions:
    """The library's functions without their prefix; one that returns a status raises it as an exception."""

    def __init__(self) -> None:
        library = _load()
        for name, (result, arguments) in _OTHERS.items():
            function = getattr(library, f"pagedcl_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        for name, arguments in _CALLS.items():
            function = getattr(library, f"pagedcl_{name}")
            function.restype, function.argtypes = c_int32, arguments
            setattr(self, name, self._checked(function, name, arguments))

    def _checked(self, function, name, kinds):
        integers = [(at, kind) for at, kind in enumerate(kinds) if kind in _INTEGERS]

        def call(*arguments) -> None:
            for at, kind in integers:
                integer(arguments[at], kind, f"argument {at} of pagedcl_{name}")
            status = function(*arguments)
            if status:
                raise error_for_status(status, self.status_name(status).decode(), self.last_error().decode())

        return call


lib = _Functions()
