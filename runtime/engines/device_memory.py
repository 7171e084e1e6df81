"""A CUDA device's memory, and the stream on which all its operations run in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from intaglio.extras import load
from intaglio.runtime.engines.device_array import DeviceArray
from intaglio.runtime.engines.gpus import check_status
from intaglio.runtime.engines.memory import Buffer, Memory

Array = npt.NDArray[Any]
SMALLEST = 256  # bytes; TensorRT wants an address even for an empty tensor


class DeviceMemory(Memory):
    """Buffers in the memory of the current CUDA device, until `close`. Every CUDA status is checked: `EngineError`.

    Copies to host memory are complete after `wait`. Those from pageable memory have left it when they return, since
    they go through a buffer of the driver's.
    """

    def __init__(self) -> None:
        self._cuda: Any = load("cuda.bindings.runtime")
        self._allocated: set[int] = set()
        self._stream: Any = None
        # One that does not wait for the legacy stream: while it is captured, other threads may use that one.
        self._stream = self._call("cudaStreamCreateWithFlags", self._cuda.cudaStreamNonBlocking)
        self.device = int(self._call("cudaGetDevice"))

    @property
    def stream(self) -> int:
        """The stream's handle; work enqueued on it runs in order."""
        return int(self._stream)

    def zeros(self, shape: Sequence[int], dtype: npt.DTypeLike) -> DeviceArray:
        """See `Memory`."""
        array = self.empty(shape, dtype)
        self.fill(array, 0)
        return array

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike) -> DeviceArray:
        """A new contiguous buffer with undefined content."""
        size = DeviceArray.contiguous_at(0, shape, dtype).nbytes
        address = int(self._call("cudaMalloc", max(size, SMALLEST)))
        self._allocated.add(address)
        return DeviceArray.contiguous_at(address, shape, dtype)

    def fill(self, buffer: Buffer, value: int) -> None:
        """See `Memory`."""
        assert isinstance(buffer, DeviceArray) and buffer.contiguous, "a contiguous buffer of this memory"
        if buffer.nbytes:
            self._call("cudaMemsetAsync", buffer.address, value, buffer.nbytes, self._stream)

    def copy(self, target: Buffer, source: Buffer) -> None:
        """See `Memory`."""
        assert (target.ndim, target.dtype) == (source.ndim, source.dtype), "arrays of the same rank and dtype"
        to, start = _place(target), _repeated(_place(source), source.shape, target.shape)
        kind = getattr(self._cuda.cudaMemcpyKind, f"cudaMemcpy{start.where}To{to.where}")
        for block in _blocks(target.shape, target.dtype.itemsize, to, start):
            if block.rows == 1:
                self._call("cudaMemcpyAsync", block.target, block.source, block.width, kind, self._stream)
            else:
                pitched = (block.target, block.target_pitch, block.source, block.source_pitch, block.width, block.rows)
                self._call("cudaMemcpy2DAsync", *pitched, kind, self._stream)

    def descending_windows(self, line: Buffer, width: int) -> DeviceArray:
        """See `Memory`."""
        assert isinstance(line, DeviceArray) and line.contiguous, "a contiguous buffer of this memory"
        last, size = line.shape[0] - width, line.dtype.itemsize
        return DeviceArray(line.address + last * size, (last + 1, width), line.dtype, (-size, size))

    def release(self, buffer: Buffer) -> None:
        """See `Memory`; waits for the work that uses the buffer."""
        assert isinstance(buffer, DeviceArray), "a buffer of this memory"
        self._allocated.discard(buffer.address)
        self._call("cudaFree", buffer.address)

    def pin(self, array: Array) -> bool:
        """Keep a contiguous array of the host in memory that the device reads and writes directly, until `unpin`.

        False where the system does not allow it: copies work then, too, through a buffer of the driver's.
        """
        (status,) = self._cuda.cudaHostRegister(array.ctypes.data, array.nbytes, 0)
        if status != self._cuda.cudaError_t.cudaSuccess:
            self._cuda.cudaGetLastError()  # or the next call would report it
            return False
        return True

    def unpin(self, address: int) -> None:
        """Let the system move an array again, by its address; nothing may be copied to it any more."""
        self._cuda.cudaHostUnregister(address)

    def captured(self, enqueue: Callable[[], bool]) -> Any:
        """What `enqueue` puts on the stream, as a graph for `replay`, until `drop`; None if it cannot be captured.

        Nothing of it runs.
        """
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", self._stream, mode)
        try:
            done = enqueue()
        finally:
            status, graph = self._cuda.cudaStreamEndCapture(self._stream)
        if status != self._cuda.cudaError_t.cudaSuccess or graph is None:
            self._cuda.cudaGetLastError()  # or the next call would report it
            return None
        made = self._cuda.cudaGraphInstantiate(graph, 0) if done else (None, None)
        self._call("cudaGraphDestroy", graph)
        if made[0] != self._cuda.cudaError_t.cudaSuccess:
            self._cuda.cudaGetLastError()
            return None
        return made[1]

    def replay(self, graph: Any) -> None:
        """Put the work of a graph on the stream."""
        self._call("cudaGraphLaunch", graph, self._stream)

    def drop(self, graph: Any) -> None:
        """Free a graph, once its work is done."""
        self.wait()
        self._call("cudaGraphExecDestroy", graph)

    def wait(self) -> None:
        """Wait until everything on the stream is done."""
        self._call("cudaStreamSynchronize", self._stream)

    def close(self) -> None:
        """Free every buffer and the stream."""
        while self._allocated:
            self._call("cudaFree", self._allocated.pop())
        if self._stream is not None:
            stream, self._stream = self._stream, None
            self._call("cudaStreamDestroy", stream)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the CUDA runtime, check its status, and return its other results."""
        status, *values = getattr(self._cuda, name)(*arguments)
        check_status(self._cuda, name, status)
        return values[0] if values else None


class _Place(NamedTuple):
    """The location of an array: an address of the host or the device, and the stride of each axis in bytes."""

    where: str
    address: int
    strides: tuple[int, ...]


class _Block(NamedTuple):
    """One CUDA 2-D copy: `rows` of `width` bytes each, with a pitch between row starts on either side."""

    target: int
    source: int
    width: int
    rows: int
    target_pitch: int
    source_pitch: int


def _place(array: Buffer) -> _Place:
    if isinstance(array, DeviceArray):
        return _Place("Device", array.address, array.strides)
    host = np.asarray(array)
    return _Place("Host", host.ctypes.data, host.strides)


def _repeated(source: _Place, shape: Sequence[int], wanted: Sequence[int]) -> _Place:
    """`source` of `shape`, with its axes of length 1 broadcast to `wanted`."""
    assert all(got in (1, want) for got, want in zip(shape, wanted, strict=True)), f"{shape} for {wanted}"
    strides = [0 if got != want else stride for got, want, stride in zip(shape, wanted, source.strides, strict=True)]
    return source._replace(strides=tuple(strides))


def _blocks(shape: Sequence[int], itemsize: int, target: _Place, source: _Place) -> Iterator[_Block]:
    """The copies that move `shape` elements from `source` to `target`: as few as CUDA's rows and pitches allow."""
    if not all(shape):
        return
    axes = [axis for axis in zip(shape, target.strides, source.strides, strict=True) if axis[0] > 1]
    width = itemsize
    while axes and axes[-1][1:] == (width, width):
        width *= axes.pop()[0]
    axes = _merged(axes)
    rows, target_pitch, source_pitch = 1, width, width
    if axes and min(axes[-1][1:]) >= width:
        rows, target_pitch, source_pitch = axes.pop()
    for place in product(*(range(length) for length, _, _ in axes)):
        to = sum(index * stride for index, (_, stride, _) in zip(place, axes, strict=True))
        start = sum(index * stride for index, (_, _, stride) in zip(place, axes, strict=True))
        yield _Block(target.address + to, source.address + start, width, rows, target_pitch, source_pitch)


def _merged(axes: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The axes (length, stride of the target, of the source), with adjacent contiguous axes merged."""
    merged: list[tuple[int, int, int]] = []
    for length, to, start in axes:
        if merged and merged[-1][1:] == (length * to, length * start):
            length *= merged.pop()[0]
        merged.append((length, to, start))
    return merged
