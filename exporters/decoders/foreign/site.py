"""An attention with a cache in another tool's graph: what it attends with, whichever operators compute it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from intaglio.errors import SourceError

OTHER_DTYPE = ("Shape", "Equal", "Less", "Where")  # operators whose result has not the dtype of the first input


class Cache(NamedTuple):
    """The values of one layer's cache in the graph: inputs, and outputs."""

    past_key: ir.Value
    past_value: ir.Value
    present_key: ir.Value
    present_value: ir.Value

    def dims(self) -> list[int | None]:
        """The widths of a head's key and value, where the graph's inputs tell them."""
        shapes = [value.shape for value in (self.past_key, self.past_value)]
        return [shape[3] if shape is not None and isinstance(shape[3], int) else None for shape in shapes]


class Site(NamedTuple):
    """One attention. What it computes is `output`, which other nodes use."""

    node: ir.Node  # before which the new nodes are inserted
    cache: Cache
    queries: ir.Value  # [batch, heads, tokens, head_dim], rotated
    keys: ir.Value  # of the step's tokens, [batch, kv_heads, tokens, head_dim], rotated
    values: ir.Value  # the same shape
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    output: ir.Value
    merged: bool  # whether the output is [batch, tokens, heads · head_dim], not [batch, heads, tokens, head_dim]
    softcap: float = 0.0
    window: int | None = None  # tokens that a token attends to, including itself
    mask: ir.Value | None = None  # added to the scores, or true where a token attends; still to be understood
    causal: bool = True  # whether a token attends to none after it, regardless of the mask

    @property
    def dtype(self) -> ir.DataType:
        """Of the caches, and of what is computed from them."""
        return self.cache.past_key.dtype or ir.DataType.FLOAT


class Nodes:
    """Nodes that are inserted before one of a graph, and carry its metadata."""

    def __init__(self, graph: ir.Graph):
        self.graph = graph
        self._made: list[ir.Node] = []

    @contextmanager
    def before(self, node: ir.Node) -> Iterator[None]:
        """Insert the nodes that this block adds before `node`."""
        yield
        for each in self._made:
            each.metadata_props.update(node.metadata_props)
        self.graph.insert_before(node, self._made)
        self._made = []

    def op(self, op_type: str, inputs: Sequence[ir.Value | None], outputs: int = 1, **attributes: Any) -> ir.Value:
        """Add a node, and return its first output; that has the dtype of the first input."""
        return self.ops(op_type, inputs, outputs, **attributes)[0]

    def ops(self, op_type: str, inputs: Sequence[ir.Value | None], outputs: int, **attributes: Any) -> list[ir.Value]:
        """Add a node, and return its outputs."""
        node = ir.node(op_type, inputs, attributes, num_outputs=outputs)
        for value in node.outputs:
            value.type = inputs[0].type if inputs[0] is not None and op_type not in OTHER_DTYPE else None
        self._made.append(node)
        return list(node.outputs)

    def constant(self, name: str, numbers: Any, dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
        """A small constant, shared by all uses of the same name."""
        name = f"intaglio.{name}"
        if (known := self.graph.initializers.get(name)) is not None:
            return known
        tensor = ir.tensor(np.asarray(numbers, dtype.numpy()), name=name)
        value = ir.Value(name=name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(dtype), const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def split_heads(self, x: ir.Value, heads: int, dim: int) -> ir.Value:
        """[batch, tokens, heads · dim] to [batch, heads, tokens, dim]."""
        shape = self.constant(f"shape_{heads}_heads_{dim}", [0, 0, heads, dim])
        return self.op("Transpose", [self.op("Reshape", [x, shape])], perm=[0, 2, 1, 3])


def given(node: ir.Node, index: int) -> ir.Value | None:
    """The input of the node at `index`, if it has one there."""
    return node.inputs[index] if index < len(node.inputs) else None


def last_length(value: ir.Value, what: str) -> int:
    """The length of the last axis of `value`, from its shape or from the node that computes it.

    Raises `SourceError` if the graph does not tell.
    """
    if value.shape is not None and isinstance(length := value.shape[-1], int):
        return length
    node = value.producer()
    if node is not None:
        if node.op_type == "MatMulNBits":
            return int(node.attributes["N"].as_int())
        if node.op_type in ("MatMul", "Add"):
            tensors = [each.const_value for each in node.inputs if each is not None]
            lengths = [tensor.shape.numpy()[-1] for tensor in tensors if tensor is not None and len(tensor.shape)]
            if lengths:
                return int(lengths[0])
    raise SourceError(f"the graph does not tell the width of {what} {value.name}")
