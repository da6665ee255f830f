# SPDX-License-Identifier: Apache-2.0
"""Host tensors as buffers for the time of one call.

Where the device shares the host's memory the buffers are that memory, and nothing is copied. Elsewhere they are
uploaded, and what was written is downloaded.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _opencl
from ._library import Tensor
from .arrays import DeviceArray, View, view
from .errors import Error

if TYPE_CHECKING:
    from .device import Device


def context_of(tensor: Any) -> int:
    """Of a DeviceArray or a pyopencl array."""
    return tensor.device.context if isinstance(tensor, DeviceArray) else tensor.context.int_ptr


class Staging:
    """Buffers for the tensors of one call. Use as a context: they are released at its end.

    with Staging(device, queue) as staging:
        q = staging.add(q_view); out = staging.add(out_view, written=True, read=False)
        staging.upload()
        ... staging.mem(q), staging.offset(q) ...
        staging.download()
    """

    def __init__(self, device: Device, queue: int) -> None:
        self._device = device
        self._queue = queue
        self._views: list[tuple[View, bool, bool]] = []  # with: read, written
        self._places: dict[int, tuple[int, int]] = {}  # by id of the view: buffer, address of its start
        self._buffers: list[tuple[int, int, int, bool]] = []  # buffer, address, bytes, written

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is not None and self._buffers:
            with contextlib.suppress(Error):  # what was enqueued before the failure may still use host memory
                _opencl.finish(self._queue)
        self.release()

    def release(self) -> None:
        """Gives the buffers back; a pool that was made on them keeps them."""
        while self._buffers:
            _opencl.release(self._buffers.pop()[0])

    @property
    def has_host_memory(self) -> bool:
        return bool(self._buffers)

    def add(self, tensor: View, written: bool = False, read: bool = True) -> View:
        if tensor.on_host:
            self._views.append((tensor, read, written))
        elif context_of(tensor.owner) != self._device.context:
            raise ValueError(f"{tensor.owner!r:.200} is in another OpenCL context than {self._device!r}")
        return tensor

    def add_copy(self, values: np.ndarray) -> View:
        """A contiguous array of the host, kept until the end."""
        return self.add(view(values))

    def upload(self) -> None:
        """Makes the buffers. Tensors that overlap get one buffer in common: OpenCL lets no two share host memory."""
        shared = self._device.shares_host_memory
        group: list[tuple[View, bool, bool]] = []
        start = end = 0
        for item in sorted(self._views, key=lambda item: item[0].extent):
            first, behind = item[0].extent
            if group and first >= end:
                self._make_buffer(group, start, end, shared)
                group = []
            if not group:
                start = end = first
            group.append(item)
            end = max(end, behind)
        if group:
            self._make_buffer(group, start, end, shared)

    def _make_buffer(self, group: list[tuple[View, bool, bool]], start: int, end: int, shared: bool) -> None:
        written = any(item[2] for item in group)
        if shared and end > start:
            mem = _opencl.create_buffer(
                self._device.context, end - start, _opencl.READ_WRITE | _opencl.USE_HOST_PTR, start
            )
        else:
            mem = _opencl.create_buffer(self._device.context, end - start)
        self._buffers.append((mem, start, end - start, written))
        if not shared and any(item[1] for item in group):
            _opencl.write(self._queue, mem, 0, end - start, start)
        for tensor, *_ in group:
            if (tensor.extent[0] - start) % tensor.item_size:
                raise ValueError("tensors that overlap must be apart by whole elements")
            self._places[id(tensor)] = (mem, start)

    def mem(self, tensor: View) -> int:
        return self._places[id(tensor)][0] if tensor.on_host else tensor.mem

    def offset(self, tensor: View) -> int:
        """Of its first element from the start of its buffer, in elements."""
        if not tensor.on_host:
            return tensor.offset
        return (tensor.extent[0] - self._places[id(tensor)][1]) // tensor.item_size

    def tensor(self, rows: View) -> Tensor:
        """A view of shape [tokens, heads, head_dim] as the C library takes it."""
        token, head, _ = rows.strides
        return Tensor(mem=self.mem(rows), offset=self.offset(rows), token_stride=token, head_stride=head)

    def download(self) -> None:
        """Waits for the queue, so that the written tensors of the host hold their results."""
        for mem, address, num_bytes, written in self._buffers:
            if not written:
                continue
            if self._device.shares_host_memory:
                _opencl.synchronize_host(self._queue, mem, num_bytes)
            else:
                _opencl.read(self._queue, mem, 0, num_bytes, address)
        if self._buffers:
            _opencl.finish(self._queue)
