# SPDX-License-Identifier: Apache-2.0
"""PagedCL: paged attention for LLM inference on any OpenCL device.

Two functions take what FlashAttention's take and give what they give, on numpy arrays, torch tensors of the CPU, and
pyopencl arrays:

- `flash_attn_varlen_func`: sequences of any lengths, packed or in a paged pool;
- `flash_attn_with_kvcache`: decode; appends to the caches in place.

Below them are the objects of the C library: `Device`, `Cache` (the paged pool), `Blocks` (which block holds what),
`Attention` and its `Plan`, `Merge`. The C headers in include/pagedcl are the reference.
"""

from ._library import lib as _lib
from .arrays import DeviceArray
from .attn import Attention, Plan
from .blocks import Blocks, Sequence
from .cache import Cache
from .device import Device, default_device, devices, set_default_device
from .errors import Error, InvalidError, OutOfMemoryError, Status, UnsupportedError
from .flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from .merge import Merge

__version__: str = _lib.version().decode()

__all__ = [
    "Attention",
    "Blocks",
    "Cache",
    "Device",
    "DeviceArray",
    "Error",
    "InvalidError",
    "Merge",
    "OutOfMemoryError",
    "Plan",
    "Sequence",
    "Status",
    "UnsupportedError",
    "default_device",
    "devices",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "set_default_device",
]
