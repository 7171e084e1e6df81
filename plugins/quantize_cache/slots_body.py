"""Slots of a quantised cache in standard ONNX operators, for function bodies: equal to `slots.py` in every byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from intaglio.errors import GraphError
from intaglio.plugins.quantize_cache.slots import GROUP, LARGEST, groups_of, slot_bytes, used_bytes

if TYPE_CHECKING:
    import onnx_ir as ir

    from intaglio.plugins.function_body import FunctionBody

HALF = GROUP // 2
POWERS = 2.0 ** np.arange(-126, 128)  # of normal float32 numbers
# What the exponent in a byte stands for: 0 for zero, 255 for NaN.
FACTORS = np.array([0, *POWERS, np.nan], np.float32)


def quantized(graph: FunctionBody, x: ir.Value, bits: int) -> ir.Value:
    """`slots.quantize`. Raises `GraphError` for an x of unknown depth."""
    depth = None if x.shape is None else x.shape[-1]
    if not isinstance(depth, int):
        raise GraphError("QuantizeCache: x has an unknown number of channels, expected a number.")
    codes, scales, zeros = [], [], []
    for first in range(0, depth, GROUP):
        count = min(GROUP, depth - first)
        group = _columns(graph, x, [first + (i if i < count else 0) for i in range(count if bits == 8 else GROUP)])
        none = graph.sum(graph.multiply(group, 0.0))  # no number where one of the group is none, or infinite
        finite = graph.op("Equal", none, graph.constant(0, np.float32))
        if bits == 8:
            magnitude = graph.op("Abs", group)
            pair, scale, usable = _scale(graph, _over(graph, graph.largest(magnitude), LARGEST[8] ** 2), finite)
            # In float64 and back, which rounds as float32's square root does.
            root = graph.op("Sqrt", graph.cast(_over(graph, magnitude, scale), _type("DOUBLE")))
            code = graph.op("Round", graph.cast(root, _type("FLOAT")))
            code = graph.choose(graph.op("Less", group, graph.constant(0, np.float32)), graph.op("Neg", code), code)
            codes.append(_byte(graph, graph.choose(usable, code, 0.0)))
        else:
            least, greatest = graph.reduce("ReduceMin", group), graph.largest(group)
            magnitude = graph.maximum(graph.op("Abs", least), graph.op("Abs", greatest))
            step = _over(graph, graph.subtract(greatest, least), LARGEST[4])
            wanted = graph.maximum(step, _over(graph, magnitude, 127))
            bounded = graph.op("Equal", graph.subtract(wanted, wanted), graph.constant(0, np.float32))
            pair, scale, usable = _scale(graph, wanted, graph.op("And", finite, bounded))
            zero = graph.clip(graph.op("Round", _over(graph, least, scale)), (-127, 127))
            code = graph.subtract(graph.op("Round", _over(graph, group, scale)), zero)
            code = graph.choose(usable, graph.clip(code, (0, LARGEST[4])), 0.0)
            low, high = _columns(graph, code, range(HALF)), _columns(graph, code, range(HALF, GROUP))
            codes.append(_byte(graph, graph.add(low, graph.multiply(high, 16.0))))
            zeros.append(_byte(graph, graph.choose(usable, zero, 0.0)))
        scales.append(pair)
    used = graph.op("Concat", *codes, *scales, *zeros, axis=-1)
    padding = slot_bytes(depth, bits) - used_bytes(depth, bits)
    if not padding:
        return used
    nothing = graph.constant(0, np.uint8)
    return graph.op("Pad", used, graph.constant(np.array([0, padding])), nothing, graph.constant(np.array([-1])))


def dequantized(graph: FunctionBody, slots: ir.Value, depth: int, bits: int) -> ir.Value:
    """`slots.dequantize`."""
    groups, floats = groups_of(depth), graph.cast(slots, _type("FLOAT"))
    first = depth if bits == 8 else groups * HALF
    parts = []
    for group in range(groups):
        count = min(GROUP, depth - group * GROUP)
        exponent = graph.cast(_columns(graph, slots, [first + 2 * group]), _type("INT32"))
        factor = _factor(graph, exponent)
        mantissa = graph.multiply(_columns(graph, floats, [first + 2 * group + 1]), 2.0**-8)
        scale = graph.multiply(factor, graph.add(mantissa, 1.0))
        if bits == 8:
            code = _signed(graph, _columns(graph, floats, range(group * GROUP, group * GROUP + count)))
            code = graph.multiply(code, graph.op("Abs", code))
        else:
            pairs = _columns(graph, floats, range(group * HALF, (group + 1) * HALF))
            high = graph.op("Floor", graph.multiply(pairs, 2.0**-4))
            both = graph.op("Concat", graph.subtract(pairs, graph.multiply(high, 16.0)), high, axis=-1)
            zero = _signed(graph, _columns(graph, floats, [first + 2 * groups + group]))
            code = graph.add(_columns(graph, both, range(count)), zero)
        parts.append(graph.multiply(scale, code))
    return graph.op("Concat", *parts, axis=-1)


def _scale(graph: FunctionBody, wanted: ir.Value, finite: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The two bytes of a scale, the float32 that they stand for, and whether codes are to be computed with it."""
    wide = graph.cast(wanted, _type("DOUBLE"))
    reached = graph.op("GreaterOrEqual", wide, graph.constant(POWERS, np.float64))
    exponent = graph.sum(graph.cast(reached, _type("INT32")))
    normal = graph.op("Greater", exponent, graph.constant(0, np.int32))
    power = graph.cast(_factor(graph, graph.maximum(exponent, 1)), _type("DOUBLE"))
    mantissa = graph.op("Floor", graph.add(graph.multiply(graph.op("Div", wide, power), 256.0), 0.5))
    carried = graph.op("Equal", mantissa, graph.constant(512, np.float64))
    exponent = graph.add(exponent, graph.cast(carried, _type("INT32")))
    mantissa = graph.choose(carried, 0.0, graph.subtract(mantissa, 256.0))
    usable = graph.op("And", finite, normal)
    exponent = graph.choose(finite, graph.choose(normal, exponent, 0), 255)
    mantissa = graph.choose(finite, graph.choose(normal, mantissa, 0.0), 128.0)
    scale = graph.multiply(
        _factor(graph, exponent), graph.add(graph.cast(graph.multiply(mantissa, 2.0**-8), _type("FLOAT")), 1.0)
    )
    pair = graph.op("Concat", graph.cast(exponent, _type("UINT8")), graph.cast(mantissa, _type("UINT8")), axis=-1)
    return pair, graph.choose(usable, scale, 1.0), usable


def _factor(graph: FunctionBody, exponent: ir.Value) -> ir.Value:
    """FACTORS[exponent]."""
    return graph.op("Gather", graph.constant(FACTORS, np.float32), exponent)


def _type(name: str) -> ir.DataType:
    import onnx_ir as ir

    return ir.DataType[name]


def _columns(graph: FunctionBody, x: ir.Value, indices: Any) -> ir.Value:
    """Entries of the last axis."""
    return graph.op("Gather", x, graph.constant(np.array([*indices])), axis=-1)


def _over(graph: FunctionBody, x: ir.Value, divisor: ir.Value | float) -> ir.Value:
    return graph.arithmetic("Div", x, divisor)


def _byte(graph: FunctionBody, x: ir.Value) -> ir.Value:
    """Integers from -128 to 255 as bytes, negative ones in two's complement."""
    negative = graph.op("Less", x, graph.constant(0, np.float32))
    return graph.cast(graph.choose(negative, graph.add(x, 256.0), x), _type("UINT8"))


def _signed(graph: FunctionBody, x: ir.Value) -> ir.Value:
    """Bytes as integers from -128 to 127."""
    return graph.choose(graph.op("Greater", x, graph.constant(127, np.float32)), graph.subtract(x, 256.0), x)
