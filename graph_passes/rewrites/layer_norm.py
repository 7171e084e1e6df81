"""LayerNormalization: (x - mean(x)) / √(mean((x - mean(x))²) + epsilon) · weight + bias over the last axis.

Both forms expand to the same sum, with r = (variance + epsilon)^-½:

    normalised first       (x - mean) · r · weight + bias
    as batch norm (TF)     x · (weight · r) + (bias - mean · (weight · r))

With the operator's default `stash_type`, mean and variance are computed in float32 and the rest in the dtype of x, so
the casts around the variance in float16 exports are replaced too.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from intaglio.graph_passes.algebra import (
    FLOATS,
    NUMBER,
    Expansion,
    Expression,
    Monomial,
    above,
    close,
    find_with_dtype,
    monomial,
    plain,
)
from intaglio.graph_passes.graphs import constant, rank
from intaglio.graph_passes.rewrites.reduced_axis import reduced_axis
from intaglio.graph_passes.rewrites.rewrite import Found, Match, NewConstant, Rewrite

TWO, INVERSE_ROOT = Fraction(2), Fraction(-1, 2)


@dataclass(frozen=True)
class Normalised:
    """A value that is the normalised x times `scale`, optionally times `weight` plus `bias`."""

    output: ir.Value
    scale: float
    weight: ir.Value | None
    bias: ir.Value | None


def find(node: ir.Node) -> Found:
    """Find the LayerNormalization that begins with this ReduceMean of x."""
    mean = node.outputs[0]
    if node.inputs[0] is None or (variance := _variance(plain(node.inputs[0]), mean)) is None:
        return Found()
    x = plain(node.inputs[0])
    if reduced_axis(node) != -1 or reduced_axis(variance) != -1:
        return Found(reasons=[f"{mean.name}: the mean is not over the last axis of {x.name} alone, kept as length 1"])
    width = None if x.shape is None or len(x.shape) == 0 else x.shape[-1]
    if not isinstance(width, int):
        return Found(reasons=[f"{x.name}: the length of its last axis is not known"])
    found = _shifted(variance.outputs[0])
    if found is None:
        return Found(reasons=[f"{variance.outputs[0].name}: no positive epsilon is added to the variance of {x.name}"])
    shifted, epsilon = found
    return _best(_normalised(x, mean, shifted), x, width, epsilon, shifted)


def _variance(x: ir.Value, mean: ir.Value) -> ir.Node | None:
    """Return the ReduceMean of (x - mean)²."""
    square = {monomial((x, TWO)): 1.0, monomial(x, mean): -2.0, monomial((mean, TWO)): 1.0}
    for value, expression in above(mean, Expansion([x, mean])):
        if expression == square:
            for user, _ in value.uses():
                if user.op_type == "ReduceMean" and user.domain == "":
                    return user
    return None


def _shifted(variance: ir.Value) -> tuple[ir.Value, float] | None:
    """Return variance + epsilon, and epsilon."""
    alone = monomial(variance)
    for value, expression in above(variance, Expansion([variance])):
        if set(expression) == {alone, NUMBER} and expression[alone] == 1.0 and expression[NUMBER] > 0:
            return plain(value), expression[NUMBER]
    return None


def _normalised(x: ir.Value, mean: ir.Value, shifted: ir.Value) -> list[Normalised]:
    """Return the values above `shifted` that have the form of the formula, nearest first."""
    expansion = Expansion([x, mean, shifted], positive=[shifted], arrays=True)
    found = (_parts(output, terms, x, mean, shifted) for output, terms in above(shifted, expansion))
    return [candidate for candidate in found if candidate is not None]


def _parts(
    output: ir.Value, expression: Expression, x: ir.Value, mean: ir.Value, shifted: ir.Value
) -> Normalised | None:
    terms = dict(expression)
    first, second = _pop_term(terms, x, shifted), _pop_term(terms, mean, shifted)
    if first is None or second is None or first[1] != second[1] or not close(second[0], -first[0], output.dtype):
        return None
    weight = _single_constant(first[1])
    if weight is None and first[1]:
        return None
    bias = None
    if terms:
        (factors, coefficient), *more = terms.items()
        bias = _single_constant(factors)
        if more or bias is None or coefficient != 1.0:
            return None
    return Normalised(output, first[0], weight, bias)


def _pop_term(terms: Expression, value: ir.Value, shifted: ir.Value) -> tuple[float, Monomial] | None:
    """Remove the one term `value · shifted^-½ · rest` from `terms`; return its coefficient and the rest."""
    stem = monomial(value, (shifted, INVERSE_ROOT))
    found = [factors for factors in terms if stem <= factors]
    return (terms.pop(found[0]), found[0] - stem) if len(found) == 1 else None


def _single_constant(factors: Monomial) -> ir.Value | None:
    """Return the constant array that a monomial consists of."""
    values = [value for value, exponent in factors if exponent == 1 and constant(value) is not None]
    return values[0] if len(values) == 1 == len(factors) else None


def _best(candidates: list[Normalised], x: ir.Value, width: int, epsilon: float, shifted: ir.Value) -> Found:
    """Return the largest candidate that the operator can express."""
    problems = [_problem(candidate, x, width) for candidate in candidates]
    usable = [candidate for candidate, problem in zip(candidates, problems, strict=True) if problem is None]
    best = max(usable, key=_extent, default=None)  # the first of equals
    reasons = list(
        dict.fromkeys(
            problem
            for candidate, problem in zip(candidates, problems, strict=True)
            if problem is not None and (best is None or _extent(candidate) > _extent(best))
        )
    )
    if best is None:
        return Found(reasons=reasons or [f"{shifted.name}: its inverse square root does not scale x - mean(x) alone"])
    source = find_with_dtype(x, best.output.dtype, best.output)
    assert source is not None  # else there was a problem
    weight = _ones(best.output, width) if best.weight is None else _vector(best.weight, best.output, width)
    bias = () if best.bias is None else (_vector(best.bias, best.output, width),)
    attributes = {"axis": -1, "epsilon": epsilon}
    return Found(Match(best.output, "LayerNormalization", (source, weight, *bias), attributes), reasons)


def _extent(candidate: Normalised) -> int:
    return (candidate.weight is not None) + (candidate.bias is not None)


def _problem(candidate: Normalised, x: ir.Value, width: int) -> str | None:
    """Return the reason why the operator cannot express `candidate`."""
    output = candidate.output
    if not close(candidate.scale, 1.0, output.dtype):
        return f"{output.name}: the normalised {x.name} is scaled by {candidate.scale:.6g}, expected 1"
    if (output.dtype is not None and output.dtype not in FLOATS) or find_with_dtype(x, output.dtype, output) is None:
        return f"{output.name}: its dtype differs from that of its LayerNormalization's input, {x.name}"
    for role, value in (("weight", candidate.weight), ("bias", candidate.bias)):
        tensor = constant(value)
        if value is None or tensor is None:
            continue
        shape = list(tensor.shape.numpy())
        if len(shape) > (rank(x) or 0) or any(length != 1 for length in shape[:-1]):
            return f"{role} is not 1-D: {value.name} {shape}"
        if shape[-1] != width:
            return f"{role} is not [{width}], as long as the last axis of {x.name}: {value.name} {shape}"
    return None


def _vector(value: ir.Value, output: ir.Value, width: int) -> ir.Value | NewConstant:
    """Return the constant as [width] in the dtype of `output`: itself, or a copy."""
    tensor = constant(value)
    assert tensor is not None
    dtype = output.dtype or tensor.dtype
    if len(tensor.shape) == 1 and tensor.dtype == dtype:
        return value
    return NewConstant(f"{value.name}_1d", tensor.numpy().reshape(width).astype(dtype.numpy()))


def _ones(output: ir.Value, width: int) -> NewConstant:
    dtype = output.dtype or ir.DataType.FLOAT
    return NewConstant(f"{output.name}_weight", np.ones(width, dtype.numpy()))


LAYER_NORM = Rewrite("layer_norm", ("ReduceMean",), 17, find)
