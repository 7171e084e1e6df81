"""The weights of a traced graph: read from the checkpoint's files when the graph is written."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from onnx_ir.tensor_adapters import TorchTensor, from_torch_dtype
from torch import Tensor

from intaglio.exporters.checkpoints.deferred import DeferredTensor
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight
from intaglio.exporters.checkpoints.quantized.tabled_weight import TabledWeight
from intaglio.exporters.files.computed_tensor import FloatTensor
from intaglio.exporters.writing.weights import Rounding, stored_weight
from intaglio.plugins.packed_matmul.narrow_weights import HALVES, narrow_weight, reason_against

TRANSPOSED = "_transposed"


class TracedWeights:
    """The initializers of `model` that are parameters, as tensors of `dtype`.

    A weight that is only used transposed is stored so, and called `<name>_transposed`.
    """

    def __init__(self, model: ir.Model, parameters: Mapping[str, Tensor], dtype: ir.DataType):
        """`parameters`: the `DeferredTensor`s by the names of the initializers; tied ones are the same object."""
        self._graph, self._dtype = model.graph, dtype
        self.rounding = Rounding()  # complete once the weights are written
        self._weights: dict[ir.Value, DeferredTensor] = {}
        self.grouped: dict[ir.Value, GroupedWeight] = {}  # those that the checkpoint stores quantised, in groups
        self.tabled: dict[ir.Value, TabledWeight] = {}  # in tables
        first: dict[int, ir.Value] = {}
        for name, value in list(self._graph.initializers.items()):
            if (weight := parameters.get(name)) is None:
                continue
            assert isinstance(weight, DeferredTensor)
            if (same := first.setdefault(id(weight), value)) is not value:
                value.replace_all_uses_with(same)
                del self._graph.initializers[name]
            else:
                self._weights[value] = weight
        used = set(first)
        # Parameters that nothing in the graph reads, such as those for images.
        self.unused = [name for name, weight in parameters.items() if id(weight) not in used]

    def expert(self, value: ir.Value, index: int, transposed: bool) -> ir.Value:
        """The weight [inputs, outputs] of an expert, as a new initializer.

        `value` is the weight [experts, outputs, inputs] of all; [experts, inputs, outputs] if `transposed`.
        """
        weight = self._weights[value].part(index)
        if transposed and (plain := weight.untransposed()) is not None:
            weight, transposed = plain, False
        path, _, kind = str(value.name).rpartition(".")
        name = _name(weight, f"{path}.{index}.{kind}", not transposed)
        if name not in self._graph.initializers:
            made = ir.Value(name=name)
            self._fill(made, weight, name, not transposed)
            self._graph.register_initializer(made)
        return self._graph.initializers[name]

    def attach(self) -> None:
        """Let the initializers read their weights, under the names of the checkpoint where the numbers are the same."""
        for value, weight in self._weights.items():
            users = [node for node, _ in value.uses()]
            if not users:  # the experts have weights of their own
                del self._graph.initializers[str(value.name)]
                continue
            transposed = all(map(_transposes, users))
            self._fill(value, weight, _name(weight, str(value.name), transposed), transposed)
            if transposed:
                for node in users:
                    node.outputs[0].replace_all_uses_with(value)
                    self._graph.remove(node, safe=True)

    def narrow(self) -> None:
        """Store matrices that the checkpoint has in 16 bits so, and let the graph widen them; once it is complete."""
        if self._dtype != ir.DataType.FLOAT:
            return
        for value, weight in self._weights.items():
            name, (_, stored) = str(value.name), weight.unchanged() or ("", None)
            if self._graph.initializers.get(name) is not value or not isinstance(stored, FloatTensor):
                continue
            dtype = from_torch_dtype(stored.dtype)
            if dtype in HALVES and len(stored.shape) == 2 and reason_against(value) is None:
                tensor = stored_weight(stored, name, dtype, name.endswith(TRANSPOSED), self.rounding)
                narrow_weight(value, tensor, lambda wish: wish)

    def _fill(self, value: ir.Value, weight: DeferredTensor, name: str, transposed: bool) -> None:
        value.const_value = self._tensor(weight, name, transposed)
        shape = weight.shape[::-1] if transposed else weight.shape
        value.name, value.type, value.shape = name, ir.TensorType(self._dtype), ir.Shape(shape)
        if isinstance(coded := weight.coded(), GroupedWeight):
            self.grouped[value] = coded
        elif coded is not None:
            self.tabled[value] = coded

    def _tensor(self, weight: DeferredTensor, name: str, transposed: bool) -> ir.TensorProtocol:
        if (found := weight.unchanged()) is not None and isinstance(found[1], FloatTensor):
            return stored_weight(found[1], name, self._dtype, transposed, self.rounding)

        def compute() -> ir.TensorProtocol:
            array = self.rounding.cast(TorchTensor(weight.compute()).numpy(), name, self._dtype)
            return ir.Tensor(np.ascontiguousarray(array.T if transposed else array), name=name)

        shape = list(weight.shape)
        return ir.LazyTensor(compute, self._dtype, ir.Shape(shape[::-1] if transposed else shape), name=name)


def _name(weight: DeferredTensor, otherwise: str, transposed: bool) -> str:
    found = weight.unchanged()
    return (found[0] if found else otherwise) + (TRANSPOSED if transposed else "")


def _transposes(node: ir.Node) -> bool:
    return node.op_type == "Transpose" and list(node.attributes["perm"].as_ints()) == [1, 0]
