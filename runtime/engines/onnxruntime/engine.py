"""The engine on ONNX Runtime: its CPU provider, or CUDA if the installed build has it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from intaglio.bundle.bundle import MODEL, Axis, Bundle, TensorSpec
from intaglio.errors import EngineError, one_line
from intaglio.extras import load
from intaglio.plugins.registry import OF_SESSIONS, PACKED
from intaglio.processes.threads import check_threads, usable_threads
from intaglio.runtime.adapters.adapters import Adapters
from intaglio.runtime.adapters.side_path import add_side_paths
from intaglio.runtime.engines.caches.cached_attention import attend_by_our_kernel
from intaglio.runtime.engines.caches.quantized_cache import quantize_caches
from intaglio.runtime.engines.device_array import DeviceArray
from intaglio.runtime.engines.device_memory import DeviceMemory
from intaglio.runtime.engines.engine import Array, Binding, Engine, Opening, check_buffers
from intaglio.runtime.engines.memory import Buffer
from intaglio.runtime.engines.onnx_nodes import import_our_domain
from intaglio.runtime.engines.onnxruntime.custom_operators import runnable
from intaglio.runtime.engines.onnxruntime.exact_products import keep_activations
from intaglio.runtime.engines.onnxruntime.folded_minimums import fold_minimums
from intaglio.runtime.engines.onnxruntime.packed_products import pack_products
from intaglio.runtime.engines.onnxruntime.partial_graph import partial_graph
from intaglio.runtime.engines.onnxruntime.provider import missing_provider, open_session
from intaglio.runtime.engines.onnxruntime.session_operators import can_put_in, check_kernels
from intaglio.runtime.engines.onnxruntime.slots_on_gpu import file_with_slots
from intaglio.runtime.engines.onnxruntime.stored import stored_model
from intaglio.targets import TARGETS, Target

EXTERNAL_DATA_FOLDER = "session.model_external_initializers_file_folder_path"  # for a model that is not a file

NARROWS = "narrow_weights"  # the pass that stores weights in 16 bits, beside activations of float32

# Element type in ONNX Runtime -> in NumPy.
DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(bfloat16)": "bfloat16",
    "tensor(bool)": "bool",
    "tensor(string)": "str",
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


class OnnxRuntimeEngine(Engine):
    """A bundle, or an .onnx file, opened by ONNX Runtime.

    `spinning`: idle worker threads busy-wait, which starts them faster but takes processor time from other threads.
    `outputs`: the names of the outputs to compute, by default all; only the weights and inputs that they need are used.
    `graph`: the bundle's ONNX file to open. `memory`: that of an engine on the same GPU, for engines that share
    buffers; by default the target's own. `exact`: see `keep_activations`. `adapters`: added to a bundle's graph, which
    then has the input `adapter`. `cache_bits`: of a decoder's cached keys and values, 8 or 4 (see `quantize_caches`);
    by default they are as the graph has them.
    """

    _device: DeviceMemory | None = None
    _owns_device = False
    _matrices: Sequence[Any] = ()  # of adapters, which the session reads where they are

    def __init__(
        self,
        source: Path | Bundle,
        target: str = "ort-cpu",
        threads: int | None = None,
        spinning: bool = True,
        outputs: Collection[str] | None = None,
        graph: str = MODEL,
        memory: DeviceMemory | None = None,
        exact: bool = False,
        adapters: Adapters | None = None,
        cache_bits: int | None = None,
    ):
        check_threads(threads)
        onnxruntime = load("onnxruntime")
        if missing := missing_provider(target):
            raise EngineError(missing)
        path = source.path / graph if isinstance(source, Bundle) else source
        if not path.is_file():
            raise EngineError(f"{path}: no such file. Give a bundle or an .onnx file.")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised; the library would print them a second time
        options.intra_op_num_threads = threads or usable_threads()
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
        if isinstance(source, Bundle) and adapters is None and (stored := stored_model(source, target, graph)):
            path = stored  # optimised for any CPU; the default level adds the optimisations for this one
        operators = source.manifest.custom_operators if isinstance(source, Bundle) else None
        puts_in = isinstance(source, Bundle) and _has_place(source) and can_put_in(TARGETS[target])
        on_gpu = TARGETS[target].needs_gpu
        if operators is not None and (puts_in or cache_bits is not None):
            operators = [*operators, *OF_SESSIONS]
        # Kernels keep a copy of packed weights: those of a bundle are mapped into memory, and so are there once.
        packs = isinstance(source, Bundle) and not PACKED.isdisjoint(source.manifest.custom_operators)
        if on_gpu:
            self.memory = self._device = memory or DeviceMemory()
            self._owns_device = memory is None
        with ExitStack() as held:
            if cache_bits is not None:
                check_kernels(cache_bits)
                path = held.enter_context(file_with_slots(path, cache_bits)) if on_gpu else path
            file = held.enter_context(runnable(path, options, operators, on_gpu))
            model: str | bytes = str(file)
            if packs or puts_in or exact or (outputs, adapters, cache_bits) != (None, None, None):
                part = partial_graph(file, outputs)
                if adapters is not None and isinstance(source, Bundle):
                    self._add(adapters, part, source, path, options, puts_in)
                _put_in_kernels(part, exact, puts_in, packs and not on_gpu, None if on_gpu else cache_bits)
                self.cache_bits = cache_bits
                model = part.SerializeToString()
                options.add_session_config_entry(EXTERNAL_DATA_FOLDER, str(file.parent))
            settings = {"user_compute_stream": str(self._device.stream)} if self._device else None
            try:
                self._session = open_session(path, model, options, target, settings)
            except EngineError:
                self.close()
                raise
        self.inputs = tuple(_spec(value) for value in self._session.get_inputs())
        self.outputs = tuple(_spec(value) for value in self._session.get_outputs())
        self.axes: Mapping[str, Axis] = source.graph(graph).axes if isinstance(source, Bundle) else {}

    def _add(
        self, adapters: Adapters, part: Any, bundle: Bundle, path: Path, options: Any, by_our_kernel: bool
    ) -> None:
        """Add `adapters` to the graph `part` of the file at `path`, and their matrices to the session's options."""
        matrices = add_side_paths(part, adapters, bundle.manifest.passes, path, by_our_kernel)
        if by_our_kernel:
            import_our_domain(part)
        self._matrices = [load("onnxruntime").OrtValue.ortvalue_from_numpy(array) for array in matrices.values()]
        options.add_external_initializers([*matrices], self._matrices)
        self.adapter_names = adapters.names

    def _run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        names = [spec.name for spec in self.outputs]
        try:
            return dict(zip(names, self._session.run(names, dict(feeds)), strict=True))
        except Exception as error:
            raise EngineError(f"ONNX Runtime failed: {one_line(error)}") from error

    def bind(self, buffers: Mapping[str, Buffer]) -> Binding:
        """See `Engine`."""
        return _OnnxRuntimeBinding(self, buffers)

    def close(self) -> None:
        """Release the session."""
        self._session, self._matrices = None, ()
        if self._device is not None and self._owns_device:
            self._device.close()


def _has_place(bundle: Bundle) -> bool:
    """Whether its graphs have nodes that operators of sessions take the place of, with a gain."""
    return bundle.manifest.decoder is not None or any(each.name == NARROWS for each in bundle.manifest.passes)


def _put_in_kernels(part: Any, exact: bool, puts_in: bool, folds: bool, cache_bits: int | None) -> None:
    """Replace nodes of the graph `part` by those that this session is to compute with."""
    if exact:
        keep_activations(part)
    if folds:
        fold_minimums(part.graph)
    if puts_in:
        attend_by_our_kernel(part)
        pack_products(part)  # not of minimums, which are folded now
    if cache_bits is not None:
        quantize_caches(part, cache_bits)


def open_target(source: Path | Bundle, target: Target, options: Opening) -> OnnxRuntimeEngine:
    """Open a bundle's graph, or an .onnx file; see `targets`."""
    return OnnxRuntimeEngine(
        source,
        target.name,
        options.threads,
        options.spinning,
        options.outputs,
        options.graph,
        adapters=options.adapters,
        cache_bits=options.cache_bits,
    )


class _OnnxRuntimeBinding(Binding):
    """ONNX Runtime's own binding.

    Inputs that it needs in other memory than their buffer's are copied when they are bound, not when it runs; so with
    a GPU every run binds all of them. Arrays in host memory are among them, and so is what a node on the CPU reads.
    """

    def __init__(self, engine: OnnxRuntimeEngine, buffers: Mapping[str, Buffer]):
        check_buffers(engine, buffers)
        self._session = engine._session
        self._buffers = dict(buffers)  # keeps the memory alive as long as the binding
        self._binding = self._session.io_binding()
        self._inputs = [(spec.name, *_place(buffers[spec.name])) for spec in engine.inputs]
        self._copies = engine._device is not None
        for spec in engine.outputs:
            self._binding.bind_output(spec.name, *_place(buffers[spec.name]))
        if not self._copies:
            self._bind_inputs()

    def run(self) -> None:
        """See `Binding`."""
        try:
            if self._copies:
                self._bind_inputs()
            self._session.run_with_iobinding(self._binding)
        except Exception as error:
            raise EngineError(f"ONNX Runtime failed: {one_line(error)}") from error

    def _bind_inputs(self) -> None:
        for place in self._inputs:
            self._binding.bind_input(*place)


def _place(buffer: Buffer) -> tuple[str, int, Any, tuple[int, ...], int]:
    """The arguments of ONNX Runtime's binding for a buffer: device, its number, element type, shape, address."""
    if isinstance(buffer, DeviceArray):
        return "cuda", 0, buffer.dtype.type, buffer.shape, buffer.address
    array = np.asarray(buffer)
    return "cpu", 0, array.dtype.type, array.shape, array.ctypes.data


def _spec(value: Any) -> TensorSpec:
    lengths = (length or f"{value.name}_{axis}" for axis, length in enumerate(value.shape))
    return TensorSpec(value.name, DTYPES.get(value.type, value.type), tuple(lengths))
