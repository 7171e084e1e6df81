"""Write the few nodes by which images or recordings become the input of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir


class FrontEndWriter:
    """Writes nodes named after a `path`, and constants into the graph."""

    def __init__(self, graph: ir.Graph, path: str):
        self.nodes: list[ir.Node] = []
        self._graph, self._path = graph, path

    def op(self, op_type: str, inputs: list[ir.Value | None], **attributes: Any) -> ir.Value:
        """Append a node and return its output."""
        count = sum(node.op_type == op_type for node in self.nodes)
        name = f"{self._path}/{op_type}" if not count else f"{self._path}/{op_type}_{count + 1}"
        node = ir.Node("", op_type, inputs, ir.convenience.convert_attributes(attributes), name=name)
        node.outputs[0].name = name
        self.nodes.append(node)
        return node.outputs[0]

    def constant(self, name: str, numbers: Any, dtype: Any = np.int64) -> ir.Value:
        """An initializer."""
        tensor = ir.tensor(np.asarray(numbers, dtype), name=f"{self._path}.{name}")
        value = ir.Value(
            name=tensor.name, shape=ir.Shape(tensor.numpy().shape), type=ir.TensorType(tensor.dtype), const_value=tensor
        )
        self._graph.register_initializer(value)
        return value
