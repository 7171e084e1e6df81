"""Graphs of older opsets compute the same under opset 23 and keep their weights and names."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intaglio.errors import GraphError
from intaglio.graph_passes.opsets.raise_opset import RaiseOpset

X = np.random.default_rng(0).normal(0, 2, (2, 4, 6)).astype(np.float32)


@pytest.mark.parametrize("opset", [11, 12])
@pytest.mark.parametrize("attributes", ["", "<axis = 0>", "<axis = 1>", "<axis = 2>", "<axis = -1>", "<axis = -2>"])
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_softmax_over_several_axes_keeps_its_values(
    parse: Any, compute: Any, op_type: str, attributes: str, opset: int
) -> None:
    import onnxruntime

    text = f"(float[2, 4, 6] x) => (float[2, 4, 6] y) {{ y = {op_type} {attributes} (x) }}"
    model = parse(text, opset=opset)
    session = onnxruntime.InferenceSession(
        onnx.parser.parse_model(f'<ir_version: 7, opset_import: ["": {opset}]> g {text}').SerializeToString()
    )
    (expected,) = session.run(None, {"x": X})
    model, counts = RaiseOpset()(model)
    assert counts.rewritten == {op_type: 1, "opset": 23 - opset}
    assert model.graph.outputs[0].name == "y"
    np.testing.assert_allclose(compute(model, x=X)[0], expected, rtol=1e-5, atol=1e-6)


def test_softmax_after_a_dynamic_reshape_needs_no_extra_reshape(parse: Any, operators: Any) -> None:
    text = """(float[N, M, 6] x) => (float[A, B, C, D] y) {
        s = Shape(x)  n = Gather(s, zero)  target = Concat <axis = 0> (n, rest)
        r = Reshape(x, target)  y = Softmax <axis = 3> (r)
    }"""
    model, _ = RaiseOpset()(parse(text, {"zero": np.array([0]), "rest": np.array([-1, 2, 3])}, opset=11))
    assert operators(model) == ["Concat", "Gather", "Reshape", "Shape", "Softmax"]


REDUCTIONS = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("attributes", ["<axes = [1, -1]>", "<axes = [0], keepdims = 0>", ""])
@pytest.mark.parametrize("opset", [11, 13, 17])
def test_axes_of_reductions_become_an_input(parse: Any, compute: Any, kind: str, attributes: str, opset: int) -> None:
    if kind == "Sum" and opset >= 13:
        attributes = ""
    shape = {"<axes = [1, -1]>": "2, 1, 1", "": "1, 1, 1"}.get(attributes, "4, 6")
    x = np.abs(X) + 0.5
    model = parse(f"(float[2, 4, 6] x) => (float[{shape}] y) {{ y = Reduce{kind} {attributes} (x) }}", opset=opset)
    expected = compute(model, x=x)
    model, counts = RaiseOpset()(model)
    assert counts.rewritten == ({f"Reduce{kind}": 1} if attributes else {}) | {"opset": 23 - opset}
    np.testing.assert_allclose(compute(model, x=x)[0], expected[0], rtol=1e-5)


def test_squeeze_unsqueeze_split_and_dropout_are_converted(parse: Any, compute: Any, operators: Any) -> None:
    text = """(float[2, 4, 6] x) => (float[2, 4, 6] y, float[2, 1, 6] z) {
        a = Unsqueeze <axes = [0, 2]> (x)  b = Squeeze <axes = [0, 2]> (a)
        c, d = Split <axis = 1, split = [3, 1]> (b)
        e, f = Split <axis = 0> (c)
        g = Concat <axis = 0> (e, f)  h = Concat <axis = 1> (g, d)
        y = Dropout <ratio = 0.3> (h)
        z = Identity(d)
    }"""
    model = parse(text, opset=11)
    expected = compute(model, x=X)
    names = {value.name for node in model.graph for value in node.outputs}
    model, counts = RaiseOpset()(model)
    assert counts.rewritten == {"Unsqueeze": 1, "Squeeze": 1, "Split": 2, "Dropout": 1, "opset": 12}
    assert names <= {value.name for node in model.graph for value in node.outputs}
    for result, wanted in zip(compute(model, x=X), expected, strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_subgraphs_of_branches_are_converted(parse: Any, compute: Any) -> None:
    text = """(float[2, 4, 6] x, bool c) => (float[2, 4, 1] y) {
        y = If (c) <
            then_branch = yes () => (float[2, 4, 1] a) { a = ReduceMean <axes = [-1]> (x) },
            else_branch = no () => (float[2, 4, 1] b) { b = ReduceMax <axes = [2]> (x) }
        >
    }"""
    model = parse(text, opset=13)
    expected = [compute(model, x=X, c=np.array(c))[0] for c in (True, False)]
    model, counts = RaiseOpset()(model)
    assert counts.rewritten == {"ReduceMean": 1, "ReduceMax": 1, "opset": 10}
    for c, wanted in zip((True, False), expected, strict=True):
        np.testing.assert_allclose(compute(model, x=X, c=np.array(c))[0], wanted, rtol=1e-6)


def test_function_bodies_are_converted(compute: Any) -> None:
    text = """<ir_version: 8, opset_import: ["": 13, "local": 1]>
        agraph (float[2, 4, 6] x) => (float[2, 4, 1] y) { y = local.Mean(x) }
        <domain: "local", opset_import: ["": 13]> Mean (a) => (b) { b = ReduceMean <axes = [-1]> (a) }"""
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    model, counts = RaiseOpset()(model)
    assert counts.rewritten["ReduceMean"] == 1
    np.testing.assert_allclose(compute(model, x=X)[0], X.mean(-1, keepdims=True), rtol=1e-5)


def test_weights_are_not_copied_and_custom_nodes_are_unchanged(parse: Any) -> None:
    text = """(float[2, 4, 6] x) => (float[2, 4, 1] y) {
        a = MatMul(x, w)  b = intaglio.Odd <axes = [1]> (a)  y = ReduceMean <axes = [2]> (b)
    }"""
    model = parse(text, {"w": np.eye(6, dtype=np.float32)}, opset=13, domains=', "intaglio": 1')
    weight = model.graph.initializers["w"].const_value
    model, _ = RaiseOpset()(model)
    assert model.graph.initializers["w"].const_value is weight
    assert [node.op_type for node in model.graph] == ["MatMul", "Odd", "Constant", "ReduceMean"]
    assert "axes" in model.graph[1].attributes
    assert model.opset_imports == {"": 23, "intaglio": 1}


@pytest.mark.parametrize("opset", [7, 8, 9, 10])
def test_graphs_before_opset_11_are_converted_and_keep_their_names(compute: Any, opset: int) -> None:
    text = """(float[N, 4] x, float[4, 4] w) => (float[N, 4] y) <float[4, 4] w> {
        a = MatMul(x, w)  b = Softmax(a)  c = Unsqueeze <axes = [0]> (b)  d = Squeeze <axes = [0]> (c)
        e = Dropout <ratio = 0.5> (d)  y = Clip <min = 0.1, max = 0.4> (e)
    }"""
    proto = onnx.parser.parse_model(f'<ir_version: 3, opset_import: ["": {opset}]> g {text}')
    proto.graph.initializer.extend([onnx.numpy_helper.from_array(X[0, :, :4].copy(), "w")])
    expected = onnx.reference.ReferenceEvaluator(proto).run(None, {"x": X[1, :, :4]})
    model, counts = RaiseOpset()(ir.serde.deserialize_model(proto))
    assert (counts.rewritten["opset"], model.opset_imports[""]) == (23 - opset, 23)
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert {"a", "b", "d"} <= {value.name for node in model.graph for value in node.outputs}
    np.testing.assert_allclose(compute(model, x=X[1, :, :4])[0], expected[0], rtol=1e-5)


@pytest.mark.parametrize("opset", [23, 24])
def test_graphs_with_a_new_opset_are_reported(parse: Any, opset: int) -> None:
    model = parse("(float[2] x) => (float[2] y) { y = Relu(x) }", opset=opset)
    model, counts = RaiseOpset()(model)
    assert (counts.rewritten, model.opset_imports[""]) == ({}, opset)
    assert counts.reasons == [f"the graph has opset {opset} already, 23 was requested"]


@pytest.mark.parametrize(
    ("text", "opset", "message"),
    [
        (
            "(float[1, 1, 2, 2] x, float[4] s) => (float[1, 1, A, B] y) { y = Upsample(x, s) }",
            9,
            "the graph has opset 9, and the graph converted by ONNX computes another 'y'. Re-export",
        ),
        (
            "(int64[2] i, float[2] x) => (float[2] y) { z = Gather(x, i)  y = NotThere(z) }",
            9,
            "the graph has opset 9, and ONNX's converter fails: ",
        ),
        ("(float[2, 4] x) => (float[2, 4] y) { y = Relu(x) }", 1000, "the graph has opset 1000, expected at most"),
        (
            "(float[1, 4, 2] x, float[2] s, float[2] b) => (float[1, 4, 2] y)"
            "{ y = GroupNormalization <num_groups = 2> (x, s, b) }",
            18,
            "one weight per group",
        ),
        (
            "(float[1, 4, 2] x, float[4] s, float[4] b, float[4] m, float[4] v) => (float[1, 4, 2] y, float[4] n)"
            "{ y, n, o = BatchNormalization(x, s, b, m, v) }",
            13,
            "outputs its running statistics",
        ),
        ("(float[2, 4] x) => (float[2, 4] y) { y = Scatter(x) }", 13, "Scatter '.*' is not in opset 23"),
    ],
)
def test_operator_without_newer_form_prints_one_line(text: str, opset: int, message: str) -> None:
    with pytest.raises(GraphError, match=message) as error:
        RaiseOpset()(ir.from_onnx_text(f'<ir_version: 8, opset_import: ["": {opset}]> agraph {text}'))
    assert "\n" not in str(error.value)


def test_invalid_versions_are_refused(parse: Any) -> None:
    model = parse("(float[2] x) => (float[2] y) { y = Relu(x) }", opset=17)
    with pytest.raises(GraphError, match="got version 99, expected 11 to"):
        RaiseOpset(99)(model)


def test_every_breaking_change_of_the_standard_is_listed() -> None:
    """Every operator that lost an attribute or got another default between 11 and 23 is listed."""
    from intaglio.graph_passes.opsets.raise_opset import CHANGES

    listed = {(op_type, first) for types, first, _, _ in CHANGES for op_type in types}
    history: dict[str, list[Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version <= 23:
            history.setdefault(schema.name, []).append(schema)
    breaking = set()
    for name, schemas in history.items():
        schemas.sort(key=lambda schema: schema.since_version)
        for old, new in itertools.pairwise(schemas):
            lost = any(
                attribute not in new.attributes or new.attributes[attribute].default_value != description.default_value
                for attribute, description in old.attributes.items()
            )
            if new.since_version > 11 and lost:
                breaking.add((name, new.since_version))
    assert breaking - listed == set()
    assert listed - breaking == {
        ("Split", 18),
        ("RoiAlign", 16),
        ("GroupNormalization", 21),
        ("BatchNormalization", 14),
    }
