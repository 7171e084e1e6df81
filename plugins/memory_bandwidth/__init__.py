"""How fast this machine reads memory: the limit of every layer whose weights are read once for each token."""

from __future__ import annotations

import ctypes
import mmap
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from intaglio.errors import EngineError
from intaglio.plugins import ort

HUGE_PAGE = 1 << 21
STEP = 512  # bytes that the kernel reads at once


class Memory:
    """A block of memory that no cache holds, to be read from end to end, a part by each thread.

    `size`: bytes, a multiple of 2 MiB. Raises `EngineError` where the compiled kernels are missing.
    """

    def __init__(self, size: int = 1 << 29) -> None:
        path = ort.library()
        if path is None:
            raise EngineError("memory bandwidth: no compiled kernels. Install a C++ compiler, then intaglio again.")
        self._read = ctypes.CDLL(str(path)).intaglio_read_memory
        self._read.restype = ctypes.c_int64
        self._isa = ort.instruction_set_number()
        self._map = _map(size)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._bytes[:] = 1  # a page that was never written is read from one place

    def read(self, threads: int) -> float:
        """Read all of it once; bytes a second."""
        each = len(self._bytes) // threads // STEP * STEP
        start = self._bytes.ctypes.data

        def part(index: int) -> int:
            address = ctypes.c_void_p(start + index * each)
            result: int = self._read(self._isa, address, ctypes.c_int64(each))
            return result

        if threads == 1:
            begin = time.perf_counter()
            part(0)
            return each / (time.perf_counter() - begin)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(len, [()] * threads))  # the threads have started
            begin = time.perf_counter()
            list(pool.map(part, range(threads)))
            return each * threads / (time.perf_counter() - begin)


def _map(size: int) -> mmap.mmap:
    """Anonymous memory in large pages where the system has them: it gives none to memory that processes may share."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, size)
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_HUGEPAGE)
    return block
