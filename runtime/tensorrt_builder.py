"""Compiling a bundle's ONNX file with TensorRT or TensorRT-RTX."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from intaglio import progress
from intaglio.bundle import Manifest, TensorSpec
from intaglio.errors import BuildError
from intaglio.runtime import tensorrt_refusals, timing_cache
from intaglio.runtime.gpus import Gpu
from intaglio.runtime.tensorrt_library import DTYPES, LIBRARIES, Log, library_name, logger
from intaglio.runtime.tensorrt_progress import interruptible, monitor

STDOUT, STDERR = 1, 2  # file descriptors
Shapes = Mapping[str, Mapping[str, list[int]]]  # input -> {"min", "opt", "max"} -> shape


class Network:
    """An ONNX file as TensorRT's parser read it: strongly typed, each tensor of the dtype that the file states.

    `trt` is the module `tensorrt` or `tensorrt_rtx`. Raises `BuildError` with the nodes that the parser refuses.
    """

    def __init__(self, trt: Any, model: Path, manifest: Manifest, gpus: str):
        self._trt, self._model = trt, model
        self.library = library_name(trt)
        for spec in [*manifest.inputs, *manifest.outputs]:
            _check_dtype(spec, self.library)
        self._log: Log = logger(trt)
        self._builder = trt.Builder(self._log)
        # From TensorRT 11 every network is strongly typed and the flag is deprecated; TensorRT-RTX counts from 1.
        flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED) if _major(trt) < 11 else 0
        self._network = self._builder.create_network(flags)
        self._parser = trt.OnnxParser(self._network, self._log)  # owns weights that the network refers to
        with _silent(STDOUT, STDERR):
            parsed = self._parser.parse_from_file(str(model))
        if not parsed:
            raise tensorrt_refusals.error(self.library, gpus, tensorrt_refusals.of_parser(self._parser, model))

    def compile(self, gpu: Gpu, shapes: Shapes, target: Path) -> None:
        """Write the engine for `gpu` to `target`. Raises `BuildError` with what the builder refuses.

        TensorRT-RTX compiles for the named GPU, TensorRT for the one that is present (and keeps its timings).
        """
        trt, config = self._trt, self._builder.create_builder_config()
        profile = self._builder.create_optimization_profile()
        for name, shape in shapes.items():
            profile.set_shape(name, shape["min"], shape["opt"], shape["max"])
        config.add_optimization_profile(profile)
        timings = timing_cache.location(self.library, gpu.sm)
        if names_targets := trt.__name__ == LIBRARIES["tensorrt-rtx"]:
            config.num_compute_capabilities = 1
            config.set_compute_capability(trt.ComputeCapability.__members__[f"SM{gpu.sm}"], 0)
        else:
            timing_cache.attach(config, timings)
        self._log.errors.clear()
        with progress.fraction(f"compiling for {gpu.name}") as show, interruptible() as interrupted:
            config.progress_monitor = monitor(trt, show, interrupted)
            with _silent(STDOUT):  # standard error shows the progress
                engine = self._builder.build_serialized_network(self._network, config)
        if engine is None:
            refusals = tensorrt_refusals.of_builder(self._log.errors, self._model)
            raise tensorrt_refusals.error(self.library, gpu.name, refusals)
        if not names_targets:
            timing_cache.keep(config, timings)
        target.write_bytes(engine)


def _check_dtype(spec: TensorSpec, library: str) -> None:
    if spec.dtype not in DTYPES:
        raise BuildError(
            f"{library} takes no {spec.dtype}, the dtype of {spec.name}; expected one of {', '.join(DTYPES)}. "
            "Cast it in the graph, or use --target ort-cpu."
        )


def _major(trt: Any) -> int:
    return int(trt.__version__.split(".")[0])


@contextmanager
def _silent(*descriptors: int) -> Iterator[None]:
    """Keep off the terminal, and out of our output, what the library's C++ prints past the logger."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {descriptor: os.dup(descriptor) for descriptor in descriptors}
    try:
        with tempfile.TemporaryFile() as file:
            for descriptor in descriptors:
                os.dup2(file.fileno(), descriptor)
            yield
    finally:
        for descriptor, original in kept.items():
            os.dup2(original, descriptor)
            os.close(original)
