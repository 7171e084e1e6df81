"""The standard ONNX operators around the integer ones: indices and masks before them, the head after them.

A function takes the node and its inputs (None for a missing one), and returns the single output. Integers with a
gradient are floating-point tensors here (see operators.py); the graph's dtypes distinguish them from real numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional

from intaglio.errors import GraphError

Function = Callable[..., Tensor]
DTYPES = {
    ir.DataType.FLOAT: torch.float32,
    ir.DataType.DOUBLE: torch.float64,
    ir.DataType.BOOL: torch.bool,
    ir.DataType.INT8: torch.int8,
    ir.DataType.INT16: torch.int16,
    ir.DataType.INT32: torch.int32,
    ir.DataType.INT64: torch.int64,
    ir.DataType.UINT8: torch.uint8,
}


def only(node: ir.Node, **supported: int) -> None:
    """Reject attributes with unsupported values."""
    for name, value in supported.items():
        if (got := node.attributes.get_int(name, value)) != value:
            raise GraphError(f"{node.op_type} {node.name}: {name}={got} cannot be trained, only {name}={value}.")


def _cast(node: ir.Node, x: Tensor) -> Tensor:
    to = ir.DataType(node.attributes["to"].as_int())
    source = node.inputs[0]
    assert source is not None
    if to.is_integer() and x.is_floating_point() and source.dtype is not None and source.dtype.is_integer():
        return x  # integers with a gradient
    return x.to(DTYPES[to])


def _gather(node: ir.Node, data: Tensor, indices: Tensor) -> Tensor:
    axis = node.attributes.get_int("axis", 0) % data.ndim
    wrapped = torch.where(indices < 0, indices + data.shape[axis], indices)
    rows = data.index_select(axis, wrapped.reshape(-1))
    return rows.reshape((*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))


def _slice(
    node: ir.Node,
    data: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    every = range(len(starts)) if axes is None else axes.tolist()
    by = [1] * len(starts) if steps is None else steps.tolist()
    for start, end, axis, step in zip(starts.tolist(), ends.tolist(), every, by, strict=True):
        if step < 0 and end < -data.shape[axis]:
            end = None  # in Python: down to and including the first
        data = data.index_select(axis, torch.arange(*slice(start, end, step).indices(data.shape[axis])))
    return data


def _shape(node: ir.Node, x: Tensor) -> Tensor:
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", x.ndim)
    return torch.tensor(x.shape[start:end], dtype=torch.int64)


def _reshape(node: ir.Node, x: Tensor, shape: Tensor) -> Tensor:
    copies = not node.attributes.get_int("allowzero", 0)
    wanted = enumerate(shape.tolist())
    return torch.reshape(x, tuple(x.shape[axis] if copies and not length else length for axis, length in wanted))


def _unsqueeze(node: ir.Node, x: Tensor, axes: Tensor) -> Tensor:
    rank = x.ndim + len(axes)
    for axis in sorted(axis % rank for axis in axes.tolist()):
        x = x.unsqueeze(axis)
    return x


def _squeeze(node: ir.Node, x: Tensor, axes: Tensor | None = None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze(axes.tolist())


def _expand(node: ir.Node, x: Tensor, shape: Tensor) -> Tensor:
    lengths = torch.broadcast_shapes(x.shape, shape.tolist())  # type: ignore[no-untyped-call]
    return x.expand(lengths)


def _cumulative_sum(node: ir.Node, x: Tensor, axis: Tensor) -> Tensor:
    only(node, exclusive=0, reverse=0)
    return x.cumsum(int(axis), dtype=x.dtype)


def _divide(node: ir.Node, x: Tensor, y: Tensor) -> Tensor:
    whole = not x.is_floating_point() and not y.is_floating_point()
    return torch.div(x, y, rounding_mode="trunc" if whole else None)


def _general_matrix_product(node: ir.Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    get = node.attributes
    a = a.T if get.get_int("transA", 0) else a
    b = b.T if get.get_int("transB", 0) else b
    product = get.get_float("alpha", 1.0) * (a @ b)
    return product if c is None else product + get.get_float("beta", 1.0) * c


def _reduction(reduce: Callable[..., Tensor]) -> Function:
    def reduced(node: ir.Node, x: Tensor, axes: Tensor | None = None) -> Tensor:
        keep = bool(node.attributes.get_int("keepdims", 1))
        if axes is None or not axes.numel():
            only(node, noop_with_empty_axes=0)
            return reduce(x, tuple(range(x.ndim)), keepdim=keep)
        return reduce(x, tuple(axes.tolist()), keepdim=keep)

    return reduced


def _softmax(node: ir.Node, x: Tensor) -> Tensor:
    return torch.softmax(x, node.attributes.get_int("axis", -1))


def _gelu(node: ir.Node, x: Tensor) -> Tensor:
    return functional.gelu(x, approximate=node.attributes.get_string("approximate", "none"))


def _layer_norm(node: ir.Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    axis = node.attributes.get_int("axis", -1)
    return functional.layer_norm(x, x.shape[axis:], weight, bias, node.attributes.get_float("epsilon", 1e-5))


def _dequantize(node: ir.Node, x: Tensor, scale: Tensor, zero_point: Tensor | None = None) -> Tensor:
    block_size = node.attributes.get_int("block_size", 0)
    if zero_point is not None or block_size:
        raise GraphError(f"DequantizeLinear {node.name}: zero points and blocks cannot be trained.")
    if scale.ndim:
        axis = node.attributes.get_int("axis", 1) % x.ndim
        scale = scale.reshape([-1 if each == axis else 1 for each in range(x.ndim)])
    return x.to(scale.dtype) * scale


def _elementwise(function: Callable[..., Any]) -> Function:
    return lambda node, *inputs: function(*inputs)


def _exact(function: Callable[..., Tensor]) -> Function:
    """Like `_elementwise`; integers of 32 bits with a gradient become float64, which holds their sums and products."""

    def computed(node: ir.Node, *inputs: Tensor) -> Tensor:
        return function(*(_wide(value, x) for value, x in zip(node.inputs, inputs, strict=True)))

    return computed


def _wide(value: ir.Value | None, x: Tensor) -> Tensor:
    is_integer = value is not None and value.dtype == ir.DataType.INT32 and x.is_floating_point()
    return x.double() if is_integer else x


def _range(node: ir.Node, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    return torch.arange(int(start), int(limit), int(delta), dtype=start.dtype)


def _listed(function: Callable[[Sequence[Tensor]], Tensor]) -> Function:
    """A function that takes any number of tensors, two at a time."""
    return lambda node, *inputs: inputs[0] if len(inputs) == 1 else function(inputs)


FUNCTIONS: dict[str, Function] = {
    "Abs": _elementwise(torch.abs),
    "Add": _exact(torch.add),
    "And": _elementwise(torch.logical_and),
    "Cast": _cast,
    "Clip": _elementwise(torch.clamp),
    "Concat": lambda node, *inputs: torch.cat(inputs, node.attributes["axis"].as_int()),
    "CumSum": _cumulative_sum,
    "DequantizeLinear": _dequantize,
    "Div": _divide,
    "Equal": _elementwise(torch.eq),
    "Erf": _elementwise(torch.erf),
    "Expand": _expand,
    "Gather": _gather,
    "GatherElements": lambda node, x, index: torch.gather(x, node.attributes.get_int("axis", 0), index),
    "Gelu": _gelu,
    "Gemm": _general_matrix_product,
    "Greater": _elementwise(torch.gt),
    "GreaterOrEqual": _elementwise(torch.ge),
    "Identity": _elementwise(lambda x: x),
    "LayerNormalization": _layer_norm,
    "Less": _elementwise(torch.lt),
    "LessOrEqual": _elementwise(torch.le),
    "MatMul": _elementwise(torch.matmul),
    "Mod": _elementwise(torch.remainder),
    "Mul": _exact(torch.mul),
    "Neg": _elementwise(torch.neg),
    "Not": _elementwise(torch.logical_not),
    "Or": _elementwise(torch.logical_or),
    "Pow": _elementwise(torch.pow),
    "Range": _range,
    "ReduceL2": _reduction(lambda x, axes, keepdim: torch.linalg.vector_norm(x, 2, axes, keepdim)),
    "ReduceMax": _reduction(torch.amax),
    "ReduceMean": _reduction(torch.mean),
    "ReduceSum": _reduction(torch.sum),
    "Relu": _elementwise(torch.relu),
    "Reshape": _reshape,
    "Shape": _shape,
    "Sigmoid": _elementwise(torch.sigmoid),
    "Slice": _slice,
    "Softmax": _softmax,
    "Sqrt": _elementwise(torch.sqrt),
    "Squeeze": _squeeze,
    "Sub": _elementwise(torch.sub),
    "Tanh": _elementwise(torch.tanh),
    "Transpose": lambda node, x: x.permute(*node.attributes["perm"].as_ints()),
    "Unsqueeze": _unsqueeze,
    "Where": _elementwise(torch.where),
}
