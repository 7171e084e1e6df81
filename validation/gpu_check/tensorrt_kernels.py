"""An operator's kernel in an engine of TensorRT or TensorRT-RTX, for `gpu-check`."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from intaglio.bundle.bundle import Graph, TensorSpec
from intaglio.errors import EngineError
from intaglio.extras import load
from intaglio.plugins import OPS
from intaglio.plugins.cuda import launcher
from intaglio.plugins.cuda.driver import call
from intaglio.plugins.kernel_check.case import Array, Case
from intaglio.plugins.kernel_check.node_model import feeds, node_model
from intaglio.plugins.trt import explicit, load_plugins_to_build, register, use_kernel_plugins
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.engines.gpus import Gpu
from intaglio.runtime.engines.tensorrt.library import MESSAGES, STDERR, logger, no_collection, reasons, silent
from intaglio.runtime.engines.tensorrt.network import Network, Shapes
from intaglio.validation.gpu_check.results import Form

# Form -> the module that builds the engine and runs it.
LIBRARIES: Mapping[Form, str] = {
    "tensorrt": "tensorrt", "tensorrt-library": "tensorrt", "tensorrt-rtx": "tensorrt_rtx",
}  # fmt: skip


def installed(sm: int) -> list[Form]:
    """The forms that a GPU of `sm` runs, by what is installed."""
    found: list[Form] = []
    if importlib.util.find_spec("tensorrt") is not None:
        found += ["tensorrt", "tensorrt-library"]
    if (
        importlib.util.find_spec("tensorrt_rtx") is not None
        and f"SM{sm}" in load("tensorrt_rtx").ComputeCapability.__members__
    ):
        found.append("tensorrt-rtx")
    return found


@no_collection()
def run(case: Case, sm: int, form: Form) -> tuple[str, list[Array]]:
    """Build an engine of the case's node, and run it on this machine's GPU, which is of `sm`.

    Returns the kernel's name and the outputs. All inputs but the first are constants, as in a model, and the axes of
    the first one have no lengths in the graph, except the last. Raises `MissingExtraError` if the library is missing,
    `EngineError` and `BuildError` if the engine is not built or does not run.
    """
    MESSAGES.clear()
    trt = load(LIBRARIES[form])
    model = node_model(case, constants=True)
    x = model.graph.inputs[0]
    assert x.shape is not None and x.dtype is not None
    known = tuple(x.shape.numpy())
    x.shape = ir.Shape([*(f"axis_{axis}" for axis in range(len(known) - 1)), *known[-1:]])
    if form == "tensorrt":
        explicit(model)
        with silent(STDERR):  # it warns that plugins in Python are experimental
            register(sm, [OPS[case.operator]])
    else:
        load_plugins_to_build(trt)
        use_kernel_plugins(model, sm)
    outputs = case.made()
    names = [str(value.name) for value in model.graph.outputs]
    graph = Graph(
        "model.onnx",
        [TensorSpec(str(x.name), x.dtype.numpy().name, known)],
        [TensorSpec(name, dtype.name, shape) for name, (shape, dtype) in zip(names, outputs, strict=False)],
        {},
    )
    shapes = {str(x.name): {"min": [1] * (len(known) - 1) + list(known[-1:]), "opt": list(known), "max": list(known)}}
    with scratch_directory("gpu-check") as folder:
        ir.save(model, folder / "model.onnx")
        engine = _built(trt, folder, graph, Gpu(f"sm{sm}", sm), shapes)
    results = _executed(trt, engine, feeds(case, constants=True), dict(zip(names, outputs, strict=False)))
    return case.launch(launcher.kernel_sm()).entry, results


def _built(trt: Any, folder: Path, graph: Graph, gpu: Gpu, shapes: Shapes) -> bytes:
    Network(trt, folder / graph.file, graph, gpu.name).compile(gpu, [shapes], folder / "engine")
    return (folder / "engine").read_bytes()


def _executed(
    trt: Any, data: bytes, inputs: dict[str, Array], outputs: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
) -> list[Array]:
    """Run an engine once; `outputs`: the shape and dtype of each."""
    log = logger(trt)

    def succeeded(done: Any, what: str) -> Any:
        if not done:
            raise EngineError(f"{trt.__name__} failed {what}: {reasons(log)}.")
        return done

    runtime = trt.Runtime(log)
    engine = succeeded(runtime.deserialize_cuda_engine(data), "opening the engine")
    context = succeeded(engine.create_execution_context(), "making a context")
    results = {name: np.empty(shape, dtype) for name, (shape, dtype) in outputs.items()}
    with ExitStack() as held:
        addresses = {}
        for name, array in {**inputs, **results}.items():
            addresses[name] = held.enter_context(launcher.allocated(max(array.nbytes, 1)))
            call("cuMemsetD8", addresses[name], launcher.POISON, max(array.nbytes, 1))
            succeeded(context.set_tensor_address(name, addresses[name]), f"setting the address of {name}")
        for name, array in inputs.items():
            succeeded(context.set_input_shape(name, array.shape), f"setting the shape of {name}")
            given = np.ascontiguousarray(array)
            call("cuMemcpyHtoD", addresses[name], given.ctypes.data, given.nbytes)
        call("cuCtxSynchronize")  # the stream does not wait for these copies
        stream = call("cuStreamCreate", 1)
        held.callback(call, "cuStreamDestroy", stream)
        succeeded(context.execute_async_v3(int(stream)), "running")
        call("cuStreamSynchronize", stream)
        for name, array in results.items():
            found = tuple(context.get_tensor_shape(name))
            if found != array.shape:
                raise EngineError(f"output {name}: shape {found}, expected {array.shape}.")
            if math.prod(array.shape):
                call("cuMemcpyDtoH", array.ctypes.data, addresses[name], array.nbytes)
    return list(results.values())
