"""The engine on ONNX Runtime: its CPU provider, or CUDA and TensorRT where the installed build has them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from intaglio.bundle import MODEL, Axis, Bundle, TensorSpec
from intaglio.errors import EngineError, one_line
from intaglio.extras import load
from intaglio.model_file import parse
from intaglio.plugins import custom_operators
from intaglio.plugins import ort as kernels
from intaglio.runtime.engines.custom_operators import runnable
from intaglio.runtime.engines.engine import Array, Engine, check_arrays, check_threads
from intaglio.runtime.engines.partial_graph import partial_graph
from intaglio.threads import usable_threads

# Target -> providers, in order of preference. A provider that the first one falls back to comes after it.
PROVIDERS = {
    "ort-cpu": ["CPUExecutionProvider"],
    "ort-cuda": ["CUDAExecutionProvider", "CPUExecutionProvider"],
    "ort-tensorrt": ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"],
}

EXTERNAL_DATA_FOLDER = "session.model_external_initializers_file_folder_path"  # of a model that is not a file

# ONNX Runtime's name of an element type -> NumPy's.
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

    `spinning`: idle worker threads wait in a loop, which starts them faster and takes the processor from others.
    `outputs`: the names of those that are wanted, if not all; only what they need is loaded and computed, and taken as
    input. `graph`: the bundle's ONNX file that is opened.
    """

    def __init__(
        self,
        source: Path | Bundle,
        target: str = "ort-cpu",
        threads: int | None = None,
        spinning: bool = True,
        outputs: Collection[str] | None = None,
        graph: str = MODEL,
    ):
        check_threads(threads)
        onnxruntime = load("onnxruntime")
        providers = PROVIDERS[target]
        available = onnxruntime.get_available_providers()
        if providers[0] not in available:
            raise EngineError(
                f"target {target}: needs {providers[0]}, this ONNX Runtime has {', '.join(available)}. "
                "Install it with: pip install 'intaglio[gpu]' (instead of onnxruntime), or use --target ort-cpu."
            )
        path = source.path / graph if isinstance(source, Bundle) else source
        if not path.is_file():
            raise EngineError(f"{path}: no such file. Give a bundle or an .onnx file.")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what fails is raised, and printed by the library would stand there twice
        options.intra_op_num_threads = threads or usable_threads()
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
        if isinstance(source, Bundle) and (stored := _stored(source, target, graph)):
            path = stored  # optimised as far as holds for any CPU; the default level adds what this one offers
        operators = source.manifest.custom_operators if isinstance(source, Bundle) else None
        with runnable(path, options, operators) as file:
            model: str | bytes = str(file)
            if outputs is not None:
                model = partial_graph(file, outputs).SerializeToString()
                options.add_session_config_entry(EXTERNAL_DATA_FOLDER, str(file.parent))
            try:
                self._session = onnxruntime.InferenceSession(model, options, providers=providers)
            except Exception as error:  # the library's exceptions have no common base but this
                raise EngineError(f"{path}: ONNX Runtime cannot open it: {one_line(error)}") from error
        self.inputs = tuple(_spec(value) for value in self._session.get_inputs())
        self.outputs = tuple(_spec(value) for value in self._session.get_outputs())
        self.axes: Mapping[str, Axis] = source.graph(graph).axes if isinstance(source, Bundle) else {}

    def _run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        names = [spec.name for spec in self.outputs]
        try:
            return dict(zip(names, self._session.run(names, dict(feeds)), strict=True))
        except Exception as error:
            raise EngineError(f"ONNX Runtime failed: {one_line(error)}") from error

    def bind(self, buffers: Mapping[str, Array]) -> Binding:
        """Bind every input and output to an array that stays; see `Binding`."""
        return Binding(self, buffers)

    def close(self) -> None:
        """Let go of the session."""
        self._session = None


class Binding:
    """An engine's inputs and outputs bound to arrays in CPU memory, which are read and written in place.

    The same array may serve as an input and an output (a cache that is updated where it lies). Between runs the
    arrays' contents may change, their place and shape may not; bind anew for other shapes.
    """

    def __init__(self, engine: OnnxRuntimeEngine, buffers: Mapping[str, Array]):
        check_arrays(engine.inputs + engine.outputs, engine.axes, buffers, "buffer")
        for name, array in buffers.items():
            if not array.flags.c_contiguous:
                raise EngineError(f"buffer {name}: not contiguous. Make it so with numpy.ascontiguousarray.")
        for spec in engine.outputs:
            if not buffers[spec.name].flags.writeable:
                raise EngineError(f"buffer {spec.name}: is read-only. Bind an array that can be written.")
        self._session = engine._session
        self._buffers = dict(buffers)  # keeps the memory alive as long as the binding
        self._binding = self._session.io_binding()
        for spec in engine.inputs:
            self._binding.bind_input(spec.name, *_memory(buffers[spec.name]))
        for spec in engine.outputs:
            self._binding.bind_output(spec.name, *_memory(buffers[spec.name]))

    def run(self) -> None:
        """Run once on the bound arrays. Raises `EngineError`."""
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:
            raise EngineError(f"ONNX Runtime failed: {one_line(error)}") from error


def _memory(array: Array) -> tuple[str, int, Any, tuple[int, ...], int]:
    """What ONNX Runtime's binding asks of a buffer: device, its number, element type, shape, address."""
    return "cpu", 0, array.dtype.type, array.shape, array.ctypes.data


def _spec(value: Any) -> TensorSpec:
    lengths = (length or f"{value.name}_{axis}" for axis, length in enumerate(value.shape))
    return TensorSpec(value.name, DTYPES.get(value.type, value.type), tuple(lengths))


def _stored(bundle: Bundle, target: str, graph: str) -> Path | None:
    """What `intaglio build` stored of `graph`, optimised for this target and library version, if anything.

    One that was built where our operators had no compiled kernels holds their bodies. Where they have, it is passed
    over: the model as it is runs many times faster then.
    """
    from intaglio.runtime.engines.build import stored_engine

    path = stored_engine(bundle, target, graph)
    if path is None or not bundle.manifest.custom_operators or not kernels.operators():
        return path
    return path if custom_operators(parse(path).graph.node) else None
