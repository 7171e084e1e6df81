"""A decoder's KV cache: a pair of buffers per layer, in the engine's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from intaglio.bundle.bundle import Decoder, TensorSpec
from intaglio.errors import UsageError
from intaglio.processes.memory_limit import memory_limit
from intaglio.runtime.engines.memory import Buffer, HostMemory, Memory
from intaglio.runtime.sessions.step import KINDS, PAST, PRESENT, cache_names

CAPACITY_STEP = 128  # slots by which a cache grows; each time it is copied, a small cost per 128 decode steps


class KeyValueCache:
    """Buffers [batch, heads, capacity, width], which a graph updates in place; layers may differ in heads and width.

    The class does not know how many slots of a row hold tokens. The content of the other slots is arbitrary but finite,
    because a mask does not keep NaN out of a sum.
    """

    def __init__(
        self, memory: Memory, decoder: Decoder, batch: int, specs: Mapping[str, TensorSpec], fixed: int | None = None
    ):
        """`specs`: the graph's inputs, by name; a slot is as wide as they are. `fixed`: the engine's only capacity."""
        self._memory, self._decoder, self._batch = memory, decoder, batch
        self._specs, self._fixed = specs, fixed
        self.capacity = 0
        self.version = 0  # of the buffers: it changes with them
        self.buffers: dict[str, Buffer] = {}  # "key_0", "value_0", ... -> the buffer

    def reserve(self, slots: int) -> None:
        """Give every row at least `slots` slots."""
        if slots > self.capacity:
            self.resize(self._fixed or _in_steps(slots))

    def can_shrink(self, slots: int) -> bool:
        """Whether the buffers are smaller where every row has `slots` slots."""
        return self._fixed is None and _in_steps(slots) < self.capacity

    def shrink(self, slots: int) -> None:
        """Leave every row `slots` slots, if that is less; no row has tokens in others."""
        if self.can_shrink(slots):
            self.resize(_in_steps(slots))

    def resize(self, capacity: int) -> None:
        """Give every row `capacity` slots; the content of those that remain is copied to new buffers.

        Raises `UsageError` for more than the machine's memory holds.
        """
        kept = slice(min(capacity, self.capacity))
        caches = self._decoder.layer_caches
        heads = [cache.heads for cache in caches for _ in KINDS]
        shapes = {}
        for name, count in zip(cache_names(len(caches)), heads, strict=True):
            spec = self._specs[PAST + name]
            shapes[name] = (self._batch, count, capacity, int(spec.shape[-1])), spec.dtype
        self._check_memory(sum(prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes.values()), capacity)
        for name, (shape, dtype) in shapes.items():
            old, new = self.buffers.get(name), self._memory.zeros(shape, dtype)
            if old is not None:  # one at a time, so that old and new buffers coexist for one layer only
                self._memory.copy(new[:, :, kept], old[:, :, kept])
                self._memory.release(old)
            self.buffers[name] = new
        self.capacity, self.version = capacity, self.version + 1

    def _check_memory(self, size: int, capacity: int) -> None:
        """Raise `UsageError` for `size` bytes that the host has not: zeros take no memory until they are written."""
        limit = memory_limit()
        if isinstance(self._memory, HostMemory) and limit is not None and size > limit:
            raise UsageError(
                f"a KV cache of {self._batch} sequences of {capacity} slots takes {size / 1e9:.0f} GB, this machine "
                f"has {limit / 1e9:.0f} GB. Ask for fewer sequences or tokens at a time."
            )

    def bound(self, rows: slice, layers: int) -> dict[str, Buffer]:
        """The cache inputs and outputs of the first `layers` blocks, for `rows`."""
        views = {name: self.buffers[name][rows] for name in cache_names(layers)}
        return {when + name: view for name, view in views.items() for when in (PAST, PRESENT)}

    def keep(self, row: int, start: int, places: Sequence[int]) -> None:
        """Compact a row: move the slots start + places to the slots from `start` on; `places` ascend."""
        for target, source, count in moves(places):
            new = slice(start + target, start + target + count)
            old = slice(start + source, start + source + count)
            for buffer in self.buffers.values():
                self._memory.copy(buffer[row, :, new], buffer[row, :, old])

    def copy(self, source: int, row: int, length: int, layers: int) -> None:
        """Let the first `length` slots of `row` hold what those of another row do, in the first `layers` blocks."""
        if source != row:
            for name in cache_names(layers):
                buffer = self.buffers[name]
                self._memory.copy(buffer[row, :, :length], buffer[source, :, :length])

    def release(self) -> None:
        """Free the buffers."""
        for buffer in self.buffers.values():
            self._memory.release(buffer)
        self.buffers.clear()
        self.capacity = 0


def _in_steps(slots: int) -> int:
    return -(-slots // CAPACITY_STEP) * CAPACITY_STEP


def moves(places: Sequence[int]) -> list[tuple[int, int, int]]:
    """The moves (to, from, count) that bring ascending `places` to 0, 1, 2, ..., in order, without overlaps."""
    found: list[tuple[int, int, int]] = []
    for index, place in enumerate(places):
        if index == place:
            continue
        if found and (last := found[-1])[1] + last[2] == place and last[2] < place - index:
            found[-1] = (last[0], last[1], last[2] + 1)
        else:
            found.append((index, place, 1))
    return found
