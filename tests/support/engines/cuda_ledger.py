"""A stand-in for a GPU: CUDA's memory calls, TensorRT's engines and ONNX Runtime's provider for it.

Device memory is memory of this process, so that addresses and strides are real; access outside of allocations is an
error. A TensorRT engine is an ONNX file, which `onnx.reference` runs; all data reach it through the calls.
ONNX Runtime runs on the CPU, see `cuda_provider`. A `Ledger` counts every transferred byte.
"""

from __future__ import annotations

import ctypes
import enum
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import cuda_provider
import numpy as np
import onnx
import pytest
from device_meter import Ledger
from onnx.reference import ReferenceEvaluator

DTYPES = {"FLOAT": "float32", "HALF": "float16", "INT64": "int64", "INT32": "int32", "BOOL": "bool"}


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


class _Runtime:
    """`cuda.bindings.runtime`, limited to the functions in use."""

    cudaError_t = _Status  # noqa: N815
    cudaMemcpyKind = _Kind  # noqa: N815
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)  # noqa: N815

    def __init__(self, ledger: Ledger):
        self.ledger = ledger
        self.capturing: list[Callable[[], None]] | None = None  # what a stream is given meanwhile
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.replays = 0
        self.profiles: list[dict[str, tuple[Shape, Shape, Shape]]] = [{}]  # of engines, if a test gives them several
        self.refuses_capture = False
        self._arrays: dict[int, Any] = {}
        self.streams: set[int] = set()

    def cudaGetDevice(self) -> tuple[_Status, int]:  # noqa: N802
        return _Status.cudaSuccess, 0

    def cudaGetDeviceProperties(self, device: int) -> tuple[_Status, Any]:  # noqa: N802
        return _Status.cudaSuccess, SimpleNamespace(name=b"NVIDIA A100-SXM4-40GB", major=8, minor=0)

    def cudaGetErrorString(self, status: _Status) -> tuple[_Status, bytes]:  # noqa: N802
        return _Status.cudaSuccess, status.name.encode()

    def cudaStreamCreate(self) -> tuple[_Status, int]:  # noqa: N802
        self.streams.add(number := len(self.streams) + 1)
        return _Status.cudaSuccess, number

    def cudaStreamDestroy(self, stream: int) -> tuple[_Status]:  # noqa: N802
        self.streams.remove(stream)
        return (_Status.cudaSuccess,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[_Status]:  # noqa: N802
        assert stream in self.streams
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


class _Context:
    """An execution context."""

    def __init__(self, engine: _Engine):
        self._engine = engine
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}
        self._profile = engine.runtime.profiles[0]

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._addresses[name] = address
        return True

    def set_device_memory(self, address: int, size: int) -> None:
        self._engine.runtime.check(address, size)
        assert size >= self._engine.device_memory_size_v2

    def set_optimization_profile_async(self, number: int, stream: int) -> bool:
        self._profile = self._engine.runtime.profiles[number]
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        if aliased := self._engine.get_aliased_input_tensor(name):
            return self._shapes[aliased]
        axes: dict[str, int] = {}
        for given, shape in self._shapes.items():
            axes |= zip(self._engine.shape(given), shape, strict=True)
        return tuple(axes.get(axis, axis) for axis in self._engine.shape(name))  # type: ignore[misc]

    def execute_async_v3(self, stream: int) -> bool:
        """Run on what is set now; while the stream is captured, when its graph is launched."""
        runtime = self._engine.runtime
        work = partial(self._compute, dict(self._shapes), dict(self._addresses))
        if runtime.capturing is not None:
            runtime.capturing.append(work)
        else:
            work()
        return True

    def _compute(self, shapes: dict[str, tuple[int, ...]], addresses: dict[str, int]) -> None:
        engine, runtime = self._engine, self._engine.runtime
        assert (shapes, addresses) == (self._shapes, self._addresses), "a graph of a context that has changed since"
        for name, (least, _, most) in self._profile.items():
            assert all(a <= b <= c for a, b, c in zip(least, shapes[name], most, strict=True)), f"{name}: no profile"
        feeds = {
            name: runtime.array(addresses[name], shape, engine.dtype(name)).copy() for name, shape in shapes.items()
        }
        for name, found in zip(engine.outputs, engine.evaluator.run(engine.outputs, feeds), strict=True):
            if aliased := engine.get_aliased_input_tensor(name):
                assert addresses[name] == addresses[aliased], "a cache is updated where it lies"
            runtime.array(addresses[name], found.shape, engine.dtype(name))[...] = found
        runtime.ledger.ran(shapes)


class _Engine:
    """An ONNX file as an engine."""

    def __init__(self, runtime: _Runtime, model: onnx.ModelProto):
        self.runtime = runtime
        self.evaluator = ReferenceEvaluator(model)
        self._values = {value.name: value for value in (*model.graph.input, *model.graph.output)}
        self.outputs = [value.name for value in model.graph.output]

    def dtype(self, name: str) -> str:
        return onnx.helper.tensor_dtype_to_np_dtype(self._values[name].type.tensor_type.elem_type).name

    def shape(self, name: str) -> list[str | int]:
        return [axis.dim_param or axis.dim_value for axis in self._values[name].type.tensor_type.shape.dim]

    def get_tensor_dtype(self, name: str) -> Any:
        return SimpleNamespace(name=next(key for key, value in DTYPES.items() if value == self.dtype(name)))

    def get_aliased_input_tensor(self, name: str) -> str:
        return name.replace("present_", "past_") if name.startswith("present_") else ""

    device_memory_size_v2 = 1000

    @property
    def num_optimization_profiles(self) -> int:
        return len(self.runtime.profiles)

    def get_tensor_profile_shape(self, name: str, number: int) -> tuple[Shape, Shape, Shape]:
        return self.runtime.profiles[number][name]

    def create_execution_context(self, strategy: str = "") -> _Context:
        assert (strategy == "by its user") == (len(self.runtime.profiles) > 1)
        return _Context(self)


def _tensorrt(runtime: _Runtime, name: str) -> Any:
    """The module `name`, `tensorrt` or `tensorrt_rtx`, limited to opening and running an engine."""

    class Logger:
        ERROR = 1

    class Runtime:
        def __init__(self, log: Any):
            pass

        def deserialize_cuda_engine(self, data: bytes) -> _Engine:
            return _Engine(runtime, onnx.load_from_string(data))

    registry = SimpleNamespace(all_creators=[], load_library=lambda path: path)
    return SimpleNamespace(
        __name__=name,
        __version__="0.0",
        ILogger=Logger,
        Runtime=Runtime,
        get_plugin_registry=lambda: registry,
        ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED="by its user"),
    )


@contextmanager
def gpu() -> Iterator[Ledger]:
    """A machine with a GPU, TensorRT-RTX and ONNX Runtime for GPUs, inside the block."""
    ledger = Ledger()
    runtime = _Runtime(ledger)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cuda.bindings.runtime", runtime)
        for name in ("tensorrt", "tensorrt_rtx"):
            patch.setitem(sys.modules, name, _tensorrt(runtime, name))
        cuda_provider.install(patch, runtime)
        ledger.runtime = runtime
        yield ledger
