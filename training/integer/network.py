"""IntegerNetwork: the graph of an integer-only bundle as a torch module with trainable integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch
from torch import Tensor

from intaglio.errors import GraphError
from intaglio.plugins import DOMAIN, OPS
from intaglio.training.integer.operators import OPERATORS
from intaglio.training.integer.standard import FUNCTIONS
from intaglio.training.integer.trainable import trainable


class _Round(torch.autograd.Function):
    """Rounds forwards; passes the gradient through unchanged backwards."""

    @staticmethod
    def forward(context: Any, shadow: Tensor) -> Tensor:
        return shadow.round()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class IntegerNetwork(torch.nn.Module):
    """Computes exactly the integers of the graph, and passes gradients straight through its roundings.

    Trained are real-valued shadows of the weights and biases of IntLinear and IntLayerNorm, in units of their integers;
    each forward pass rounds them. With `embeddings`, the int8 tables are trained too. Scales, multipliers, shifts and
    the floating-point head are not trained. Raises `GraphError` for a graph without trainable integers, and for
    unsupported operators.
    """

    def __init__(self, model: ir.Model, embeddings: bool = False):
        super().__init__()
        graph = model.graph
        self._nodes = list(graph)
        self._outputs = list(graph.outputs)
        self._inputs = [value for value in graph.inputs if not value.is_initializer()]
        _check(self._nodes)
        self.trainable = list(trainable(self._nodes, embeddings))
        if not self.trainable:
            raise GraphError("no integer weights to train: expected a graph from the recipe int8-only.")
        self.shadows = torch.nn.ParameterList(each.shadow() for each in self.trainable)
        trained = {each.value for each in self.trainable}
        self._constants = {
            value: torch.from_numpy(np.array(value.const_value.numpy()))
            for value in graph.initializers.values()
            if value not in trained and value.const_value is not None
        }

    def forward(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Output name -> tensor, for input name -> tensor."""
        values = self._run(feeds)
        return {str(value.name): values[value] for value in self._outputs}

    def intermediate(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All node outputs by name, without gradient; integers as floating point."""
        with torch.no_grad():
            values = self._run(feeds)
        made = (value for node in self._nodes for value in node.outputs)
        return {str(value.name): values[value] for value in made if value in values}

    def parameter_groups(self, rates: Mapping[str, float]) -> list[dict[str, Any]]:
        """For an optimiser: each tensor with the learning rate of its kind, converted from units to its integers."""
        pairs = zip(self.trainable, self.shadows, strict=True)
        return [{"params": [shadow], "lr": rates[each.kind] * each.unit} for each, shadow in pairs]

    @torch.no_grad()
    def project(self) -> None:
        """Clip the shadows to their limits; call it after each optimiser step."""
        for each, shadow in zip(self.trainable, self.shadows, strict=True):
            shadow.clamp_(each.low, each.high)

    @torch.no_grad()
    def integers(self) -> dict[str, npt.NDArray[np.generic]]:
        """The present values of the trained initializers by name, in the graph's dtypes."""
        return {
            str(each.value.name): shadow.round().numpy().astype(each.tensor.dtype.numpy())
            for each, shadow in zip(self.trainable, self.shadows, strict=True)
        }

    def write(self) -> None:
        """Write the integers to the initializers of the original graph."""
        for each, integers in zip(self.trainable, self.integers().values(), strict=True):
            each.value.const_value = ir.tensor(integers, name=each.value.name)

    def _run(self, feeds: Mapping[str, Tensor]) -> dict[ir.Value, Tensor]:
        values = dict(self._constants)
        values.update((value, feeds[str(value.name)]) for value in self._inputs)
        for each, shadow in zip(self.trainable, self.shadows, strict=True):
            values[each.value] = _Round.apply(shadow)  # type: ignore[no-untyped-call]
        for node in self._nodes:
            inputs = [None if value is None else values[value] for value in node.inputs]
            values.update(zip(node.outputs, _compute(node, inputs), strict=False))
        return values


def _compute(node: ir.Node, inputs: Sequence[Tensor | None]) -> list[Tensor]:
    """The outputs of a node."""
    if node.domain == "":
        return [FUNCTIONS[node.op_type](node, *inputs)]
    operator = OPS[node.op_type]
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    return OPERATORS[node.op_type](operator.padded(inputs), operator.complete(given))


def _check(nodes: Sequence[ir.Node]) -> None:
    """Raise `GraphError` for the first unsupported operator."""
    for node in nodes:
        known = FUNCTIONS if node.domain == "" else OPERATORS if node.domain == DOMAIN else {}
        if node.op_type not in known:
            name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            raise GraphError(
                f"{name} {node.name or node.outputs[0].name}: training does not support this operator, only those of "
                "the recipe int8-only. Train a bundle compressed with it, without --allow-float."
            )
