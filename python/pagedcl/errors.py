# SPDX-License-Identifier: Apache-2.0
"""Errors of the library as exceptions."""

from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """What a call of the C library returned; see status.h."""

    SUCCESS = 0
    INVALID_ARGUMENT = 1
    INVALID_HANDLE = 2
    INVALID_HEADS = 3
    INVALID_LENGTH = 4
    INVALID_BLOCK = 5
    INVALID_SLOT = 6
    CAPACITY = 7
    BUFFER_TOO_SMALL = 8
    SIZE_OVERFLOW = 9
    UNSUPPORTED = 10
    OUT_OF_BLOCKS = 11
    OUT_OF_MEMORY = 12
    OUT_OF_DEVICE_MEMORY = 13
    POOL_TOO_LARGE = 14
    NO_PLATFORM = 15
    NO_DEVICE = 16
    BUILD_FAILED = 17
    DEVICE_LOST = 18
    OPENCL_ERROR = 19
    IO_ERROR = 21
    NEVER_FITS = 22
    NOT_READY = 23
    BAD_FILE = 24


class Error(Exception):
    """A call of the library failed; nothing was changed by it.

    `status` is what was returned (a `Status`, or a plain int of a newer library), and the text is what the library
    said. An error that Python has a kind for is of that kind too: `InvalidError` is a ValueError, `OutOfMemoryError` a
    MemoryError, `UnsupportedError` a NotImplementedError.
    """

    def __init__(self, status: int, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}" if message else name)
        self.status = status
        self.message = message


class InvalidError(Error, ValueError):
    """An argument, a handle, a length, a block, a slot or a shape was refused."""


class OutOfMemoryError(Error, MemoryError):
    """No host memory, no device memory, or no free block is left."""


class UnsupportedError(Error, NotImplementedError):
    """The library does not support this, here or anywhere."""

    @classmethod
    def of(cls, message: str) -> UnsupportedError:
        return cls(Status.UNSUPPORTED, "PAGEDCL_UNSUPPORTED", message)


_INVALID = range(Status.INVALID_ARGUMENT, Status.SIZE_OVERFLOW + 1)
_MEMORY = (Status.OUT_OF_BLOCKS, Status.OUT_OF_MEMORY, Status.OUT_OF_DEVICE_MEMORY, Status.POOL_TOO_LARGE)


def error_for_status(status: int, name: str, message: str) -> Error:
    """The exception for a status that is not success."""
    kind = Error
    if status in _INVALID or status == Status.NEVER_FITS:
        kind = InvalidError
    elif status in _MEMORY:
        kind = OutOfMemoryError
    elif status == Status.UNSUPPORTED:
        kind = UnsupportedError
    known = status in Status._value2member_map_
    return kind(Status(status) if known else status, name, message)
