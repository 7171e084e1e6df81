"""Making TensorRT able to build a graph with our operators: by plugins, or TensorRT-RTX by the operators' bodies."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from intaglio.errors import BuildError, EngineError, GraphError
from intaglio.files import temporary_directory
from intaglio.model_file import load, parse, save
from intaglio.plugins import OPS, custom_operators
from intaglio.plugins import trt as plugins
from intaglio.plugins.float_body import FloatBody
from intaglio.plugins.inlining import inline
from intaglio.runtime.tensorrt_integers import widen
from intaglio.runtime.tensorrt_library import STDERR, silent


@contextmanager
def parsable(model: Path, target: str, sm: int) -> Iterator[Path]:
    """Yield an ONNX file that the parser of `target` takes: `model`, if it has no operators of ours.

    Otherwise it is a copy, gone at the end: for "tensorrt" with the operators as nodes of plugins, which are registered
    for compute capability `sm` times ten, for "tensorrt-rtx" with their bodies in their places, in floating
    point; around them without what neither takes of integers, see `widen`. Raises `BuildError` for an operator that
    this version does not know or has no kernel for, `MissingExtraError` without the CUDA compiler or TensorRT.
    """
    needed = custom_operators(parse(model).graph.node)
    if not needed:
        yield model
        return
    with temporary_directory(Path(tempfile.gettempdir()), "intaglio.") as directory:
        graph = load(model)
        try:
            if target == "tensorrt":
                plugins.explicit(graph)
                with silent(STDERR):  # it warns that plugins in Python are experimental
                    plugins.register(sm, [OPS[name] for name in needed])
            else:
                inline(graph, body=FloatBody)
            widen(graph)
        except (EngineError, GraphError) as error:
            raise BuildError(f"target {target}: {error}") from error
        save(graph, directory / model.name)
        yield directory / model.name
