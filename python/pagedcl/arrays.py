# SPDX-License-Identifier: Apache-2.0
"""Tensors of other packages, seen without a copy, and device memory of one's own.

Whatever has a shape can be given: numpy arrays, torch tensors of the CPU, anything with the buffer protocol or DLPack
in host memory, pyopencl arrays, and `DeviceArray`.
"""

from __future__ import annotations

import ctypes
import functools
import math
import operator
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np

from . import _opencl
from ._library import Handle

if TYPE_CHECKING:
    from .device import Device

# The library's element types by the name that all packages agree on; those for pools alone included.
DTYPES = {
    "float32": 1,
    "float16": 2,
    "bfloat16": 3,
    "int8": 4,
    "float8_e4m3": 5,
    "float8_e5m2": 6,
    "int4": 7,
}
_ITEM_SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8, "uint8": 1, "float64": 8}


def dtype_name(dtype: Any) -> str:
    """The name of a dtype, given by name, or as numpy and torch have it."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", str(dtype))
    return name.removeprefix("torch.").removesuffix("fn")


def dtype_value(dtype: Any) -> int:
    """The C library's number of a dtype. None: 0, the default."""
    if dtype is None:
        return 0
    name = dtype_name(dtype)
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is none of {', '.join(DTYPES)}")
    return DTYPES[name]


@dataclass(frozen=True)
class View:
    """Where a tensor's elements are: element (i, j, ...) at offset + i * strides[0] + j * strides[1] + ...

    Strides and offset are in elements; the offset counts from `address` in host memory, or from the start of `mem`.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    address: Optional[int]
    mem: Optional[int]
    offset: int
    writable: bool
    owner: Any

    @property
    def item_size(self) -> int:
        return _ITEM_SIZES[self.dtype]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def on_host(self) -> bool:
        return self.mem is None

    @functools.cached_property
    def extent(self) -> tuple[int, int]:
        """The lowest host address of its bytes, and the one behind its highest."""
        first = self.address + self.offset * self.item_size
        if not self.size:
            return first, first
        steps = [(length - 1) * stride * self.item_size for length, stride in zip(self.shape, self.strides)]
        lowest = first + sum(step for step in steps if step < 0)
        return lowest, first + sum(step for step in steps if step > 0) + self.item_size

    def is_contiguous_from(self, dim: int) -> bool:
        """Whether dimensions dim and on lie one behind the other."""
        expected = 1
        for length, stride in zip(reversed(self.shape[dim:]), reversed(self.strides[dim:])):
            if length != 1 and stride != expected:
                return False
            expected *= length
        return True

    def numpy(self) -> np.ndarray:
        """The elements of a tensor in host memory, without a copy; those of bfloat16 as uint16."""
        kind = np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype)
        if not self.size:
            return np.empty(self.shape, kind)
        lowest, end = self.extent
        memory = (ctypes.c_char * (end - lowest)).from_address(lowest)
        memory._owner = self.owner  # the array keeps `memory`, and so the tensor
        first = self.address + self.offset * self.item_size - lowest
        return np.ndarray(self.shape, kind, memory, first, [stride * self.item_size for stride in self.strides])

    def float32(self) -> np.ndarray:
        """The values of a tensor in host memory as new float32 elements."""
        values = self.numpy()
        if self.dtype == "bfloat16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32)


def rounded(values: np.ndarray, dtype: str) -> View:
    """float32 values as new elements of a dtype, rounded to nearest, ties to even."""
    if dtype != "bfloat16":
        return view(np.ascontiguousarray(values, dtype))
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    upper = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    upper[np.isnan(values)] = 0x7FC0
    return replace(view(upper), dtype="bfloat16")


class DeviceArray(Handle):
    """A contiguous tensor in memory of the device. `Device.empty` and `Device.array` make them.

    shape: ints, or one. dtype: "float32", "float16", "bfloat16", "int32", "int64", "uint8" or "float64", by name or as
    numpy and torch have it. The memory lives as long as the array.
    buffer: memory of the caller's, a pyopencl buffer or a cl_mem as an int, which is retained; the tensor begins
    `offset` elements from its start.
    """

    def __init__(
        self, device: Device, shape: Union[int, tuple[int, ...]], dtype: Any, buffer: Any = None, *, offset: int = 0
    ) -> None:
        self.device = device
        self.shape = tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))
        self.dtype = dtype_name(dtype)
        self.offset = operator.index(offset)
        if self.dtype not in _ITEM_SIZES:
            raise ValueError(f"dtype {self.dtype!r} is none of {', '.join(_ITEM_SIZES)}")
        if min(self.shape, default=0) < 0 or offset < 0:
            raise ValueError(f"the shape {list(self.shape)} and offset {offset} must not be negative")
        if buffer is None:
            self.mem = _opencl.create_buffer(device.context, self._first_byte + self.nbytes)
        else:
            self.mem = buffer if isinstance(buffer, int) else buffer.int_ptr
            if self._first_byte + self.nbytes > _opencl.size(self.mem):
                raise ValueError(
                    f"a buffer of {_opencl.size(self.mem)} bytes does not hold {self.dtype} {list(self.shape)}"
                )
            _opencl.retain(self.mem)
        weakref.finalize(self, _opencl.release, self.mem)

    @property
    def _first_byte(self) -> int:
        return self.offset * _ITEM_SIZES[self.dtype]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _ITEM_SIZES[self.dtype]

    def write(self, array: Any) -> None:
        """Stores the elements of a host tensor of the same shape and dtype; waits until it may be changed again."""
        source = view(array)
        if source.shape != self.shape or source.dtype != self.dtype or not source.on_host:
            raise ValueError(f"expected a host tensor {self.shape} of {self.dtype}, got {source.shape} {source.dtype}")
        values = np.ascontiguousarray(source.numpy())
        _opencl.write(self.device.queue, self.mem, self._first_byte, self.nbytes, values.ctypes.data)

    def numpy(self) -> np.ndarray:
        """The elements, as the device's queue leaves them; waits. bfloat16 comes as uint16, its bits."""
        values = np.empty(self.shape, "uint16" if self.dtype == "bfloat16" else self.dtype)
        _opencl.read(self.device.queue, self.mem, self._first_byte, self.nbytes, values.ctypes.data)
        return values

    def __repr__(self) -> str:
        return f"<pagedcl.DeviceArray {self.dtype} {list(self.shape)}>"


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_DL_CPU = 1
_DL_KINDS = {(0, 32): "int32", (0, 64): "int64", (2, 16): "float16", (2, 32): "float32", (4, 16): "bfloat16"}


def _view_dlpack(tensor: Any) -> View:
    """By DLPack's unversioned exchange, which every producer still speaks. The capsule, which is never marked as
    consumed, frees what it holds when it goes: so it is kept with the view."""
    if tensor.__dlpack_device__()[0] != _DL_CPU:
        raise ValueError("a DLPack tensor must be in host memory; on a device give a pyopencl array or DeviceArray")
    capsule = tensor.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    dl = _DLTensor.from_address(pointer(capsule, b"dltensor"))
    kind = _DL_KINDS.get((dl.code, dl.bits))
    if kind is None or dl.lanes != 1:
        raise ValueError(f"a DLPack tensor of type code {dl.code} with {dl.bits} bits is not supported")
    shape = tuple(dl.shape[: dl.ndim])
    strides = tuple(dl.strides[: dl.ndim]) if dl.strides else _contiguous_strides(shape)
    return View(shape, strides, kind, (dl.data or 0) + dl.byte_offset, None, 0, True, (tensor, capsule))


def is_torch(tensor: Any) -> bool:
    return type(tensor).__module__.partition(".")[0] == "torch" or any(
        base.__module__.partition(".")[0] == "torch" for base in type(tensor).__mro__
    )


def is_pyopencl(tensor: Any) -> bool:
    return any(base.__module__ == "pyopencl.array" for base in type(tensor).__mro__)


def _view_numpy(array: np.ndarray, name: str) -> View:
    size = array.dtype.itemsize
    if not array.dtype.isnative:
        raise ValueError(f"{name} must be in this machine's byte order, not {array.dtype}")
    if array.size and any(stride % size for stride in array.strides):
        raise ValueError(f"the strides of {name} must be whole elements")
    strides = tuple(stride // size for stride in array.strides)
    address = array.__array_interface__["data"][0]
    return View(array.shape, strides, array.dtype.name, address, None, 0, array.flags.writeable, array)


def view(tensor: Any, name: str = "a tensor") -> View:
    """Sees a tensor without a copy. Raises TypeError for what is no tensor, ValueError for one that is elsewhere.

    name: what errors call it.
    """
    if isinstance(tensor, View):
        return tensor
    if isinstance(tensor, np.ndarray):
        return _view_numpy(tensor, name)
    if isinstance(tensor, DeviceArray):
        strides = _contiguous_strides(tensor.shape)
        return View(tensor.shape, strides, tensor.dtype, None, tensor.mem, tensor.offset, True, tensor)
    if is_torch(tensor):
        if tensor.device.type != "cpu":
            raise ValueError(f"{name} is a torch tensor on {tensor.device}: give it on the CPU, as {name}.cpu()")
        if str(tensor.layout) != "torch.strided":
            raise ValueError(f"{name} must be a strided torch tensor, not a {tensor.layout}")
        kind = dtype_name(tensor.dtype)
        return View(tuple(tensor.shape), tuple(tensor.stride()), kind, tensor.data_ptr(), None, 0, True, tensor)
    if is_pyopencl(tensor):
        size = tensor.dtype.itemsize
        strides = tuple(stride // size for stride in tensor.strides)
        mem = tensor.base_data.int_ptr if tensor.base_data is not None else None
        if mem is None:
            raise ValueError(f"{name} is a pyopencl array without memory")
        return View(tensor.shape, strides, tensor.dtype.name, None, mem, tensor.offset // size, True, tensor)
    if hasattr(tensor, "__dlpack__"):
        return _view_dlpack(tensor)
    try:
        return _view_numpy(np.asarray(memoryview(tensor)), name)
    except TypeError:
        raise TypeError(
            f"{name} is a {type(tensor).__name__}, which is no tensor: give a numpy array, a torch tensor, an object "
            "with the buffer protocol or DLPack, a pyopencl array, or a DeviceArray"
        ) from None


def int_array(values: Any, name: str, dtype: type = np.int32) -> np.ndarray:
    """Lengths, tables, slots: a contiguous numpy array of the host from whatever holds integers, copied if need be."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    elif is_pyopencl(values):
        values = values.get()
    elif isinstance(values, DeviceArray):
        values = values.numpy()
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"the rows of {name} must have one length") from None
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, not {array.dtype}")
    limits = np.iinfo(dtype)
    if array.size and (array.min() < limits.min or array.max() > limits.max):
        raise ValueError(f"{name} must be integers of {limits.bits} bits, not {array.min()} to {array.max()}")
    return np.ascontiguousarray(array, dtype)
