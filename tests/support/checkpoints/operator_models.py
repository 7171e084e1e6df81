"""A case of `operator_cases` as a model of one node."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from operator_cases import Case

from intaglio.plugins import DOMAIN, OPS
from intaglio.plugins.function_body import FunctionBody
from intaglio.plugins.inlining import inline


def node_model(case: Case, constants: bool = False) -> ir.Model:
    """One custom node between inputs of fixed shapes; with `constants`, all but the first input are initializers."""
    values: list[ir.Value | None] = []
    for spec, array in zip(OPS[case.operator].inputs, case.inputs, strict=False):
        if array is None:
            values.append(None)
            continue
        value = ir.Value(
            name=spec.name, shape=ir.Shape(array.shape), type=ir.TensorType(ir.DataType.from_numpy(array.dtype))
        )
        if constants and values:
            value.const_value = ir.tensor(array, name=spec.name)
        values.append(value)
    made = [ir.convenience.convert_attribute(name, value) for name, value in case.attributes.items()]
    node = ir.Node(DOMAIN, case.operator, values, made, num_outputs=case.outputs, name="node")
    operator = OPS[case.operator]
    padded = operator.padded([None if array is None else array.shape for array in case.inputs])
    for value, output in zip(node.outputs, operator.outputs(padded, operator.complete(case.attributes)), strict=False):
        value.name, value.shape = output.name, ir.Shape(output.shape)
        like = [each for each in values if each is not None and each.name == output.like]
        value.dtype = like[0].dtype if like else ir.DataType.from_numpy(np.dtype(output.dtype))
    present = [value for value in values if value is not None]
    graph = ir.Graph(
        [value for value in present if value.const_value is None],
        node.outputs,
        nodes=[node],
        initializers=[value for value in present if value.const_value is not None],
        opset_imports={"": 23, DOMAIN: 1},
        name="g",
    )
    return ir.Model(graph, ir_version=10)


def feeds(case: Case, constants: bool = False) -> dict[str, npt.NDArray[Any]]:
    """The inputs of that model."""
    named = zip(OPS[case.operator].inputs, case.inputs, strict=False)
    arrays = {spec.name: array for spec, array in named if array is not None}
    return dict(list(arrays.items())[:1]) if constants else arrays


def run_inlined(
    case: Case, body: type[FunctionBody], optimised: bool, constants: bool = False
) -> list[npt.NDArray[Any]]:
    """The outputs of that model by ONNX Runtime, with the node inlined and checked by ONNX."""
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
