"""A stand-in for `cuda.bindings.runtime`: memory, streams, copies and graphs, in the memory of this process."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from device_meter import Ledger

Shape = tuple[int, ...]


class _Status(enum.Enum):
    cudaSuccess = 0  # noqa: N815
    cudaErrorMemoryAllocation = 2  # noqa: N815
    cudaErrorStreamCaptureInvalidated = 901  # noqa: N815
    cudaErrorInsufficientDriver = 35  # noqa: N815
    cudaErrorNoDevice = 100  # noqa: N815


class _Kind(enum.Enum):
    cudaMemcpyHostToDevice = 1  # noqa: N815
    cudaMemcpyDeviceToHost = 2  # noqa: N815
    cudaMemcpyDeviceToDevice = 3  # noqa: N815


class Runtime:
    """`cuda.bindings.runtime`, limited to the functions in use."""

    cudaError_t = _Status  # noqa: N815
    cudaMemcpyKind = _Kind  # noqa: N815
    cudaStreamNonBlocking = 1  # noqa: N815
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)  # noqa: N815

    def __init__(self, ledger: Ledger):
        self.ledger = ledger
        self.capturing: list[Callable[[], None]] | None = None  # what a stream is given meanwhile
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.replays = 0
        self.profiles: list[dict[str, tuple[Shape, Shape, Shape]]] = [{}]  # of engines, if a test gives them several
        self.refuses_capture = False
        self.pinned: dict[int, int] = {}  # address of the host -> bytes
        self.refuses_pinning = False
        self._arrays: dict[int, Any] = {}
        self.streams: set[int] = set()
        self._late: dict[
            int, list[tuple[int, bytes]]
        ] = {}  # stream -> copies to the host, which complete when it is waited for
        self.driver: Any = None  # the stand-in for the driver, which launches kernels

    def cudaGetDevice(self) -> tuple[_Status, int]:  # noqa: N802
        return _Status.cudaSuccess, 0

    def cudaGetDeviceProperties(self, device: int) -> tuple[_Status, Any]:  # noqa: N802
        return _Status.cudaSuccess, SimpleNamespace(name=b"NVIDIA A100-SXM4-40GB", major=8, minor=0)

    def cudaGetErrorString(self, status: _Status) -> tuple[_Status, bytes]:  # noqa: N802
        return _Status.cudaSuccess, status.name.encode()

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[_Status, int]:  # noqa: N802
        assert flags == self.cudaStreamNonBlocking
        self.streams.add(number := len(self.streams) + 1)
        return _Status.cudaSuccess, number

    def cudaStreamDestroy(self, stream: int) -> tuple[_Status]:  # noqa: N802
        self.streams.remove(stream)
        return (_Status.cudaSuccess,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[_Status]:  # noqa: N802
        assert stream in self.streams
        for target, content in self._late.pop(stream, []):
            ctypes.memmove(target, content, len(content))
        return (_Status.cudaSuccess,)

    def cudaStreamBeginCapture(self, stream: int, mode: int) -> tuple[_Status]:  # noqa: N802
        assert stream in self.streams and self.capturing is None
        self.capturing = []
        return (_Status.cudaSuccess,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[_Status, Any]:  # noqa: N802
        captured, self.capturing = self.capturing, None
        if self.refuses_capture:
            return _Status.cudaErrorStreamCaptureInvalidated, None
        return _Status.cudaSuccess, captured

    def cudaGetLastError(self) -> tuple[_Status]:  # noqa: N802
        return (_Status.cudaErrorStreamCaptureInvalidated,)

    def cudaGraphInstantiate(self, graph: list[Callable[[], None]], flags: int) -> tuple[_Status, int]:  # noqa: N802
        self.graphs[number := len(self.graphs) + 1] = graph
        return _Status.cudaSuccess, number

    def cudaGraphDestroy(self, graph: list[Callable[[], None]]) -> tuple[_Status]:  # noqa: N802
        return (_Status.cudaSuccess,)

    def cudaGraphLaunch(self, graph: int, stream: int) -> tuple[_Status]:  # noqa: N802
        assert stream in self.streams
        for work in self.graphs[graph]:
            work()
        self.replays += 1
        return (_Status.cudaSuccess,)

    def cudaGraphExecDestroy(self, graph: int) -> tuple[_Status]:  # noqa: N802
        del self.graphs[graph]
        return (_Status.cudaSuccess,)

    def cudaHostRegister(self, address: int, size: int, flags: int) -> tuple[_Status]:  # noqa: N802
        if self.refuses_pinning:
            return (_Status.cudaErrorMemoryAllocation,)
        assert address not in self.pinned
        self.pinned[address] = size
        return (_Status.cudaSuccess,)

    def cudaHostUnregister(self, address: int) -> tuple[_Status]:  # noqa: N802
        del self.pinned[address]
        return (_Status.cudaSuccess,)

    def cudaMalloc(self, size: int) -> tuple[_Status, int]:  # noqa: N802
        array = np.full(size, 0xA5, np.uint8)  # uninitialised memory has arbitrary content
        self._arrays[array.ctypes.data] = array
        self.ledger.allocate(array.ctypes.data, size)
        return _Status.cudaSuccess, array.ctypes.data

    def cudaFree(self, address: int) -> tuple[_Status]:  # noqa: N802
        del self._arrays[address]
        self.ledger.free(address)
        return (_Status.cudaSuccess,)

    def cudaMemsetAsync(self, address: int, value: int, size: int, stream: int) -> tuple[_Status]:  # noqa: N802
        self.check(address, size)
        ctypes.memset(address, value, size)
        return (_Status.cudaSuccess,)

    def cudaMemcpyAsync(  # noqa: N802
        self, target: int, source: int, size: int, kind: _Kind, stream: int
    ) -> tuple[_Status]:
        self._copy(target, size, source, size, size, 1, kind, stream)
        return (_Status.cudaSuccess,)

    def cudaMemcpy2DAsync(  # noqa: N802
        self,
        target: int,
        target_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        rows: int,
        kind: _Kind,
        stream: int,
    ) -> tuple[_Status]:
        self._copy(target, target_pitch, source, source_pitch, width, rows, kind, stream)
        return (_Status.cudaSuccess,)

    def _copy(
        self,
        target: int,
        target_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        rows: int,
        kind: _Kind,
        stream: int,
    ) -> None:
        assert stream in self.streams and min(target_pitch, source_pitch) >= width
        for row in range(rows):
            to, start = target + row * target_pitch, source + row * source_pitch
            if kind is not _Kind.cudaMemcpyDeviceToHost:
                self.check(to, width)
            if kind is not _Kind.cudaMemcpyHostToDevice:
                self.check(start, width)
            assert abs(to - start) >= width, "the two sides of a copy overlap"
            if kind is _Kind.cudaMemcpyDeviceToHost:
                self._late.setdefault(stream, []).append((to, ctypes.string_at(start, width)))
            else:
                ctypes.memmove(to, start, width)
        self.ledger.copy(width * rows, kind.name)

    def check(self, address: int, size: int) -> None:
        """Allow access only within allocations."""
        inside = any(
            start <= address and address + size <= start + held for start, held in self.ledger.allocated.items()
        )
        assert inside, f"{size} bytes at {address:#x} are not the device's"

    def array(self, address: int, shape: Sequence[int], dtype: str) -> Any:
        """The memory at an address, for a kernel to read and write."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self.check(address, size)
        memory = (ctypes.c_char * size).from_address(address)
        return np.frombuffer(memory, dtype).reshape(shape)
