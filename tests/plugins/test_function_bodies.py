"""The function bodies against the NumPy references, to the bit, on ONNX Runtime's standard operators."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operator_cases import MAKERS, Case, cases, longest

from intaglio.plugins import DOMAIN, OPS
from intaglio.plugins.inlining import inline

onnxruntime = pytest.importorskip("onnxruntime")


def node_model(case: Case) -> ir.Model:
    """One node of ours between inputs of fixed shapes; weights' shapes are what the bodies read."""
    values = []
    for spec, array in zip(OPS[case.operator].inputs, case.inputs, strict=False):
        values.append(
            None
            if array is None
            else ir.Value(
                name=spec.name,
                shape=ir.Shape(array.shape),
                type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            )
        )
    made = [ir.convenience.convert_attribute(name, value) for name, value in case.attributes.items()]
    node = ir.Node(DOMAIN, case.operator, values, made, num_outputs=case.outputs, name="node")
    shapes = [None if array is None else array.shape for array in case.inputs]
    padded = [*shapes, *[None] * (len(OPS[case.operator].inputs) - len(shapes))]
    for value, output in zip(
        node.outputs, OPS[case.operator].outputs(padded, OPS[case.operator].complete(case.attributes)), strict=False
    ):
        value.name, value.shape = output.name, ir.Shape(output.shape)
        value.dtype = ir.DataType.from_numpy(np.dtype(output.dtype))
    graph = ir.Graph(
        [value for value in values if value is not None],
        node.outputs,
        nodes=[node],
        opset_imports={"": 23, DOMAIN: 1},
        name="g",
    )
    return ir.Model(graph, ir_version=10)


def feeds(case: Case) -> dict[str, np.ndarray]:
    named = zip(OPS[case.operator].inputs, case.inputs, strict=False)
    return {spec.name: array for spec, array in named if array is not None}


def run_body(case: Case) -> list[np.ndarray]:
    model = node_model(case)
    assert inline(model) == {case.operator: 1}
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds(case))


def check(case: Case) -> None:
    expected = OPS[case.operator].reference(case.inputs, case.attributes)
    for got, want in zip(run_body(case), expected, strict=False):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("operator", MAKERS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_body_equals_reference(operator, data):
    check(data.draw(cases(operator)))


@pytest.mark.parametrize("operator", MAKERS)
def test_body_equals_reference_on_rows_of_4096(operator):
    check(longest(operator))


def test_every_operator_has_cases():
    assert list(MAKERS) == list(OPS)
