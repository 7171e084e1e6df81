"""Match formulas in a graph independently of how the arithmetic is arranged.

One formula can be written as many graphs: `0.5 * x * (1 + e)`, `x * (0.5 + e * 0.5)`, `x / 2 + (e * x) / 2`. The
rewrites do not list them. They expand a value into a sum of products of a few chosen values, the atoms, and
compare that normal form: here `{x: 0.5, x e: 0.5}` for all three.

Identity and casts between floating-point types are ignored: the dtype of an intermediate is not part of the formula.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction

import onnx_ir as ir

from intaglio.graph_passes.graphs import constant, rank

Monomial = frozenset[tuple[ir.Value, Fraction]]  # product of atoms, each with its exponent
Expression = dict[Monomial, float]  # sum of monomials with their coefficients

NUMBER: Monomial = frozenset()  # the empty product: its coefficient is the constant term
MAX_TERMS = 16  # longer expressions match no rewrite
MAX_DEGREE = 8
MAX_VALUES = 64  # maximum number of values that `above` and `below` visit

ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div", "Neg", "Reciprocal", "Sqrt", "Pow", "Sum"})
TOLERANCES = {  # relative tolerance of a constant by the graph's dtype: a few rounding errors
    ir.DataType.DOUBLE: 1e-5,
    ir.DataType.FLOAT: 1e-5,
    ir.DataType.FLOAT16: 2e-3,
    ir.DataType.BFLOAT16: 1e-2,
}
FLOATS = frozenset(TOLERANCES)


def close(found: float, expected: float, dtype: ir.DataType | None) -> bool:
    """Whether a constant equals the expected number, up to the rounding of `dtype`."""
    return abs(found - expected) <= TOLERANCES.get(dtype or ir.DataType.FLOAT, 1e-5) * abs(expected)


def monomial(*factors: ir.Value | tuple[ir.Value, Fraction]) -> Monomial:
    """Build the product of distinct values, each alone (exponent 1) or with an exponent."""
    return frozenset(factor if isinstance(factor, tuple) else (factor, Fraction(1)) for factor in factors)


def scalar(value: ir.Value | None) -> float | None:
    """Return the number of a constant with one element; None for anything else, NaN or infinity."""
    tensor = constant(value)
    if tensor is None or tensor.size != 1 or tensor.dtype not in FLOATS | {ir.DataType.INT32, ir.DataType.INT64}:
        return None
    number = float(tensor.numpy().reshape(-1)[0])
    return number if math.isfinite(number) else None


def plain(value: ir.Value) -> ir.Value:
    """Return the value below Identity and casts between floating-point types."""
    while (source := _looked_through(value)) is not None:
        value = source
    return value


def _looked_through(value: ir.Value) -> ir.Value | None:
    node = value.producer()
    if node is None or node.domain != "" or not node.inputs or node.inputs[0] is None:
        return None
    source = node.inputs[0]
    if node.op_type == "Identity":
        return source
    if node.op_type == "Cast" and node.attributes["to"].as_int() in FLOATS and source.dtype in FLOATS:
        return source
    return None


class Expansion:
    """Expands values into sums of products of `atoms`.

    `positive`: the atoms that are always above zero, so that roots and reciprocals of them are allowed.
    `arrays`: whether constants of more than one element count as further atoms.
    """

    def __init__(self, atoms: Iterable[ir.Value], positive: Iterable[ir.Value] = (), arrays: bool = False):
        self._atoms = {plain(atom) for atom in atoms}
        self._positive = {plain(atom) for atom in positive}
        self._arrays = arrays
        self._known: dict[ir.Value, Expression | None] = {}

    def __call__(self, value: ir.Value) -> Expression | None:
        """Return the expression of `value`, or None if it contains other values or operators."""
        value = plain(value)
        if value not in self._known:
            self._known[value] = self._expand(value)
        return self._known[value]

    def _expand(self, value: ir.Value) -> Expression | None:
        if value in self._atoms:
            return {monomial(value): 1.0}
        if (number := scalar(value)) is not None:
            return {NUMBER: number}
        if constant(value) is not None:
            return {monomial(value): 1.0} if self._arrays else None
        node = value.producer()
        if node is None or node.domain != "" or node.op_type not in ARITHMETIC:
            return None
        if value.dtype is not None and value.dtype not in FLOATS:
            return None  # integer division truncates
        operands: list[Expression] = []
        for operand in node.inputs:
            expression = None if operand is None else self(operand)
            if expression is None:
                return None
            operands.append(expression)
        return self._combine(node.op_type, operands) if _keeps_rank(node, operands) else None

    def _combine(self, op_type: str, operands: list[Expression]) -> Expression | None:
        match op_type, operands:
            case (("Add" | "Sum"), _):
                return _sum(operands)
            case "Sub", [left, right]:
                return _sum([left, _scaled(right, -1.0)])
            case "Mul", [left, right]:
                return _product(left, right)
            case "Div", [left, right]:
                inverse = self._power(right, Fraction(-1))
                return None if inverse is None else _product(left, inverse)
            case "Neg", [operand]:
                return _scaled(operand, -1.0)
            case "Reciprocal", [operand]:
                return self._power(operand, Fraction(-1))
            case "Sqrt", [operand]:
                return self._power(operand, Fraction(1, 2))
            case "Pow", [base, exponent] if set(exponent) == {NUMBER}:
                return self._power(base, Fraction(exponent[NUMBER]).limit_denominator(1000))
        return None

    def _power(self, base: Expression, exponent: Fraction) -> Expression | None:
        """Raise a sum to an integer power >= 1, or one term of a positive number and positive atoms to any power."""
        if exponent.denominator == 1 and 1 <= exponent <= MAX_DEGREE:
            result: Expression | None = base
            for _ in range(int(exponent) - 1):
                result = None if result is None else _product(result, base)
            return result
        if len(base) != 1:
            return None
        ((factors, coefficient),) = base.items()
        complex_root = coefficient < 0 and exponent.denominator != 1
        if coefficient == 0 or complex_root or any(value not in self._positive for value, _ in factors):
            return None
        try:
            return {frozenset((value, power * exponent) for value, power in factors): coefficient ** float(exponent)}
        except OverflowError:
            return None


def _keeps_rank(node: ir.Node, operands: list[Expression]) -> bool:
    """Whether no constant adds axes to the other operand, as a constant of shape [1, 1] does to a vector."""
    values = [value for value in node.inputs if value is not None]
    numbers = [set(expression) == {NUMBER} for expression in operands]
    if all(numbers):
        return True
    others = [rank(value) or 0 for value, number in zip(values, numbers, strict=True) if not number]
    ranks = [rank(value) for value, number in zip(values, numbers, strict=True) if number]
    return all(axes is not None and axes <= max(others) for axes in ranks)


def _sum(expressions: list[Expression]) -> Expression | None:
    result: Expression = {}
    for expression in expressions:
        for factors, coefficient in expression.items():
            result[factors] = result.get(factors, 0.0) + coefficient
    return _bounded(result)


def _scaled(expression: Expression, number: float) -> Expression:
    return {factors: coefficient * number for factors, coefficient in expression.items()}


def _product(left: Expression, right: Expression) -> Expression | None:
    result: Expression = {}
    for left_factors, left_coefficient in left.items():
        for right_factors, right_coefficient in right.items():
            powers = dict(left_factors)
            for value, exponent in right_factors:
                powers[value] = powers.get(value, Fraction(0)) + exponent
            factors = frozenset((value, exponent) for value, exponent in powers.items() if exponent)
            result[factors] = result.get(factors, 0.0) + left_coefficient * right_coefficient
    return _bounded(result)


def _bounded(expression: Expression) -> Expression | None:
    """Return the expression without terms that cancelled out; None if it is larger than any searched formula."""
    kept = {factors: coefficient for factors, coefficient in expression.items() if coefficient} or {NUMBER: 0.0}
    too_high = any(sum(abs(exponent) for _, exponent in factors) > MAX_DEGREE for factors in kept)
    return None if len(kept) > MAX_TERMS or too_high else kept


def polynomial(value: ir.Value, variable: ir.Value) -> dict[int, float] | None:
    """Return the coefficients of `value` by degree in `variable`; None if it is not a polynomial in it alone."""
    expression = Expansion([variable])(value)
    if expression is None:
        return None
    return {
        int(next((exponent for _, exponent in factors), Fraction(0))): coefficient
        for factors, coefficient in expression.items()
    }


def above(start: ir.Value, expand: Callable[[ir.Value], Expression | None]) -> Iterator[tuple[ir.Value, Expression]]:
    """Yield the values computed from `start` by arithmetic that `expand` knows, with expressions, nearest first."""
    seen: set[ir.Value] = {start}
    pending = deque([start])
    while pending and len(seen) < MAX_VALUES:
        for node, _ in pending.popleft().uses():
            if node.domain != "" or (node.op_type not in ARITHMETIC and node.op_type not in ("Cast", "Identity")):
                continue
            value = node.outputs[0]
            if value in seen or (expression := expand(value)) is None:
                continue
            seen.add(value)
            pending.append(value)
            yield value, expression


def below(value: ir.Value) -> Iterator[ir.Value]:
    """Yield `value` and the values that it is computed from by arithmetic, nearest first, without constants."""
    seen: set[ir.Value] = {value}
    pending = deque([value])
    while pending and len(seen) < MAX_VALUES:
        value = pending.popleft()
        yield value
        source = _looked_through(value)
        node = value.producer()
        if source is not None:
            operands = [source]
        elif node is not None and node.domain == "" and node.op_type in ARITHMETIC:
            operands = [operand for operand in node.inputs if operand is not None]
        else:
            continue
        for operand in operands:
            if operand not in seen and constant(operand) is None:
                seen.add(operand)
                pending.append(operand)


def find_with_dtype(value: ir.Value, dtype: ir.DataType | None, user: ir.Value) -> ir.Value | None:
    """Return `value` or a cast of it with `dtype`, among the values that `user` is computed from."""
    return next((form for form in below(user) if plain(form) is plain(value) and form.dtype == dtype), None)
