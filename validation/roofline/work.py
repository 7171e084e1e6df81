"""The bytes and operations of a graph for given input lengths, for the roofline.

Bytes are those that must come from memory with any kernels: the weights once, as stored, only the accessed rows of an
embedding table, and all keys and values given to a decoder. Values passed between nodes are assumed to stay in the
processor's caches. Branches are counted as if they were taken. Operations are the multiplications and additions of
products; the rest is negligible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from intaglio.plugins import DOMAIN, operation_counts
from intaglio.plugins.nodes import attributes, operator_of
from intaglio.runtime.sessions.step import CROSS, PAST

Shape = tuple[int, ...]

GIVEN = (PAST, CROSS)  # inputs that hold keys and values


@dataclass(frozen=True)
class Work:
    """Bytes from memory and operations of one run."""

    weight_bytes: int
    cache_bytes: int
    operations: int

    @property
    def bytes(self) -> int:
        """The total."""
        return self.weight_bytes + self.cache_bytes


def work(model: ir.Model, axes: Mapping[str, int], outputs: Collection[str] | None = None) -> Work:
    """The work of one run of `model` for these `outputs`, or all; `axes` are the lengths of its symbolic axes."""
    weight_bytes = operations = 0
    counted: set[ir.Value] = set()
    for node in model.graph.all_nodes() if outputs is None else _needed(model.graph, outputs):
        shapes = [_shape(value, axes) for value in (*node.inputs, *node.outputs)]
        inputs, made = shapes[: len(node.inputs)], shapes[len(node.inputs) :]
        operations += _operations(node, inputs, made)
        for value in node.inputs:
            if value is None or value.const_value is None or value in counted:
                continue
            if node.op_type == "Gather" and value is node.inputs[0]:
                rows = math.prod(inputs[1] or ()) if inputs[1] is not None else 1
                weight_bytes += rows * value.const_value.nbytes // max(value.const_value.shape.numpy()[0], 1)
                continue  # if something else reads all of it, it counts there
            counted.add(value)
            weight_bytes += value.const_value.nbytes
    cache_bytes = sum(
        math.prod(shape) * (value.dtype.itemsize if value.dtype else 4)
        for value in model.graph.inputs
        if str(value.name).startswith(GIVEN) and (shape := _shape(value, axes)) is not None
    )
    return Work(weight_bytes, int(cache_bytes), operations)


def _needed(graph: ir.Graph, outputs: Collection[str]) -> Iterable[ir.Node]:
    """The nodes that these outputs depend on, in a graph without branches."""
    found: dict[ir.Node, None] = {}
    waiting: list[ir.Value | None] = [value for value in graph.outputs if value.name in outputs]
    while waiting:
        value = waiting.pop()
        node = value.producer() if value is not None else None
        if node is not None and node not in found:
            found[node] = None
            waiting += node.inputs
    return found


def _shape(value: ir.Value | None, axes: Mapping[str, int]) -> Shape | None:
    """The lengths of a value's axes, which may follow from those of `axes`; None if one of them is unknown."""
    if value is None or value.shape is None:
        return None
    shape = ir.Shape([axes.get(str(length), length) for length in value.shape]).evaluate(axes)
    found = tuple(length for length in shape if isinstance(length, int))
    return found if len(found) == len(shape) else None


def _operations(node: ir.Node, inputs: list[Shape | None], made: list[Shape | None]) -> int:
    """The operations of a node's products: by the specs of our operators, by `PRODUCTS` for standard ones."""
    if node.domain == DOMAIN:
        operator = operator_of(node)
        return operator.operations(operator.padded(inputs), operator.complete(attributes(node)))
    return PRODUCTS[node.op_type](inputs, made) if node.op_type in PRODUCTS else 0


def _product(inputs: list[Shape | None], made: list[Shape | None]) -> int:
    return operation_counts.product(made[0], inputs[0])


def _attention(inputs: list[Shape | None], made: list[Shape | None]) -> int:
    return operation_counts.attention(inputs[0], inputs[1])


PRODUCTS: dict[str, Callable[[list[Shape | None], list[Shape | None]], int]] = {
    "Attention": _attention,
    "Gemm": _product,
    "MatMul": _product,
    "MatMulInteger": _product,
}
