# SPDX-License-Identifier: Apache-2.0
"""The block manager: which physical block holds which tokens of which sequence. Host only."""

from __future__ import annotations

import weakref
from ctypes import byref, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, Optional

import numpy as np

from . import _library
from ._library import Handle, lib
from .arrays import int_array


class Blocks(Handle):
    """A pool of num_blocks blocks of block_size tokens, and the sequences that live in it; see blocks.h.

    prefix_cache: blocks are found by their tokens, by `Blocks.sequence(tokens)`. num_groups: cache groups, each with a
    table of its own. Not for two threads at once.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        num_groups: int = 1,
        group_block_sizes: Any = None,
        group_windows: Any = None,
        prefix_cache: bool = False,
        watermark: int = 0,
        prefix_hash_seed: int = 0,
    ) -> None:
        desc = _library.BlocksDesc(
            num_blocks=num_blocks,
            block_size=block_size,
            num_groups=num_groups,
            prefix_cache=int(prefix_cache),
            watermark=watermark,
            prefix_hash_seed=prefix_hash_seed,
        )
        sizes = windows = None
        if group_block_sizes is not None:
            sizes = self._by_group(group_block_sizes, "group_block_sizes", num_groups, np.int32)
            desc.group_block_sizes = sizes.ctypes.data
        if group_windows is not None:
            windows = self._by_group(group_windows, "group_windows", num_groups, np.int64)
            desc.group_windows = windows.ctypes.data
        handle = c_void_p()
        lib.blocks_create(byref(desc), byref(handle))
        self._handle = handle.value
        self.num_groups = num_groups
        weakref.finalize(self, lib.blocks_destroy, self._handle)

    @staticmethod
    def _by_group(values: Any, name: str, num_groups: int, dtype: type) -> np.ndarray:
        array = int_array(values, name, dtype).reshape(-1)
        if len(array) != num_groups:
            raise ValueError(f"{name} must have an entry a group, {num_groups} in all, not {len(array)}")
        return array

    def sequence(self, tokens: Any = None) -> Sequence:
        """A new sequence. With tokens, a prompt: of the longest prefix of it that the prefix cache has, which leaves
        at least the last token to compute; `len` tells how many tokens that are."""
        handle = c_uint64()
        if tokens is None:
            lib.blocks_seq_create(self._handle, byref(handle))
            return Sequence(self, handle.value)
        array = int_array(tokens, "tokens").reshape(-1)
        prompt = _library.Prompt(tokens=array.ctypes.data, num_tokens=len(array))
        lib.prefix_seq_create(self._handle, byref(prompt), byref(handle), byref(c_int64()))
        return Sequence(self, handle.value)

    def table(self, sequences: list[Sequence], group: int = 0) -> np.ndarray:
        """The block tables of sequences as one array [num_seqs, most blocks], -1 behind the last block of each."""
        if any(sequence.blocks is not self for sequence in sequences):
            raise ValueError("a sequence is of another manager")
        rows = [sequence.table(group) for sequence in sequences]
        table = np.full((len(rows), max((len(row) for row in rows), default=0)), -1, np.int32)
        for line, row in zip(table, rows):
            line[: len(row)] = row
        return table

    @property
    def stats(self) -> dict[str, int]:
        """Counters: total, free, used, shared, cached and the others of pagedcl_blocks_stats."""
        stats = _library.BlocksStats()
        lib.blocks_get_stats(self._handle, byref(stats))
        return stats.as_dict()

    def __repr__(self) -> str:
        stats = self.stats
        return f"<pagedcl.Blocks, {stats['used']} of {stats['total']} used>"

    def check(self) -> None:
        """Raises when an invariant of the manager is broken, which is a bug of the library. For tests."""
        lib.blocks_check(self._handle)


class Sequence(Handle):
    """A sequence of a manager. It is freed by `free`, not by going out of sight."""

    def __init__(self, blocks: Blocks, handle: int) -> None:
        self.blocks = blocks
        self._seq = handle

    def __repr__(self) -> str:
        return f"<pagedcl.Sequence {self._seq:#x}>"

    def append(self, num_tokens: int = 1) -> list[tuple[int, int, int]]:
        """Makes room for more tokens. Returns (group, source, destination) for each block that must be copied on the
        device before anything is written (`Cache.copy_blocks`): a shared block is about to be written."""
        copies = (_library.BlockCopy * self.blocks.num_groups)()
        count = c_size_t()
        lib.blocks_append(self.blocks._handle, self._seq, num_tokens, copies, byref(count))
        return [(copy.group, copy.src, copy.dst) for copy in copies[: count.value]]

    def needed(self, num_tokens: int = 1) -> int:
        """Free blocks that an append would take."""
        count = c_int64()
        lib.blocks_needed(self.blocks._handle, self._seq, num_tokens, byref(count))
        return count.value

    def fork(self, num_tokens: Optional[int] = None) -> Sequence:
        """A sequence of the first num_tokens tokens, all by default, that shares the blocks."""
        handle = c_uint64()
        length = len(self) if num_tokens is None else num_tokens
        lib.blocks_share(self.blocks._handle, self._seq, length, byref(handle))
        return Sequence(self.blocks, handle.value)

    def truncate(self, num_tokens: int) -> None:
        """Shortens the sequence and releases the blocks behind its end."""
        lib.blocks_truncate(self.blocks._handle, self._seq, num_tokens)

    def free(self) -> None:
        """Ends the sequence and releases its blocks; the handle is refused from then on."""
        lib.blocks_seq_free(self.blocks._handle, self._seq)

    def record(self, tokens: Any) -> None:
        """Says which tokens those are that were not recorded yet: the blocks that they fill can be found by them."""
        array = int_array(tokens, "tokens").reshape(-1)
        lib.prefix_record(self.blocks._handle, self._seq, array.ctypes.data, len(array))

    def table(self, group: int = 0) -> np.ndarray:
        """The physical blocks in use, int32; -1 left of a window."""
        count = c_int64()
        row = np.empty(max(len(self), 1), np.int32)
        lib.blocks_table(self.blocks._handle, self._seq, group, row.ctypes.data, len(row), byref(count))
        return row[: count.value].copy()

    def slots(self, first: int, num_tokens: int, group: int = 0) -> np.ndarray:
        """The slots of positions first to first + num_tokens - 1, int64, for `Cache.write`."""
        slots = np.empty(max(num_tokens, 0), np.int64)
        lib.blocks_slots(self.blocks._handle, self._seq, group, first, num_tokens, slots.ctypes.data)
        return slots

    def __len__(self) -> int:
        length = c_int64()
        lib.blocks_seq_length(self.blocks._handle, self._seq, byref(length))
        return length.value
