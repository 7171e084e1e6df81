"""Named buffers in a GPU's memory, and the stream that copies to and from them."""

from __future__ import annotations

from typing import Any

from intaglio.extras import load
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.engines.gpus import check_status

SMALLEST = 256  # bytes; TensorRT wants an address even for an empty tensor


class DeviceMemory:
    """Buffers that grow when they must and stay until `close`. Every CUDA status is checked: `EngineError`."""

    def __init__(self) -> None:
        self._cuda: Any = load("cuda.bindings.runtime")
        self._buffers: dict[str, tuple[int, int]] = {}  # name -> (address, bytes)
        self._stream: Any = None
        self._stream = self._call("cudaStreamCreate")

    @property
    def stream(self) -> int:
        """The stream's handle; work enqueued on it runs in order."""
        return int(self._stream)

    def address(self, name: str, size: int) -> int:
        """The address of the buffer `name`, of at least `size` bytes; a larger one may lie elsewhere than before."""
        address, capacity = self._buffers.get(name, (0, 0))
        if capacity < max(size, SMALLEST):
            if address:
                self._call("cudaFree", address)  # waits for the work that uses it
                del self._buffers[name]
            capacity = max(size, SMALLEST)
            address = int(self._call("cudaMalloc", capacity))
            self._buffers[name] = address, capacity
        return address

    def upload(self, name: str, array: Array) -> None:
        """Enqueue the copy of a contiguous array into its buffer; keep the array until `wait`."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call("cudaMemcpyAsync", self._buffers[name][0], array.ctypes.data, array.nbytes, kind, self._stream)

    def download(self, name: str, array: Array) -> None:
        """Enqueue the copy of a buffer into a contiguous array, complete after `wait`."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", array.ctypes.data, self._buffers[name][0], array.nbytes, kind, self._stream)

    def wait(self) -> None:
        """Wait until everything on the stream is done."""
        self._call("cudaStreamSynchronize", self._stream)

    def close(self) -> None:
        """Free every buffer and the stream."""
        while self._buffers:
            _, (address, _) = self._buffers.popitem()
            self._call("cudaFree", address)
        if self._stream is not None:
            stream, self._stream = self._stream, None
            self._call("cudaStreamDestroy", stream)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the CUDA runtime, check its status, and return what it gave beside it."""
        status, *values = getattr(self._cuda, name)(*arguments)
        check_status(self._cuda, name, status)
        return values[0] if values else None
