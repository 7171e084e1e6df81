"""What `intaglio build` stored of a model for ONNX Runtime: as the installed version optimised it."""

from __future__ import annotations

from pathlib import Path

from intaglio.bundle import MODEL, Bundle
from intaglio.extras import load
from intaglio.model_file import parse
from intaglio.plugins import custom_operators
from intaglio.plugins import ort as kernels


def library_name() -> str:
    """ONNX Runtime and its version as bundles record it: "onnxruntime 1.31.1"."""
    return f"onnxruntime {load('onnxruntime').__version__}"


def stored_engine(bundle: Bundle, target: str, graph: str = MODEL) -> Path | None:
    """The file that `build` stored of the ONNX file `graph`, for one of ONNX Runtime's targets.

    None when there is none, or one of another version, which may hold fused operators that this one lacks.
    """
    for record in bundle.manifest.engines:
        if (record.target, record.graph) == (target, graph) and record.library == library_name():
            return bundle.path / record.path
    return None


def stored_model(bundle: Bundle, target: str, graph: str) -> Path | None:
    """The same, if it is worth opening instead of the model.

    One that was built where our operators had no compiled kernels holds their bodies. Where they have, it is passed
    over: the model as it is runs many times faster then.
    """
    path = stored_engine(bundle, target, graph)
    if path is None or not bundle.manifest.custom_operators or not kernels.operators():
        return path
    return path if custom_operators(parse(path).graph.node) else None
