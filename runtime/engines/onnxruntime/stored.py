"""The models that `intaglio build` stored for ONNX Runtime, optimised by the installed version."""

from __future__ import annotations

from pathlib import Path

from intaglio.bundle.bundle import MODEL, Bundle
from intaglio.bundle.model_file import parse
from intaglio.extras import load
from intaglio.plugins import CUDA_DOMAIN, custom_operators
from intaglio.plugins import ort as kernels
from intaglio.plugins.cuda.compiler import newest_for
from intaglio.runtime.engines import gpus


def library_name() -> str:
    """ONNX Runtime and its version, as recorded in bundles: "onnxruntime 1.31.1"."""
    return f"onnxruntime {load('onnxruntime').__version__}"


def stored_engine(bundle: Bundle, target: str, graph: str = MODEL) -> Path | None:
    """The file that `build` stored for the ONNX file `graph` and one of ONNX Runtime's targets.

    None if there is none, or only one of another version, which may contain fused operators that this one lacks, or one
    with kernels for another GPU than this machine's.
    """
    for record in bundle.manifest.engines:
        here = (record.target, record.graph, record.library) == (target, graph, library_name())
        if here and (record.sm is None or _is_for(record.sm, gpus.present())):
            return bundle.path / record.path
    return None


def _is_for(sm: int, gpu: gpus.Gpu | None) -> bool:
    """Whether a GPU has the same kernels as one of compute capability `sm`."""
    return gpu is not None and newest_for(gpu.sm) == newest_for(sm)


def stored_model(bundle: Bundle, target: str, graph: str) -> Path | None:
    """The same file, if it is better to open than the model itself.

    A file built without compiled kernels contains the bodies of our operators. If the kernels are available now, it
    is ignored: the model itself runs many times faster.
    """
    path = stored_engine(bundle, target, graph)
    if path is None or not bundle.manifest.custom_operators or not kernels.operators():
        return path
    nodes = parse(path).graph.node
    return path if custom_operators(nodes) or any(node.domain == CUDA_DOMAIN for node in nodes) else None
