"""Run ONNX's checker on a graph, with one-line errors."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import CheckerPass

from intaglio.errors import GraphError, one_line


def check(model: ir.Model, what: str, way_out: str = "Re-export it.", shapes: bool = False) -> None:
    """Run ONNX's checker on the graph without its large weights. Raises `GraphError`, which begins with `what`.

    `shapes`: infer dtypes and shapes too, and refuse a graph that states different ones.
    """
    try:
        CheckerPass(full_check=shapes)(model)
    except (
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
        ir.passes.PassError,
        ir.serde.SerdeError,  # such as of a name that is not UTF-8
    ) as error:
        cause = error.__cause__ or error
        reason = one_line(cause, 300).rstrip(".")
        raise GraphError(f"{what} a graph that ONNX's checker rejects: {reason}. {way_out}") from error
