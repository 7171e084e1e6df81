"""The contexts of an engine: one for each of its optimisation profiles, so that none of them ever changes its profile.

A decoder's engine has a profile for steps and one for prompts. A context that changes its profile sets all shapes
again, and its CUDA graph is lost. The contexts share the memory of their activations, as they run one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from intaglio.runtime.engines.device_memory import DeviceMemory
from intaglio.runtime.engines.tensorrt.execution_context import ExecutionContext, Shape, succeeded
from intaglio.runtime.engines.tensorrt.library import Log
from intaglio.runtime.engines.tensorrt.rtx_context import RtxContext

Bounds = Mapping[str, tuple[Shape, Shape]]  # input -> its least and largest shape


class Contexts:
    """The contexts of `engine`, an `ICudaEngine` of the module `trt`, for its `inputs`.

    `code`: of TensorRT-RTX, the file that keeps what it compiles; None for TensorRT. Raises `EngineError`.
    """

    def __init__(
        self, trt: Any, engine: Any, inputs: Sequence[str], memory: DeviceMemory, log: Log, code: Path | None
    ) -> None:
        self._rtx = None if code is None else RtxContext(trt, engine, code)
        self._contexts: list[ExecutionContext] = []
        self._bounds: list[Bounds] = []
        count = 1 if self._rtx is not None else engine.num_optimization_profiles
        if count == 1:
            made = engine.create_execution_context() if self._rtx is None else self._rtx.context
            succeeded(made is not None, "making a context", log)
            self._contexts = [ExecutionContext(made, memory, log, replays=self._rtx is None)]
            return
        activations = memory.empty([engine.device_memory_size_v2], "uint8")
        for number in range(count):
            made = engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
            succeeded(made is not None, "making a context", log)
            made.set_device_memory(activations.address, activations.nbytes)
            done = made.set_optimization_profile_async(number, memory.stream)
            succeeded(done, f"choosing profile {number}", log)
            self._contexts.append(ExecutionContext(made, memory, log, replays=True))
            shapes = {name: engine.get_tensor_profile_shape(name, number) for name in inputs}
            self._bounds.append({name: (tuple(least), tuple(most)) for name, (least, _, most) in shapes.items()})
        memory.wait()

    def for_shapes(self, shapes: Mapping[str, Shape]) -> ExecutionContext:
        """The first context whose profile takes inputs of these shapes, with the shapes set."""
        fitting = (number for number, bounds in enumerate(self._bounds) if _fit(shapes, bounds))
        context = self._contexts[next(fitting, len(self._contexts) - 1)]
        for name, shape in shapes.items():
            context.set_shape(name, shape)
        return context

    def close(self) -> None:
        """Free the contexts, and keep what TensorRT-RTX compiled."""
        for context in self._contexts:
            context.close()
        self._contexts = []
        if self._rtx is not None:
            self._rtx.close()


def _fit(shapes: Mapping[str, Shape], bounds: Bounds) -> bool:
    return all(
        least <= length <= most
        for name, shape in shapes.items()
        for least, length, most in zip(bounds[name][0], shape, bounds[name][1], strict=True)
    )
