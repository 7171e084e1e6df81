"""The engine on TensorRT and TensorRT-RTX."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from intaglio.bundle.bundle import MODEL, Bundle, EngineRecord, TensorSpec
from intaglio.errors import EngineError
from intaglio.extras import load
from intaglio.plugins.trt import load_plugins
from intaglio.runtime.engines import gpus, profiles
from intaglio.runtime.engines.caches.engine_caches import check_record, with_slots
from intaglio.runtime.engines.device_array import DeviceArray
from intaglio.runtime.engines.device_memory import DeviceMemory
from intaglio.runtime.engines.engine import Array, Binding, Engine, Opening, check_buffers
from intaglio.runtime.engines.gpus import Gpu
from intaglio.runtime.engines.memory import Buffer
from intaglio.runtime.engines.tensorrt.contexts import Contexts
from intaglio.runtime.engines.tensorrt.execution_context import succeeded
from intaglio.runtime.engines.tensorrt.library import DTYPES, library_name, logger, no_collection
from intaglio.runtime.engines.tensorrt.plan_options import check_host_code, check_library, runs_on
from intaglio.runtime.engines.tensorrt.refit import refit
from intaglio.runtime.engines.tensorrt.rtx_context import location
from intaglio.targets import TARGETS, Target, without_gpu

PINNED = 1 << 16  # bytes of an output from which it is pinned


class TensorRTEngine(Engine):
    """The engine that `intaglio build` added to the bundle for this machine's GPU.

    Arrays in host memory are copied to the GPU and back, through buffers that grow on demand and are kept; buffers in
    `memory` are used in place. Symbolic axes accept the lengths of the engine's optimisation profile. Runs that repeat
    are CUDA graphs, see `graph_replay`. Not thread-safe.
    `graph` is the bundle's ONNX file that it was built from. Raises `EngineError` without a CUDA device, without an
    engine for it, or for another version of the library; `UsageError` for `cache_bits` that it was not built with. An
    engine without weights gets those of its graph, see `refit`; one with code for the host is refused unless the
    environment allows it, see `plan_options`.
    """

    memory: DeviceMemory

    @no_collection()
    def __init__(self, bundle: Bundle, target: str, graph: str = MODEL, cache_bits: int | None = None):
        device = gpus.present()
        if device is None:
            raise EngineError(f"target {target}: no CUDA device. Use --target {without_gpu()}, which needs none.")
        record = select(bundle, target, device, graph)
        check_record(record, cache_bits)
        self.cache_bits = record.cache_bits
        trt = load(TARGETS[target].library)
        check_library(record, library_name(trt))
        check_host_code(record)
        whole = with_slots(bundle.graph(graph), record.cache_bits)
        self.inputs, self.outputs = tuple(whole.inputs), tuple(whole.outputs)
        self.axes = {**whole.axes, **profiles.limits(self.inputs, record.profiles)}
        self.memory = DeviceMemory()
        self._staging: dict[str, DeviceArray] = {}  # name -> staging buffer for an array in host memory
        self._contexts: Contexts | None = None
        try:
            code = None
            if TARGETS[target].takes_gpus:
                load_plugins(trt)  # an engine of TensorRT has its plugins itself
                code = location(bundle.manifest.files[record.path].sha256, library_name(trt), device.name)
            self._log = log = logger(trt)
            self._runtime = trt.Runtime(log)
            if record.plan.version_compatible:
                self._runtime.engine_host_code_allowed = True
            self._engine = self._runtime.deserialize_cuda_engine((bundle.path / record.path).read_bytes())
            succeeded(self._engine is not None, f"opening {record.path}", log)
            if record.plan.strip_weights:
                refit(trt, self._engine, bundle, record, log)
            names = [spec.name for spec in self.inputs]
            self._contexts = Contexts(trt, self._engine, names, self.memory, log, code)
            for spec in (*self.inputs, *self.outputs):
                self._check_tensor(trt, spec)
        except BaseException:
            self.close()
            raise

    def _run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        arrays = {spec.name: np.ascontiguousarray(feeds[spec.name]) for spec in self.inputs}
        context = self._open.for_shapes({name: array.shape for name, array in arrays.items()})
        results: dict[str, Array] = {
            spec.name: np.empty(context.output_shape(spec.name), spec.dtype) for spec in self.outputs
        }
        _TensorRTBinding(self, {**arrays, **results}).run()
        return results

    def bind(self, buffers: Mapping[str, Buffer]) -> Binding:
        """See `Engine`. Raises `EngineError` for a cache of `memory` that the engine does not update in place."""
        check_buffers(self, buffers)
        for output in self.outputs:
            shared = [spec.name for spec in self.inputs if buffers[spec.name] is buffers[output.name]]
            if shared and self._aliased(output.name) != shared[0]:
                raise EngineError(
                    f"output {output.name}: this engine does not update {shared[0]} in place. "
                    "Re-build it with TensorRT 10.15 or TensorRT-RTX 1.3, or later."
                )
        binding = _TensorRTBinding(self, buffers)
        binding.pin()
        return binding

    def close(self) -> None:
        """Free the contexts, the engine and the GPU's memory."""
        if self._contexts is not None:
            self._contexts.close()
        self._contexts = self._engine = self._runtime = None  # in this order: each was created by the next
        self.memory.close()

    def execute(self, buffers: Mapping[str, DeviceArray]) -> None:
        """Run on buffers of `memory`, which hold the inputs."""
        context = self._open.for_shapes({spec.name: buffers[spec.name].shape for spec in self.inputs})
        context.run({name: buffer.address for name, buffer in buffers.items()})

    @property
    def _open(self) -> Contexts:
        assert self._contexts is not None, "the engine is closed"
        return self._contexts

    def staged(self, name: str, array: Array) -> DeviceArray:
        """The staging buffer in `memory` for an array in host memory; it is replaced if the array is larger."""
        held = self._staging.get(name)
        if held is None or held.nbytes < array.nbytes:
            if held is not None:
                self.memory.release(held)
            held = self._staging[name] = self.memory.empty([array.nbytes], np.uint8)
        return DeviceArray.contiguous_at(held.address, array.shape, array.dtype)

    def _aliased(self, output: str) -> str | None:
        """The input (a cache) that an output updates in place."""
        aliased = getattr(self._engine, "get_aliased_input_tensor", None)  # TensorRT before 10.15 knows no caches
        return (aliased and aliased(output)) or None

    def _check_tensor(self, trt: Any, spec: TensorSpec) -> None:
        """Check that the engine's dtype is the manifest's, which the buffers have."""
        found = self._engine.get_tensor_dtype(spec.name).name
        if found != DTYPES.get(spec.dtype):
            raise EngineError(
                f"tensor {spec.name}: dtype {found} in the engine, {spec.dtype} in the manifest. Re-build the engine."
            )


class _TensorRTBinding(Binding):
    """Copies arrays in host memory to the GPU before a run and back after it; buffers in the engine's memory stay."""

    def __init__(self, engine: TensorRTEngine, buffers: Mapping[str, Buffer]):
        self._engine = engine
        self._resident = {name: buffer for name, buffer in buffers.items() if isinstance(buffer, DeviceArray)}
        host: dict[str, Array] = {
            name: np.asarray(buffer) for name, buffer in buffers.items() if name not in self._resident
        }
        self._up = {spec.name: host[spec.name] for spec in engine.inputs if spec.name in host}
        self._down = {spec.name: host[spec.name] for spec in engine.outputs if spec.name in host}

    def pin(self) -> None:
        """Let the GPU write large outputs directly: for arrays of many runs, as pinning them takes a system call."""
        for array in self._down.values():
            if array.nbytes >= PINNED and array.flags.c_contiguous and self._engine.memory.pin(array):
                weakref.finalize(self, self._engine.memory.unpin, array.ctypes.data)

    def run(self) -> None:
        """See `Binding`."""
        engine, placed = self._engine, dict(self._resident)
        for name, array in self._up.items():
            placed[name] = engine.staged(name, array)
            engine.memory.copy(placed[name], array)
        for name, array in self._down.items():
            aliased = engine._aliased(name)
            placed[name] = placed[aliased] if aliased else engine.staged(name, array)
        engine.execute(placed)
        for name, array in self._down.items():
            engine.memory.copy(array, placed[name])
        engine.memory.wait()


def open_target(source: Path | Bundle, target: Target, options: Opening) -> TensorRTEngine:
    """Open a bundle's engine; see `targets`."""
    assert isinstance(source, Bundle), "this target runs bundles only"
    return TensorRTEngine(source, target.name, options.graph, options.cache_bits)


def select(bundle: Bundle, target: str, device: Gpu, graph: str = MODEL) -> EngineRecord:
    """The bundle's engine of `graph` for `target` that runs on the device; see `runs_on`.

    Raises `EngineError` that lists the existing engines.
    """
    records = [record for record in bundle.manifest.engines if (record.target, record.graph) == (target, graph)]
    fitting = [record for record in records if runs_on(record, device)]
    if fitting:  # first the one that was built on such a GPU
        return min(fitting, key=lambda record: (record.sm != device.sm, record.gpu != device.name))
    present = ", ".join(f"{record.gpu} (SM{record.sm})" for record in records) or "none"
    option = f" --gpu {device.name}" if target == "tensorrt-rtx" else ""
    raise EngineError(
        f"bundle {bundle.path}: no {target} engine for {device.name} (SM{device.sm}); it has {present}. "
        f"Build one with: intaglio build {bundle.path} --target {target}{option}"
    )
