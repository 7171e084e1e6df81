"""A case of `operator_cases`, inlined and run."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import onnx
import onnx_ir as ir
from operator_cases import Case

from intaglio.plugins.function_body import FunctionBody
from intaglio.plugins.inlining import inline
from intaglio.plugins.kernel_check.node_model import feeds, node_model


def run_inlined(
    case: Case, body: type[FunctionBody], optimised: bool, constants: bool = False
) -> list[npt.NDArray[Any]]:
    """The outputs of its `node_model` by ONNX Runtime, with the node inlined and checked by ONNX."""
    import onnxruntime

    model = node_model(case, constants)
    assert inline(model, body=body) == {case.operator: 1}
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs: list[npt.NDArray[Any]] = session.run(None, feeds(case, constants))
    return outputs
