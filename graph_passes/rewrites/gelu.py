"""Gelu, in its two forms:

    exact      x/2 · (1 + erf(x / √2))
    tanh       x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))

(Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, section 2.) The cube and the factors may stand in any
order and association, as `graph_passes.algebra` expands them.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from intaglio.graph_passes.algebra import (
    FLOATS,
    Expansion,
    Expression,
    above,
    below,
    close,
    find_with_dtype,
    monomial,
    plain,
    polynomial,
)
from intaglio.graph_passes.rewrites.rewrite import Found, Match, Rewrite

EXACT = {1: math.sqrt(0.5)}  # the argument of erf: coefficients by degree in x
TANH = {1: math.sqrt(2 / math.pi), 3: math.sqrt(2 / math.pi) * 0.044715}
FORMS = {"Erf": (EXACT, "none"), "Tanh": (TANH, "tanh")}


def find(node: ir.Node) -> Found:
    """Find the Gelu around this Erf or Tanh."""
    expected, approximate = FORMS[node.op_type]
    curve, inner = node.outputs[0], node.inputs[0]
    if inner is None:
        return Found()
    reasons: list[str] = []
    for x in below(inner):
        coefficients = polynomial(inner, x)
        if coefficients is None or set(coefficients) != set(expected):
            continue
        sign = math.copysign(1.0, coefficients[1])  # both curves are odd: f(-u) = -f(u)
        wrong = _wrong_coefficients(curve, coefficients, {degree: sign * c for degree, c in expected.items()})
        around = _around(curve, plain(x), sign, approximate)
        if around.match and not wrong:
            return around
        if around.match or around.reasons:
            reasons += wrong or around.reasons
    return Found(reasons=reasons[:1])


def _around(curve: ir.Value, x: ir.Value, sign: float, approximate: str) -> Found:
    """Find the value above `curve` that is x/2 + x/2 · curve, up to the curve's sign."""
    alone, bent = monomial(x), monomial(x, curve)
    near: Expression | None = None
    for output, expression in above(curve, Expansion([x, curve])):
        if set(expression) != {alone, bent}:
            continue
        if not (close(expression[alone], 0.5, output.dtype) and close(expression[bent], sign * 0.5, output.dtype)):
            near = expression
            continue
        source = find_with_dtype(x, output.dtype, output)
        if source is None or (output.dtype is not None and output.dtype not in FLOATS):
            return Found(reasons=[f"{output.name}: its dtype differs from that of its Gelu's input, {x.name}"])
        return Found(Match(output, "Gelu", (source,), {"approximate": approximate}))
    if near is None:
        return Found()
    found = f"{near[alone]:.6g} x + {near[bent]:.6g} x f(x)"
    return Found(reasons=[f"{curve.name}: found {found}, expected 0.5 x + {sign * 0.5} x f(x) for Gelu"])


def _wrong_coefficients(curve: ir.Value, found: dict[int, float], expected: dict[int, float]) -> list[str]:
    return [
        f"{curve.name}: found the coefficient {found[degree]:.6g} of x^{degree}, expected {number:.6g} for Gelu"
        for degree, number in expected.items()
        if not close(found[degree], number, curve.dtype)
    ]


GELU = Rewrite("gelu", ("Erf", "Tanh"), 20, find)
