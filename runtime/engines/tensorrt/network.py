"""Compile an ONNX file with TensorRT or TensorRT-RTX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from intaglio.bundle.bundle import Graph, TensorSpec
from intaglio.bundle.plan_record import DEFAULT_PLAN, PlanOptions
from intaglio.display import progress
from intaglio.errors import BuildError
from intaglio.plugins.trt import plugin_errors
from intaglio.runtime.engines.gpus import Gpu
from intaglio.runtime.engines.tensorrt import refusals, timing_cache
from intaglio.runtime.engines.tensorrt.library import (
    DTYPES,
    STDERR,
    STDOUT,
    Log,
    library_name,
    logger,
    silent,
)
from intaglio.runtime.engines.tensorrt.plan_options import configure
from intaglio.runtime.engines.tensorrt.progress import interruptible, monitor
from intaglio.targets import TARGETS

Shapes = Mapping[str, Mapping[str, list[int]]]  # input -> {"min", "opt", "max"} -> shape


class Network:
    """An ONNX file parsed by TensorRT: strongly typed, each tensor with the dtype stated in the file.

    `trt` is the module `tensorrt` or `tensorrt_rtx`, `graph` the file's inputs and outputs. Raises `BuildError` with
    the nodes that the parser rejects.
    """

    def __init__(self, trt: Any, model: Path, graph: Graph, gpu: str):
        self._trt, self._model = trt, model
        self.library = library_name(trt)
        for spec in [*graph.inputs, *graph.outputs]:
            _check_dtype(spec, self.library)
        self._log: Log = logger(trt)
        self._builder = trt.Builder(self._log)
        self._network = self._builder.create_network(_network_flags(trt))
        self._parser = trt.OnnxParser(self._network, self._log)  # owns weights that the network refers to
        with silent(STDOUT, STDERR):
            parsed = self._parser.parse_from_file(str(model))
        if not parsed:
            raise refusals.error(self.library, gpu, refusals.of_parser(self._parser, model))
        _allow_decomposition(trt, self._network)

    def compile(
        self,
        gpu: Gpu,
        phases: Sequence[Shapes],
        target: Path,
        workspace: int | None = None,
        plan: PlanOptions = DEFAULT_PLAN,
        plugins: Sequence[str] = (),
    ) -> None:
        """Write the engine for `gpu` to `target`, with an optimisation profile for each of `phases`.

        `workspace`: the most MiB that a kernel may use for intermediate results; by default the memory of the GPU.
        `plugins`: the libraries of plugins that a version-compatible engine is to hold. Raises `BuildError` with the
        nodes that the builder rejects. TensorRT-RTX compiles for the named GPU, TensorRT for the GPU present (and
        caches its timings).
        """
        trt, config = self._trt, self._builder.create_builder_config()
        for shapes in phases:
            profile = self._builder.create_optimization_profile()
            for name, shape in shapes.items():
                profile.set_shape(name, shape["min"], shape["opt"], shape["max"])
            config.add_optimization_profile(profile)
        if workspace is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace << 20)
        configure(trt, config, plan, plugins)
        timings = timing_cache.location(self.library, gpu.sm)
        if names_targets := trt.__name__ == TARGETS["tensorrt-rtx"].library:
            config.num_compute_capabilities = 1
            config.set_compute_capability(trt.ComputeCapability.__members__[f"SM{gpu.sm}"], 0)
        else:
            timing_cache.attach(config, timings)
        self._log.errors.clear()
        plugin_errors()  # those of before say nothing about this build
        with progress.fraction(f"compiling for {gpu.name}") as show, interruptible() as interrupted:
            config.progress_monitor = monitor(trt, show, interrupted)
            with silent(STDOUT):  # standard error shows the progress
                engine = self._builder.build_serialized_network(self._network, config)
        if engine is None:
            refused = refusals.of_builder(self._log.errors, self._model)
            raise refusals.error(self.library, gpu.name, refused)
        if not names_targets:
            timing_cache.keep(config, timings)
        target.write_bytes(engine)


def _check_dtype(spec: TensorSpec, library: str) -> None:
    if spec.dtype not in DTYPES:
        raise BuildError(
            f"{library} does not support {spec.dtype}, the dtype of {spec.name}; expected one of {', '.join(DTYPES)}. "
            "Cast it in the graph, or use --target ort-cpu."
        )


def _allow_decomposition(trt: Any, network: Any) -> None:
    """Let attention without a fused kernel for its shape, such as head_dim 8, run as several kernels."""
    if not hasattr(trt, "IAttentionOutputLayer"):
        return  # a version without attention layers
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.ATTENTION_OUTPUT:
            layer.__class__ = trt.IAttentionOutputLayer
            layer.attention.decomposable = True


def _network_flags(trt: Any) -> int:
    """Strong typing: always on from TensorRT 11, where the flag is deprecated; TensorRT-RTX versions start at 1.

    Python plugins should be compiled ahead of time into the engine; TensorRT-RTX has no such flag.
    """
    known = trt.NetworkDefinitionCreationFlag.__members__
    wanted = ["PREFER_AOT_PYTHON_PLUGINS"]
    if int(trt.__version__.split(".")[0]) < 11:
        wanted.append("STRONGLY_TYPED")
    return sum(1 << int(known[name]) for name in wanted if name in known)
