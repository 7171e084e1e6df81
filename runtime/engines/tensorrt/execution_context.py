"""A TensorRT context and what is set in it: shapes, addresses, and a graph of what it enqueued last."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from intaglio.errors import EngineError
from intaglio.runtime.engines.device_memory import DeviceMemory
from intaglio.runtime.engines.tensorrt.graph_replay import GraphReplay
from intaglio.runtime.engines.tensorrt.library import Log, reasons

Shape = tuple[int, ...]


def succeeded(done: bool, what: str, log: Log) -> None:
    """Raise `EngineError` with the library's reasons unless `done`."""
    if not done:
        raise EngineError(f"TensorRT failed at {what}: {reasons(log)}. Re-build the engine, or use --target ort-cpu.")


class ExecutionContext:
    """Sets in `context`, an `IExecutionContext`, only what changes. `replays`: CUDA graphs of runs that repeat."""

    def __init__(self, context: Any, memory: DeviceMemory, log: Log, replays: bool) -> None:
        self._context, self._memory, self._log = context, memory, log
        self._shapes: dict[str, Shape] = {}
        self._addresses: dict[str, int] = {}
        self._replay = GraphReplay(memory, self._enqueue) if replays else None

    def set_shape(self, name: str, shape: Shape) -> None:
        """Set the shape of an input."""
        if self._shapes.get(name) != shape:
            succeeded(self._context.set_input_shape(name, shape), f"setting the shape of {name}", self._log)
            self._shapes[name] = shape
            self._changed()

    def output_shape(self, name: str) -> Shape:
        """The shape of an output for the shapes of the inputs."""
        shape = tuple(self._context.get_tensor_shape(name))
        if min(shape, default=0) < 0:
            raise EngineError(
                f"output {name}: its shape depends on the inputs' values, which is not supported with TensorRT. "
                "Use --target ort-cpu."
            )
        return shape

    def run(self, addresses: Mapping[str, int]) -> None:
        """Put a run on the memory's stream, on tensors at these addresses."""
        for name, address in addresses.items():
            if self._addresses.get(name) != address:
                succeeded(self._context.set_tensor_address(name, address), f"setting the address of {name}", self._log)
                self._addresses[name] = address
                self._changed()
        succeeded(self._enqueue() if self._replay is None else self._replay.run(), "running", self._log)

    def close(self) -> None:
        """Free what the context holds."""
        with suppress(EngineError):  # after an error of the GPU every call fails
            self._changed()
        self._context = None

    def _enqueue(self) -> bool:
        return bool(self._context.execute_async_v3(self._memory.stream))

    def _changed(self) -> None:
        if self._replay is not None:
            self._replay.changed()
