"""Making TensorRT able to build a graph: our operators by plugins, or TensorRT-RTX by their bodies; axes by numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir

from intaglio.errors import BuildError, EngineError, GraphError
from intaglio.files import scratch_directory
from intaglio.model_file import load, parse, save
from intaglio.plugins import OPS, custom_operators
from intaglio.plugins import trt as plugins
from intaglio.plugins.float_body import FloatBody
from intaglio.plugins.inlining import inline
from intaglio.runtime.engines.tensorrt_integers import has_int8_tables, widen
from intaglio.runtime.engines.tensorrt_library import STDERR, silent


@contextmanager
def parsable(model: Path, target: str, sm: int, fixed: Mapping[str, int] | None = None) -> Iterator[Path]:
    """Yield an ONNX file that the parser of `target` takes: `model` itself, if it does.

    `fixed`: the symbolic axes that get a number, such as the length of a cache, which TensorRT writes into only
    where the graph states it.

    Otherwise it is a copy, gone at the end: for "tensorrt" with the operators as nodes of plugins, which are registered
    for compute capability `sm` times ten, for "tensorrt-rtx" with their bodies in their places, in floating
    point; around them without what neither takes of integers, see `widen`. Raises `BuildError` for an operator that
    this version does not know or has no kernel for, `MissingExtraError` without the CUDA compiler or TensorRT.
    """
    proto = parse(model)
    needed = custom_operators(proto.graph.node)
    if not needed and not fixed and not has_int8_tables(proto):
        yield model
        return
    with scratch_directory("parsable") as directory:
        graph = load(model)
        _fix(graph, fixed or {})
        if needed:
            _replace_operators(graph, needed, target, sm)
        widen(graph)
        save(graph, directory / model.name)
        yield directory / model.name


def _replace_operators(graph: ir.Model, needed: Sequence[str], target: str, sm: int) -> None:
    """Put plugins, or bodies, in the place of the operators `needed`."""
    try:
        if target == "tensorrt":
            plugins.explicit(graph)
            with silent(STDERR):  # it warns that plugins in Python are experimental
                plugins.register(sm, [OPS[name] for name in needed])
        else:
            inline(graph, body=FloatBody)
    except (EngineError, GraphError) as error:
        raise BuildError(f"target {target}: {error}") from error


def _fix(model: ir.Model, lengths: Mapping[str, int]) -> None:
    """Give the symbolic axes named in `lengths` a number, in the inputs, the outputs and what lies between."""
    graph = model.graph
    for value in (*graph.inputs, *graph.outputs, *(value for node in graph for value in node.outputs)):
        if value.shape is not None:
            stated = [length if isinstance(length, int) else length.value for length in value.shape]
            value.shape = ir.Shape([lengths.get(str(length), length) for length in stated])
