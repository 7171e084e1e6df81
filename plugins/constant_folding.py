"""Fold the parts of an operator's body that depend only on constants.

Multipliers, shifts and biases are nearly always constants, and a body widens them and looks up powers of two.
TensorRT-RTX cannot compute 64-bit constants while it builds; for runtimes that can, this makes the graph shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Array = npt.NDArray[Any]

LARGEST = 1 << 16  # elements: vectors over channels are folded, tables are not, which would grow with their dtype


def _divide(a: Array, b: Array) -> Array:
    """ONNX's Div; bodies divide no negative integers, for which rounding down would be another than to zero."""
    quotient: Array = a // b if np.issubdtype(a.dtype, np.integer) else a / b
    return quotient


OPERATORS: dict[str, Callable[..., Array]] = {
    "Abs": np.abs,
    "Add": np.add,
    "Div": _divide,
    "Floor": np.floor,
    "GreaterOrEqual": np.greater_equal,
    "Max": np.maximum,
    "Min": np.minimum,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Sub": np.subtract,
    "Where": np.where,
}


def known(value: ir.Value | None, largest: int | None = LARGEST) -> Array | None:
    """The array of a constant of the graph with up to `largest` elements; None: any number.

    Returns None if a graph input can override it, and for anything else.
    """
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return value.const_value.numpy() if largest is None or value.const_value.size <= largest else None


def compute(op_type: str, inputs: Sequence[Array | None], attributes: dict[str, Any]) -> Array | None:
    """The output of a node if all its inputs are known and it is a Cast, a Gather, or one of `OPERATORS`; else None."""
    arrays = [array for array in inputs if array is not None]
    if len(arrays) < len(inputs):
        return None
    if op_type == "Cast":
        return arrays[0].astype(ir.DataType(attributes["to"]).numpy())
    if op_type == "Gather":
        return np.asarray(np.take(arrays[0], arrays[1], axis=attributes.get("axis", 0)))
    return np.asarray(OPERATORS[op_type](*arrays)) if op_type in OPERATORS else None
