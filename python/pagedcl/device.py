# SPDX-License-Identifier: Apache-2.0
"""Devices: what there is, and the handle that everything on a device hangs on."""

from __future__ import annotations

import ctypes
import threading
import weakref
from ctypes import byref, c_size_t, c_void_p
from typing import Any, Callable, Optional, Union

import numpy as np

from . import _library, _opencl
from ._library import Handle, lib
from .arrays import DeviceArray, view

_TIERS = {"auto": 0, "portable": 1, "cpu": 2, "nv_mma": 3, "nv_wgmma": 4}
_LOG_LEVELS = ("info", "warning", "error")

# Devices may log as long as anything made on them lives, so the callbacks stay.
_callbacks: list[Any] = []


def tier_value(tier: Optional[str]) -> int:
    if tier is None:
        return 0
    if tier not in _TIERS:
        raise ValueError(f"tier {tier!r} is none of {', '.join(_TIERS)}")
    return _TIERS[tier]


def _info_dict(info: _library.DeviceInfo) -> dict[str, Any]:
    fields = info.as_dict()
    fields["kind"] = lib.device_kind_name(info.kind).decode()
    fields["tier"] = lib.tier_name(info.tier).decode()
    for name in ("has_fp16", "has_subgroups", "usable"):
        fields[name] = bool(fields[name])
    return fields


def devices() -> list[dict[str, Any]]:
    """Every OpenCL device, in the loader's order, usable or not; each as `Device.info` has it."""
    count = c_size_t()
    lib.device_list(None, 0, byref(count))
    infos = (_library.DeviceInfo * count.value)()
    for info in infos:
        info.struct_size = ctypes.sizeof(info)
    lib.device_list(infos, count.value, byref(count))
    return [_info_dict(info) for info in infos]


def _pointer(value: Any) -> int:
    """An OpenCL object as an int: pyopencl's, or one that is a pointer already."""
    return value if isinstance(value, int) else value.int_ptr


class Device(Handle):
    """A context, a device and a queue. `Device()` opens the best one, `Device.adopt` takes the caller's.

    selector: as `pagedcl devices` and `pagedcl_device_open` have it: "gpu", "cpu", "nvidia", "P:D", a part of a name;
    None: the environment's PAGEDCL_DEVICE, else the best.
    tier: "auto", "portable", "cpu", "nv_mma" or "nv_wgmma". cache_dir: folder of built programs; tuning: file of a
    tuning database; "" for none of it.
    log: called with a level ("info", "warning", "error") and a text.

    Threads may use a device at the same time.
    """

    def __init__(
        self,
        selector: Optional[str] = None,
        *,
        tier: Optional[str] = None,
        cache_dir: Optional[str] = None,
        log: Optional[Callable[[str, str], None]] = None,
        profiling: bool = False,
        tuning: Optional[str] = None,
    ) -> None:
        if selector is not None and not isinstance(selector, str):
            raise TypeError(f"selector must be a str, not {type(selector).__name__}")
        options = self._options(tier, cache_dir, log, profiling, tuning)
        handle = c_void_p()
        lib.device_open(selector.encode() if selector else None, byref(options), byref(handle))
        self._take(handle.value)

    @classmethod
    def adopt(
        cls,
        context: Any,
        device: Any,
        queue: Any,
        *,
        tier: Optional[str] = None,
        cache_dir: Optional[str] = None,
        log: Optional[Callable[[str, str], None]] = None,
        tuning: Optional[str] = None,
    ) -> Device:
        """Uses the caller's OpenCL objects, pyopencl's or pointers as ints; each is retained."""
        options = cls._options(tier, cache_dir, log, False, tuning)
        handle = c_void_p()
        lib.device_adopt(_pointer(context), _pointer(device), _pointer(queue), byref(options), byref(handle))
        self = cls.__new__(cls)
        self._take(handle.value)
        return self

    @staticmethod
    def _options(tier, cache_dir, log, profiling, tuning) -> _library.DeviceOptions:
        options = _library.DeviceOptions(tier=tier_value(tier), profiling=int(profiling))
        for name, path in (("cache_dir", cache_dir), ("tuning", tuning)):
            if path is not None:
                setattr(options, name, str(path).encode())
        if log is not None:
            callback = _library.LogCallback(lambda _, level, text: log(_LOG_LEVELS[level], text.decode()))
            _callbacks.append(callback)
            options.log = callback
        return options

    def _take(self, handle: int) -> None:
        self._handle = handle
        weakref.finalize(self, lib.device_destroy, handle)
        self.context: int = lib.device_context(handle)
        self.id: int = lib.device_id(handle)
        self.queue: int = lib.device_queue(handle)
        self.shares_host_memory: bool = _opencl.shares_host_memory(self.id)
        self.info: dict[str, Any] = self._get_info()

    def _get_info(self) -> dict[str, Any]:
        info = _library.DeviceInfo()
        lib.device_get_info(self._handle, byref(info))
        return _info_dict(info)

    @property
    def build_stats(self) -> dict[str, Any]:
        """What building programs cost on this device so far: compiled, loaded, compile_seconds, load_seconds."""
        stats = _library.BuildStats()
        lib.device_get_build_stats(self._handle, byref(stats))
        return stats.as_dict()

    def empty(self, shape: Union[int, tuple[int, ...]], dtype: Any = "float32") -> DeviceArray:
        """A tensor in device memory with undefined elements."""
        return DeviceArray(self, shape, dtype)

    def array(self, tensor: Any) -> DeviceArray:
        """A copy of a host tensor in device memory."""
        source = view(tensor if hasattr(tensor, "shape") else np.asarray(tensor))
        array = DeviceArray(self, source.shape, source.dtype)
        array.write(source)
        return array

    def finish(self) -> None:
        """Waits for the device's own queue."""
        _opencl.finish(self.queue)

    def __repr__(self) -> str:
        return f"<pagedcl.Device {self.info['device_name']!r}, tier {self.info['tier']}>"


def check_device(device: Any) -> None:
    if not isinstance(device, Device):
        raise TypeError(f"device must be a pagedcl.Device, not {device!r}: pagedcl.Device(...) opens one")


_lock = threading.Lock()
_default: Optional[Device] = None
_adopted: dict[int, Device] = {}


def default_device() -> Device:
    """The device of calls that name none: the one set, else `Device()`, opened when first needed."""
    global _default  # noqa: PLW0603
    with _lock:
        if _default is None:
            _default = Device()
        return _default


def set_default_device(device: Optional[Device]) -> None:
    """Makes a device the one of calls that name none. None: the best one again."""
    global _default  # noqa: PLW0603
    if device is not None:
        check_device(device)
    with _lock:
        _default = device


def device_of_queue(queue: Any) -> Device:
    """The device of a pyopencl queue, adopted once."""
    with _lock:
        if queue.int_ptr not in _adopted:
            _adopted[queue.int_ptr] = Device.adopt(queue.context, queue.device, queue)
        return _adopted[queue.int_ptr]
