"""The engine on TensorRT and TensorRT-RTX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from intaglio.bundle import MODEL, Bundle, EngineRecord, TensorSpec
from intaglio.errors import EngineError
from intaglio.extras import load
from intaglio.runtime.engines import gpus, profiles
from intaglio.runtime.engines.device_memory import DeviceMemory
from intaglio.runtime.engines.engine import Array, Engine
from intaglio.runtime.engines.gpus import Gpu
from intaglio.runtime.engines.tensorrt_library import DTYPES, LIBRARIES, library_name, logger

__all__ = ["LIBRARIES", "TensorRTEngine", "check_library", "select"]


class TensorRTEngine(Engine):
    """The engine that `intaglio build` put into the bundle for this machine's GPU.

    Inputs are copied to the GPU and outputs back, through buffers that grow when they must and stay. Symbolic
    axes take the lengths of the engine's optimisation profile. Not for use from several threads at once.
    `graph` is the bundle's ONNX file that it was built from. Raises `EngineError` without a CUDA device, without an
    engine for it, or for another version of the library.
    """

    def __init__(self, bundle: Bundle, target: str, graph: str = MODEL):
        device = gpus.present()
        if device is None:
            raise EngineError(f"target {target}: no CUDA device. Use --target ort-cpu, which runs on any machine.")
        record = select(bundle, target, device, graph)
        trt = load(LIBRARIES[target])
        check_library(record, library_name(trt))
        whole = bundle.graph(graph)
        self.inputs, self.outputs = tuple(whole.inputs), tuple(whole.outputs)
        self.axes = {**whole.axes, **profiles.limits(self.inputs, record.profiles)}
        self._memory = DeviceMemory()
        try:
            self._log = logger(trt)
            self._runtime = trt.Runtime(self._log)
            self._engine = self._runtime.deserialize_cuda_engine((bundle.path / record.path).read_bytes())
            self._context: Any = None if self._engine is None else self._engine.create_execution_context()
            self._succeeded(self._context is not None, f"opening {record.path}")
            for spec in (*self.inputs, *self.outputs):
                self._check_tensor(trt, spec)
        except BaseException:
            self.close()
            raise

    def _run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        arrays = {spec.name: np.ascontiguousarray(feeds[spec.name]) for spec in self.inputs}
        for name, array in arrays.items():
            self._succeeded(self._context.set_input_shape(name, array.shape), f"setting the shape of {name}")
        results = {spec.name: np.empty(self._output_shape(spec), spec.dtype) for spec in self.outputs}
        for name, array in (arrays | results).items():
            address = self._memory.address(self._place(name), array.nbytes)
            self._succeeded(self._context.set_tensor_address(name, address), f"setting the address of {name}")
        for name, array in arrays.items():
            self._memory.upload(name, array)
        self._succeeded(self._context.execute_async_v3(self._memory.stream), "running")
        for name, array in results.items():
            self._memory.download(self._place(name), array)
        self._memory.wait()
        return results

    def close(self) -> None:
        """Free the context, the engine and the GPU's memory."""
        self._context = self._engine = self._runtime = None  # in this order: each was made by the next
        self._memory.close()

    def _place(self, name: str) -> str:
        """The buffer of a tensor: its own, or for a cache that is updated where it lies that of the input."""
        aliased = getattr(self._engine, "get_aliased_input_tensor", None)  # TensorRT before 10.15 knows no caches
        return (aliased and aliased(name)) or name

    def _output_shape(self, spec: TensorSpec) -> tuple[int, ...]:
        """Shape of an output for the input shapes that are set."""
        shape = tuple(self._context.get_tensor_shape(spec.name))
        if min(shape, default=0) < 0:
            raise EngineError(
                f"output {spec.name}: its shape depends on the inputs' values, not on their shapes alone, which "
                "TensorRT engines are not run with here. Use --target ort-cpu."
            )
        return shape

    def _check_tensor(self, trt: Any, spec: TensorSpec) -> None:
        """The buffers follow the manifest, so the engine's dtype must be the manifest's."""
        found = self._engine.get_tensor_dtype(spec.name).name
        if found != DTYPES.get(spec.dtype):
            raise EngineError(
                f"tensor {spec.name}: the engine has {found}, the manifest {spec.dtype}. Build the engine anew."
            )

    def _succeeded(self, result: bool, what: str) -> None:
        if not result:
            reason = " ".join(self._log.errors[-1].split()) if self._log.errors else "no reason was given"
            raise EngineError(f"TensorRT failed at {what}: {reason}. Build the engine anew, or use --target ort-cpu.")


def select(bundle: Bundle, target: str, device: Gpu, graph: str = MODEL) -> EngineRecord:
    """The bundle's engine of `graph` for `target` and the device's SM.

    Raises `EngineError` with the engines that are there.
    """
    records = [record for record in bundle.manifest.engines if (record.target, record.graph) == (target, graph)]
    for record in records:
        if record.sm == device.sm:
            return record
    present = ", ".join(f"{record.gpu} (SM{record.sm})" for record in records) or "none"
    option = f" --gpu {device.name}" if target == "tensorrt-rtx" else ""
    raise EngineError(
        f"bundle {bundle.path}: no {target} engine for {device.name} (SM{device.sm}); it has {present}. "
        f"Build one with: intaglio build {bundle.path} --target {target}{option}"
    )


def check_library(record: EngineRecord, installed: str) -> None:
    """Raise `EngineError` unless the engine was built by the installed version of the library."""
    if record.library != installed:
        raise EngineError(
            f"engine {record.path}: built by {record.library}, installed is {installed}, and engines open only in "
            f"the version that built them. Build it anew with --force, or install {record.library.replace(' ', '==')}."
        )
