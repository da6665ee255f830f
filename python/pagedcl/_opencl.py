# SPDX-License-Identifier: Apache-2.0
"""The few OpenCL calls that Python makes itself: buffers, transfers, waiting."""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from ctypes import POINTER, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

from .errors import Error, Status

READ_WRITE = 1 << 0
READ_ONLY = 1 << 2
USE_HOST_PTR = 1 << 3
_MAP_READ, _MAP_WRITE = 1 << 0, 1 << 1
_MEM_SIZE = 0x1102
_DEVICE_HOST_UNIFIED_MEMORY = 0x1035

_TRANSFER = [c_void_p, c_void_p, c_uint32, c_size_t, c_size_t, c_void_p, c_uint32, c_void_p, c_void_p]
_SIGNATURES = {
    "clCreateBuffer": (c_void_p, [c_void_p, c_uint64, c_size_t, c_void_p, POINTER(c_int32)]),
    "clReleaseMemObject": (c_int32, [c_void_p]),
    "clRetainMemObject": (c_int32, [c_void_p]),
    "clGetMemObjectInfo": (c_int32, [c_void_p, c_uint32, c_size_t, c_void_p, c_void_p]),
    "clGetDeviceInfo": (c_int32, [c_void_p, c_uint32, c_size_t, c_void_p, c_void_p]),
    "clEnqueueReadBuffer": (c_int32, _TRANSFER),
    "clEnqueueWriteBuffer": (c_int32, _TRANSFER),
    "clEnqueueMapBuffer": (
        c_void_p,
        [c_void_p, c_void_p, c_uint32, c_uint64, c_size_t, c_size_t, c_uint32, c_void_p, c_void_p, POINTER(c_int32)],
    ),
    "clEnqueueUnmapMemObject": (c_int32, [c_void_p, c_void_p, c_void_p, c_uint32, c_void_p, c_void_p]),
    "clFinish": (c_int32, [c_void_p]),
}


def _load() -> ctypes.CDLL:
    names = {
        "win32": ["OpenCL.dll"],
        "darwin": ["/System/Library/Frameworks/OpenCL.framework/OpenCL"],
    }.get(sys.platform, ["libOpenCL.so.1", "libOpenCL.so"])
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reason = error
    raise ImportError(f"the OpenCL loader was not found: {reason}. Debian's and Ubuntu's package is ocl-icd-libopencl1")


_library = None


def _function(name: str):
    """The function, from a loader that is opened when the first one is needed."""
    global _library  # noqa: PLW0603
    if _library is None:
        _library = _load()
    function = getattr(_library, name)
    function.restype, function.argtypes = _SIGNATURES[name]
    return function


def _check(name: str, code: int) -> None:
    if code:
        raise Error(Status.OPENCL_ERROR, "PAGEDCL_OPENCL_ERROR", f"{name} failed with OpenCL error {code}")


def create_buffer(context: int, num_bytes: int, flags: int = READ_WRITE, host: int | None = None) -> int:
    """A new buffer, of 1 byte when none is wanted: OpenCL has no empty ones."""
    code = c_int32()
    mem = _function("clCreateBuffer")(context, flags, max(num_bytes, 1), host, ctypes.byref(code))
    _check("clCreateBuffer", code.value)
    return mem


def retain(mem: int) -> None:
    _check("clRetainMemObject", _function("clRetainMemObject")(mem))


def release(mem: int) -> None:
    _function("clReleaseMemObject")(mem)


def size(mem: int) -> int:
    """Bytes of a buffer."""
    value = c_size_t()
    _check("clGetMemObjectInfo", _function("clGetMemObjectInfo")(mem, _MEM_SIZE, 8, ctypes.byref(value), None))
    return value.value


def shares_host_memory(device_id: int) -> bool:
    value = c_uint32()
    call = _function("clGetDeviceInfo")
    _check("clGetDeviceInfo", call(device_id, _DEVICE_HOST_UNIFIED_MEMORY, 4, ctypes.byref(value), None))
    return bool(value.value)


def read(queue: int, mem: int, offset: int, num_bytes: int, host: int) -> None:
    """Waits until the bytes are in host memory."""
    if num_bytes:
        call = _function("clEnqueueReadBuffer")
        _check("clEnqueueReadBuffer", call(queue, mem, 1, offset, num_bytes, host, 0, None, None))


def write(queue: int, mem: int, offset: int, num_bytes: int, host: int) -> None:
    """Waits until the host memory may be changed."""
    if num_bytes:
        call = _function("clEnqueueWriteBuffer")
        _check("clEnqueueWriteBuffer", call(queue, mem, 1, offset, num_bytes, host, 0, None, None))


def synchronize_host(queue: int, mem: int, num_bytes: int) -> None:
    """Lets host memory that a buffer uses hold what commands wrote, once the queue is finished."""
    if not num_bytes:
        return
    code = c_int32()
    call = _function("clEnqueueMapBuffer")
    pointer = call(queue, mem, 0, _MAP_READ | _MAP_WRITE, 0, num_bytes, 0, None, None, ctypes.byref(code))
    _check("clEnqueueMapBuffer", code.value)
    _check("clEnqueueUnmapMemObject", _function("clEnqueueUnmapMemObject")(queue, mem, pointer, 0, None, None))


def finish(queue: int) -> None:
    _check("clFinish", _function("clFinish")(queue))
