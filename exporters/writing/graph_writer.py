"""Write a graph node by node: the operators of families whose graphs are not traced.

They are written from config.json, in standard operators of opset 24. The weights stay unread in their files, under the
names of the checkpoint's modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir

from intaglio.bundle.bundle import TensorSpec
from intaglio.errors import SourceError
from intaglio.exporters.writing.checkpoint_weights import CheckpointWeights
from intaglio.runtime.sessions.step import cache_names
from intaglio.version import __version__

OPSET, IR_VERSION = 24, 11  # the first opset with TensorScatter, and its IR version
ACTIVATIONS = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "silu", "swish")


class GraphWriter:
    """A graph while it is written. Values are [batch, tokens, width] unless noted otherwise.

    A node is named after the module in which it is written, `<module path>/<operator>`, and so is its output.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[ir.Value],
        weights: CheckpointWeights,
        dtype: ir.DataType,
        heads: int,
        head_dim: int,
    ):
        self.weights = weights
        self.dtype = dtype
        self.layers: dict[str, str] = {}  # module path -> the value that it returns, in execution order
        self._heads, self._head_dim = heads, head_dim
        self._scopes: list[str] = []
        self._counts: dict[str, int] = {}
        self._graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": OPSET}, name=name)
        self.model = ir.Model(
            self._graph, ir_version=IR_VERSION, producer_name="intaglio", producer_version=__version__
        )

    @contextmanager
    def module(self, path: str) -> Iterator[None]:
        """Write the module at `path` inside this block; the last value written is the module's output."""
        self._scopes.append(path)
        yield
        self._scopes.pop()
        last = self._graph[-1].outputs[0].name
        assert last is not None
        self.layers[path] = last

    def op(self, op_type: str, inputs: Sequence[ir.Value | None], outputs: int = 1, **attributes: Any) -> ir.Value:
        """Append a node and return its first output."""
        return self.ops(op_type, inputs, outputs, **attributes)[0]

    def ops(self, op_type: str, inputs: Sequence[ir.Value | None], outputs: int, **attributes: Any) -> list[ir.Value]:
        """Append a node and return all of its outputs."""
        scope = self._scopes[-1] if self._scopes else self._graph.name
        name = f"{scope}/{op_type}"
        count = self._counts[name] = self._counts.get(name, 0) + 1
        name = name if count == 1 else f"{name}_{count}"
        node = ir.Node(
            "", op_type, inputs, ir.convenience.convert_attributes(attributes), num_outputs=outputs, name=name
        )
        for index, value in enumerate(node.outputs):
            value.name = name if outputs == 1 else f"{name}_output_{index}"
        self._graph.append(node)
        return list(node.outputs)

    def constant(self, name: str, numbers: Any, dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
        """A small constant, shared by all uses of the same name."""
        if name not in self._graph.initializers:
            self._initializer(name, ir.tensor(np.asarray(numbers, dtype.numpy()), name=name))
        return self._graph.initializers[name]

    def weight(
        self, name: str, shape: Sequence[int], transposed: bool = False, dtype: ir.DataType | None = None
    ) -> ir.Value:
        """The checkpoint's tensor `name` of `shape`, as an initializer of that name, of `dtype` or the graph's dtype.

        `transposed`: stored transposed, for a matrix product with x on the left, and named `<name>_transposed`.
        """
        called = f"{name}_transposed" if transposed else name
        if called not in self._graph.initializers:
            self._initializer(called, self.weights.tensor(name, called, shape, dtype or self.dtype, transposed))
        return self._graph.initializers[called]

    def _initializer(self, name: str, tensor: ir.TensorProtocol) -> None:
        shape = ir.Shape([int(str(length)) for length in tensor.shape])
        value = ir.Value(name=name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        self._graph.register_initializer(value)

    def embedding(self, path: str, ids: ir.Value, rows: int, width: int) -> ir.Value:
        """Rows of the table at `path`, one for each id of `ids` [batch, tokens]."""
        with self.module(path):
            return self.op("Gather", [self.weight(self.weights.table_of(path), [rows, width]), ids], axis=0)

    def linear(self, path: str, x: ir.Value, inputs: int, outputs: int, bias: bool = True) -> ir.Value:
        """x·W (+ b)."""
        with self.module(path):
            product = self.op("MatMul", [x, self.weight(f"{path}.weight", [outputs, inputs], transposed=True)])
            return self.op("Add", [product, self.weight(f"{path}.bias", [outputs])]) if bias else product

    def layer_norm(self, path: str, x: ir.Value, width: int, epsilon: float) -> ir.Value:
        """LayerNorm over the last axis."""
        with self.module(path):
            parameters = [self.weight(f"{path}.{name}", [width]) for name in ("weight", "bias")]
            return self.op("LayerNormalization", [x, *parameters], axis=-1, epsilon=epsilon)

    def activation(self, name: str, x: ir.Value) -> ir.Value:
        """The activation that `transformers` calls `name`. Raises `SourceError` for an unknown one."""
        if name not in ACTIVATIONS:
            raise SourceError(f"config.json: activation {name!r}: expected one of {', '.join(ACTIVATIONS)}.")
        if name == "relu":
            return self.op("Relu", [x])
        if name in ("silu", "swish"):
            return self.op("Mul", [x, self.op("Sigmoid", [x])])
        return self.op("Gelu", [x], approximate="none" if name == "gelu" else "tanh")

    def add(self, left: ir.Value, right: ir.Value) -> ir.Value:
        """A residual connection."""
        return self.op("Add", [left, right])

    def heads(self, x: ir.Value, count: int) -> ir.Value:
        """[batch, tokens, count · head_dim] to [batch, count, tokens, head_dim]."""
        shape = self.constant(f"shape_{count}_heads", [0, 0, count, self._head_dim])
        return self.op("Transpose", [self.op("Reshape", [x, shape])], perm=[0, 2, 1, 3])

    def attend(self, queries: ir.Value, keys: ir.Value, values: ir.Value, mask: ir.Value, scale: float) -> ir.Value:
        """Attention of [batch, heads, tokens, head_dim] to [batch, kv_heads, slots, head_dim], with merged heads.

        `mask` [batch, 1 or heads, tokens, slots] is true where a token attends to a slot, or is added to the scores.

        The queries are scaled, and not the scores: ONNX Runtime (1.31) has a kernel for the scores of one token that
        takes no factor. With another one it packs the keys first, which takes two to three times as long.
        """
        if scale != 1:
            queries = self.op("Mul", [queries, self.constant(f"attention_scale_{scale!r}", scale, self.dtype)])
        attended = self.op("Attention", [queries, keys, values, mask], scale=1.0)
        merged = self.constant("shape_merged_heads", [0, 0, self._heads * self._head_dim])
        return self.op("Reshape", [self.op("Transpose", [attended], perm=[0, 2, 1, 3]), merged])


def graph_input(spec: TensorSpec) -> ir.Value:
    """An input; its symbolic axes are given by name."""
    dtype = ir.DataType.from_numpy(np.dtype(spec.dtype))
    return ir.Value(name=spec.name, type=ir.TensorType(dtype), shape=ir.Shape(spec.shape))


def graph_inputs(
    prefix: str, layers: int, dtype: ir.DataType, axes: Sequence[str | int]
) -> list[tuple[ir.Value, ir.Value]]:
    """The key and value inputs of each layer, named `prefix` + the name of a cache."""
    names = [prefix + name for name in cache_names(layers)]
    values = [graph_input(TensorSpec(name, dtype.numpy().name, tuple(axes))) for name in names]
    return list(zip(values[::2], values[1::2], strict=True))


def named(value: ir.Value, name: str, shape: Sequence[str | int]) -> ir.Value:
    """Rename `value` and set its shape, as an output of the graph."""
    value.name, value.shape = name, ir.Shape(shape)
    return value
