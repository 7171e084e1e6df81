"""Softmax: exp(x - max(x)) / sum(exp(x - max(x))) along one axis, with or without the maximum.

Subtracting any number from x along the axis does not change Softmax, so a difference from anything but the maximum
stays as Softmax's input.
"""

from __future__ import annotations

from fractions import Fraction

import onnx_ir as ir

from intaglio.graph_passes.algebra import FLOATS, Expansion, above, below, close, find_with_dtype, monomial, plain
from intaglio.graph_passes.rewrites.reduced_axis import reduced_axis
from intaglio.graph_passes.rewrites.rewrite import Found, Match, Rewrite


def find(node: ir.Node) -> Found:
    """Find the Softmax whose denominator is this ReduceSum."""
    total = node.outputs[0]
    exponential = None if node.inputs[0] is None else plain(node.inputs[0])
    producer = None if exponential is None else exponential.producer()
    if exponential is None or producer is None or producer.op_type != "Exp" or producer.domain != "":
        return Found()
    axis = reduced_axis(node)
    if axis is None:
        return Found(reasons=[f"{total.name}: the sum is not over one known axis that is kept with length 1"])
    quotient = monomial(exponential, (total, Fraction(-1)))
    for output, expression in above(total, Expansion([exponential, total], positive=[total])):
        if set(expression) == {quotient} and close(expression[quotient], 1.0, output.dtype):
            return _match(output, producer, axis)
    return Found(reasons=[f"{total.name}: sums an Exp, but nothing divides that Exp by the sum alone"])


def _match(output: ir.Value, exp: ir.Node, axis: int) -> Found:
    inner = exp.inputs[0]
    assert inner is not None
    x = _without_maximum(inner, axis)
    source = find_with_dtype(x, output.dtype, inner)
    if source is None or (output.dtype is not None and output.dtype not in FLOATS):
        return Found(reasons=[f"{output.name}: its dtype differs from that of its Softmax's input, {x.name}"])
    return Found(Match(output, "Softmax", (source,), {"axis": axis}))


def _without_maximum(inner: ir.Value, axis: int) -> ir.Value:
    """Return x if `inner` is x - max(x) along `axis`, else `inner`."""
    for value in below(inner):
        node = value.producer()
        if node is None or node.op_type != "ReduceMax" or node.domain != "" or node.inputs[0] is None:
            continue
        x = plain(node.inputs[0])
        if reduced_axis(node) == axis and Expansion([x, value])(inner) == {monomial(x): 1.0, monomial(value): -1.0}:
            return x
    return inner


SOFTMAX = Rewrite("softmax", ("ReduceSum",), 13, find)
