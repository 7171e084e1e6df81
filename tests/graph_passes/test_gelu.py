"""Gelu is recognised in every form; similar graphs are not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.graph_passes.canonicalize import Canonicalize

X = np.linspace(-4, 4, 48, dtype=np.float32).reshape(2, 3, 8)
HEAD = "(float[2, N, 8] x) => (float[2, N, 8] y)"
SQRT_HALF, SQRT_2_PI = math.sqrt(0.5), math.sqrt(2 / math.pi)


class Writer:
    """Writes one formula as nodes, with random order and association at every step."""

    def __init__(self, draw: Callable[[Any], Any]):
        self.draw, self.lines, self.constants = draw, [], {}

    def node(self, op_type: str, *inputs: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {op_type}({', '.join(inputs)})")
        return name

    def number(self, number: float) -> str:
        shape = self.draw(st.sampled_from([(), (1,), (1, 1, 1)]))
        name = f"c{len(self.constants)}"
        self.constants[name] = np.full(shape, number, np.float32)
        return name

    def reduce(self, op_type: str, operands: list[str]) -> str:
        """A tree of `op_type` over the operands in any order."""
        operands = list(self.draw(st.permutations(operands)))
        while len(operands) > 1:
            index = self.draw(st.integers(0, len(operands) - 2))
            operands[index : index + 2] = [self.node(op_type, *operands[index : index + 2])]
        return operands[0]

    def scaled(self, value: str, number: float) -> str:
        form = self.draw(st.sampled_from(["mul", "div", "neg"]))
        if form == "div":
            return self.node("Div", value, self.number(1 / number))
        if form == "neg":
            return self.node("Neg", self.reduce("Mul", [value, self.number(-number)]))
        return self.reduce("Mul", [value, self.number(number)])

    def plus(self, left: str, right: str) -> str:
        if self.draw(st.booleans()):
            return self.node("Sub", left, self.node("Neg", right))
        return self.reduce("Add", [left, right])

    def cube(self, x: str) -> str:
        form = self.draw(st.sampled_from(["pow", "product", "square"]))
        if form == "pow":
            return self.node("Pow", x, self.number(3))
        if form == "product":
            return self.reduce("Mul", [x, x, x])
        return self.reduce("Mul", [x, self.node("Pow", x, self.number(2))])

    def cubic(self, x: str) -> str:
        """√(2/π) (x + 0.044715 x³), factored out in three ways."""
        form = self.draw(st.sampled_from(["sum", "factored", "expanded"]))
        if form == "sum":
            return self.scaled(self.plus(x, self.scaled(self.cube(x), 0.044715)), SQRT_2_PI)
        if form == "factored":
            square = self.scaled(self.node("Mul", x, x), 0.044715)
            return self.scaled(self.reduce("Mul", [x, self.plus(square, self.number(1))]), SQRT_2_PI)
        return self.plus(self.scaled(x, SQRT_2_PI), self.scaled(self.cube(x), SQRT_2_PI * 0.044715))

    def gelu(self, x: str, curve: str) -> str:
        """x/2 (1 + curve), factored out in three ways."""
        form = self.draw(st.sampled_from(["product", "half inside", "expanded"]))
        if form == "product":
            return self.reduce("Mul", [x, self.number(0.5), self.plus(curve, self.number(1))])
        if form == "half inside":
            return self.reduce("Mul", [x, self.plus(self.scaled(curve, 0.5), self.number(0.5))])
        half = self.scaled(x, 0.5)
        return self.plus(half, self.reduce("Mul", [half, curve]))


@settings(max_examples=examples(60))
@given(st.data(), st.sampled_from(["none", "tanh"]))
def test_every_form_becomes_one_gelu(parse: Any, compute: Any, data: st.DataObject, approximate: str) -> None:
    check(parse, compute, data, approximate)


@pytest.mark.proof
@settings(max_examples=examples(400))
@given(st.data(), st.sampled_from(["none", "tanh"]))
def test_400_forms_become_one_gelu(parse: Any, compute: Any, data: st.DataObject, approximate: str) -> None:
    check(parse, compute, data, approximate)


def check(parse: Any, compute: Any, data: st.DataObject, approximate: str) -> None:
    """The drawn form of the formula is replaced, and the values stay."""
    writer = Writer(data.draw)
    x = writer.node("Add", "x", writer.number(0.25))  # the following arithmetic must not be matched as a part
    if approximate == "none":
        sign = data.draw(st.sampled_from([1, -1]))
        curve = writer.node("Erf", writer.scaled(x, sign * SQRT_HALF))
        curve = curve if sign == 1 else writer.node("Neg", curve)
    else:
        curve = writer.node("Tanh", writer.cubic(x))
    result = writer.gelu(x, curve)
    nodes = "\n".join([*writer.lines, f"y = Relu({result})"])
    model = parse(f"{HEAD} {{ {nodes} }}", writer.constants)
    expected = compute(model, x=X)
    model, counts = Canonicalize()(model)
    assert counts.rewritten == {"gelu": 1}
    assert [node.op_type for node in model.graph] == ["Add", "Gelu", "Relu"]
    assert model.graph[1].attributes["approximate"].as_string() == approximate
    assert model.graph[1].outputs[0].name == result
    assert len(model.graph.initializers) == 1
    np.testing.assert_allclose(compute(model, x=X)[0], expected[0], rtol=1e-5, atol=1e-6)


def numbers(dtype: Any) -> dict[str, Any]:
    """The constants of the exact form as initializers."""
    return {name: np.array(n, dtype) for name, n in [("scale", SQRT_HALF), ("one", 1), ("half", 0.5)]}


def erf_gelu(scale: float = SQRT_HALF, one: float = 1.0, half: float = 0.5, last: str = "y = Mul(w, half)") -> str:
    return f"""{HEAD} {{
        scale = Constant<value_float = {scale}>()
        one = Constant<value_float = {one}>()
        half = Constant<value_float = {half}>()
        u = Mul(x, scale)
        e = Erf(u)
        v = Add(e, one)
        w = Mul(x, v)
        {last}
    }}"""


def test_constant_nodes_are_matched_and_removed(parse: Any, compute: Any) -> None:
    model = parse(erf_gelu())
    expected = compute(model, x=X)
    model, counts = Canonicalize()(model)
    assert counts.rewritten == {"gelu": 1}
    assert [node.op_type for node in model.graph] == ["Gelu"]
    assert [value.name for value in model.graph.outputs] == ["y"]
    np.testing.assert_allclose(compute(model, x=X)[0], expected[0], atol=1e-6)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"scale": 0.707}, "found the coefficient 0.707 of x^1, expected 0.707107"),
        ({"scale": 0.70709}, "found the coefficient 0.70709 of x^1, expected 0.707107"),
        ({"one": 1.001}, "found 0.5005 x + 0.5 x f(x), expected 0.5 x + 0.5 x f(x)"),
        ({"one": -1.0}, "found -0.5 x + 0.5 x f(x)"),
        ({"half": 0.49}, "found 0.49 x + 0.49 x f(x)"),
        ({"last": "y = Mul(w, x)"}, "found 1 x + 1 x f(x)"),
    ],
)
def test_near_misses_stay_and_report_the_constant(
    parse: Any, operators: Any, changed: dict[str, Any], expected: str
) -> None:
    model = parse(erf_gelu(**changed))
    before = operators(model)
    model, counts = Canonicalize()(model)
    assert counts.rewritten == {}
    assert operators(model) == before
    assert any(expected in reason for reason in counts.reasons), counts.reasons


def test_wrong_cubic_coefficient_is_not_fused(parse: Any) -> None:
    model = parse(
        f"""{HEAD} {{
            a = Constant<value_float = 0.0455>()
            s = Constant<value_float = {SQRT_2_PI}>()
            one = Constant<value_float = 1.0>()
            half = Constant<value_float = 0.5>()
            x2 = Mul(x, x)  x3 = Mul(x2, x)  ax3 = Mul(a, x3)  inner = Add(x, ax3)
            u = Mul(s, inner)  t = Tanh(u)  v = Add(one, t)  w = Mul(x, v)  y = Mul(half, w)
        }}"""
    )
    model, counts = Canonicalize()(model)
    assert counts.rewritten == {}
    assert any("of x^3, expected 0.0356774" in reason for reason in counts.reasons), counts.reasons


def test_constants_rounded_to_float16_match_only_in_float16(parse: Any) -> None:
    rounded = float(np.float16(SQRT_HALF))
    _, counts = Canonicalize()(parse(erf_gelu(scale=rounded)))
    assert counts.rewritten == {}
    half = parse(
        """(float16[4] x) => (float16[4] y) {
            u = Mul(x, scale)  e = Erf(u)  v = Add(e, one)  w = Mul(x, v)  y = Mul(w, half)
        }""",
        numbers(np.float16),
    )
    _, counts = Canonicalize()(half)
    assert counts.rewritten == {"gelu": 1}


def test_intermediates_with_other_consumers_stay(parse: Any, compute: Any, operators: Any) -> None:
    text = erf_gelu(last="y = Mul(w, half) z = Exp(v)").replace("y)", "y, float[2, N, 8] z, float[2, N, 8] e)", 1)
    model = parse(text)
    expected = compute(model, x=X)
    model, counts = Canonicalize()(model)
    assert counts.rewritten == {"gelu": 1}
    assert operators(model) == ["Add", "Erf", "Exp", "Gelu", "Mul"]
    assert [value.name for value in model.graph.outputs] == ["y", "z", "e"]
    for result, wanted in zip(compute(model, x=X), expected, strict=True):
        np.testing.assert_allclose(result, wanted, atol=1e-6)


def test_gelus_with_a_shared_erf_are_fused(parse: Any, compute: Any, operators: Any) -> None:
    text = erf_gelu(last="a = Mul(w, half) xv = Mul(v, x) b = Mul(half, xv) y = Sub(a, b)")
    model, counts = Canonicalize()(parse(text))
    assert counts.rewritten == {"gelu": 2}
    assert operators(model) == ["Gelu", "Gelu", "Sub"]
    np.testing.assert_array_equal(compute(model, x=X)[0], 0)


def test_constant_that_adds_axes_is_not_fused(parse: Any, operators: Any) -> None:
    model = parse(
        """(float[8] x) => (float[1, 8] y) {
            u = Mul(x, scale)  e = Erf(u)  v = Add(e, one)  w = Mul(x, v)  y = Mul(w, half)
        }""",
        {
            "scale": np.array(SQRT_HALF, np.float32),
            "one": np.array(1, np.float32),
            "half": np.array([[0.5]], np.float32),
        },
    )
    model, counts = Canonicalize()(model)
    assert counts.rewritten == {}
    assert "Gelu" not in operators(model)


def test_overridable_initializer_is_not_a_constant(parse: Any) -> None:
    text = """(float[8] x, float half) => (float[8] y) {
        u = Mul(x, scale)  e = Erf(u)  v = Add(e, one)  w = Mul(x, v)  y = Mul(w, half)
    }"""
    _, counts = Canonicalize()(parse(text, numbers(np.float32)))
    assert counts.rewritten == {}


def test_gelu_inside_a_branch_is_fused(parse: Any, compute: Any) -> None:
    body = erf_gelu().split("{", 1)[1].rsplit("}", 1)[0]
    model = parse(
        f"""(float[2, N, 8] x, bool c) => (float[2, N, 8] out) {{
            out = If (c) <
                then_branch = yes () => (float[2, N, 8] y) {{ {body} }},
                else_branch = no () => (float[2, N, 8] z) {{ z = Identity(x) }}
            >
        }}"""
    )
    expected = compute(model, x=X, c=np.array(True))
    model, counts = Canonicalize()(model)
    assert counts.rewritten == {"gelu": 1}
    then = model.graph[0].attributes["then_branch"].as_graph()
    assert [node.op_type for node in then] == ["Gelu"]
    np.testing.assert_allclose(compute(model, x=X, c=np.array(True))[0], expected[0], atol=1e-6)


def test_opset_without_gelu_is_not_fused(parse: Any) -> None:
    model = parse(erf_gelu(), opset=17)
    _, counts = Canonicalize()(model)
    assert counts.rewritten == {}
    assert "gelu: opset 17, its operator needs 20; run raise_opset first" in counts.reasons


def test_tanh_of_a_pooler_is_not_fused(parse: Any) -> None:
    _, counts = Canonicalize()(parse(f"{HEAD} {{ y = Tanh(x) }}"))
    assert counts.rewritten == {}
    assert "gelu: 1 Erf or Tanh nodes, none of them part of the formula" in counts.reasons


def test_graph_without_gelu_names_the_missing_nodes(parse: Any) -> None:
    model: ir.Model = parse(f"{HEAD} {{ y = Relu(x) }}")
    _, counts = Canonicalize()(model)
    assert counts.rewritten == {}
    assert counts.reasons == [
        "gelu: no Erf or Tanh node in the graph",
        "layer_norm: no ReduceMean node in the graph",
        "softmax: no ReduceSum node in the graph",
    ]
