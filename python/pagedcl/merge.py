# SPDX-License-Identifier: Apache-2.0
"""Merging two partial attention results of the same queries over different keys."""

from __future__ import annotations

import weakref
from ctypes import byref, c_void_p
from typing import Any

from . import _library
from ._library import Handle, lib
from .arrays import View, dtype_value, view
from .attn import empty_like
from .cache import as_rows
from .device import Device, check_device
from .staging import Staging


class Merge(Handle):
    """Merges results of heads of head_dim values, in dtype; see merge.h. Not for two threads at once."""

    def __init__(self, device: Device, *, num_heads: int, head_dim: int, dtype: str = "float32") -> None:
        check_device(device)
        desc = _library.MergeDesc(num_heads=num_heads, head_dim=head_dim, dtype=dtype_value(dtype))
        handle = c_void_p()
        lib.merge_create(device._handle, byref(desc), byref(handle))
        self.device = device
        self.num_heads, self.head_dim, self.dtype = num_heads, head_dim, dtype
        self._handle = handle.value
        weakref.finalize(self, lib.merge_destroy, self._handle)

    def run(self, out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple[Any, Any]:
        """out [T, num_heads, head_dim] and LSE, float32 [T, num_heads], of both together, of out_a's kind.

        Each side is normalised and has its LSE, in natural logarithm; -infinity: it saw no key, and counts for nothing.
        With tensors in device memory alone it only enqueues; with host tensors it waits.
        """
        num_rows = view(out_a, "out_a").shape[0]
        sides = {"out_a": out_a, "out_b": out_b}
        rows = [as_rows(out, name, self.num_heads, self.head_dim) for name, out in sides.items()]
        logs = [view(lse, name) for name, lse in {"lse_a": lse_a, "lse_b": lse_b}.items()]
        for out, lse in zip(rows, logs):
            self._check(out, lse, num_rows)
        out = empty_like(out_a, (num_rows, self.num_heads, self.head_dim), self.dtype, self.device)
        lse = empty_like(out_a, (num_rows, self.num_heads), "float32", self.device)
        result = (view(out), view(lse))
        with Staging(self.device, self.device.queue) as staging:
            for tensor in (*rows, *logs):
                staging.add(tensor)
            for tensor in result:
                staging.add(tensor, written=True, read=False)
            staging.upload()
            sides = [self._partial(staging, *side) for side in (*zip(rows, logs), result)]
            lib.merge_run(self._handle, None, num_rows, *map(byref, sides), 0, None, None)
            staging.download()
        return out, lse

    def _check(self, out: View, lse: View, num_rows: int) -> None:
        if out.shape[0] != num_rows or out.dtype != self.dtype:
            raise ValueError(
                f"out_a and out_b must be {self.dtype} of as many rows, not {out.dtype} of {num_rows} and "
                f"{out.shape[0]}"
            )
        if lse.shape != (num_rows, self.num_heads) or lse.dtype != "float32" or not lse.is_contiguous_from(0):
            raise ValueError(f"an LSE must be contiguous float32 [{num_rows}, {self.num_heads}]")

    @staticmethod
    def _partial(staging: Staging, out: View, lse: View) -> _library.Partial:
        return _library.Partial(out=staging.tensor(out), lse=staging.mem(lse), lse_offset=staging.offset(lse))
