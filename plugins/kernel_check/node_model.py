"""A case as a model of one node."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from intaglio.plugins import DOMAIN, OPS
from intaglio.plugins.kernel_check.case import Array, Case


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
    node = ir.node(case.operator, values, case.attributes, domain=DOMAIN, num_outputs=case.outputs, name="node")
    operator = OPS[case.operator]
    padded = operator.padded([None if array is None else array.shape for array in case.inputs])
    for value, output in zip(node.outputs, operator.outputs(padded, operator.complete(case.attributes)), strict=False):
        value.name, value.shape = output.name, ir.Shape(output.shape)
        like = [each for each in values if each is not None and each.name == output.like]
        value.type = like[0].type if like else ir.TensorType(ir.DataType.from_numpy(np.dtype(output.dtype)))
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


def feeds(case: Case, constants: bool = False) -> dict[str, Array]:
    """The inputs of that model."""
    named = zip(OPS[case.operator].inputs, case.inputs, strict=False)
    arrays = {spec.name: array for spec, array in named if array is not None}
    return dict(list(arrays.items())[:1]) if constants else arrays
