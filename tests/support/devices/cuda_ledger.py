"""A stand-in for a GPU: CUDA's memory calls, TensorRT's engines and ONNX Runtime's provider for it.

Device memory is memory of this process, so that addresses and strides are real; access outside of allocations is an
error. A TensorRT engine is an ONNX file, which `onnx.reference` runs; all data reach it through the calls.
ONNX Runtime runs on the CPU, see `cuda_provider`. A `Ledger` counts every transferred byte.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

import cuda_provider
import kernel_launches
import onnx
import pytest
from cuda_runtime import Runtime as CudaRuntime
from cuda_runtime import Shape
from device_meter import Ledger
from onnx.reference import ReferenceEvaluator

from intaglio.plugins import OPS
from intaglio.validation.comparison.runners import reference_operator

DTYPES = {"FLOAT": "float32", "HALF": "float16", "INT64": "int64", "INT32": "int32", "BOOL": "bool"}


class _Context:
    """An execution context."""

    def __init__(self, engine: Engine):
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


class Engine:
    """An ONNX file as an engine."""

    def __init__(self, runtime: CudaRuntime, model: onnx.ModelProto):
        self.runtime = runtime
        self.model = model
        self._values = {value.name: value for value in (*model.graph.input, *model.graph.output)}
        self.outputs = [value.name for value in model.graph.output]

    @cached_property
    def evaluator(self) -> ReferenceEvaluator:
        return ReferenceEvaluator(self.model, new_ops=[reference_operator(*item) for item in OPS.items()])

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


def _tensorrt(runtime: CudaRuntime, name: str) -> Any:
    """The module `name`, `tensorrt` or `tensorrt_rtx`, limited to opening and running an engine."""

    class Logger:
        ERROR = 1

    class Runtime:
        def __init__(self, log: Any):
            pass

        def deserialize_cuda_engine(self, data: bytes) -> Engine:
            return Engine(runtime, onnx.load_from_string(data))

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
    runtime = CudaRuntime(ledger)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cuda.bindings.runtime", runtime)
        for name in ("tensorrt", "tensorrt_rtx"):
            patch.setitem(sys.modules, name, _tensorrt(runtime, name))
        cuda_provider.install(patch, runtime)
        runtime.driver = kernel_launches.install(patch, runtime.streams)
        ledger.runtime = runtime
        yield ledger
