"""Find the linear layers of a graph: x·Wᵀ with a constant W, in the forms that exporters produce."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.errors import GraphError
from intaglio.graph_passes.contract import Counts
from intaglio.graph_passes.front_end import front_end
from intaglio.graph_passes.graphs import all_nodes, constant, remove_if_dead
from intaglio.graph_passes.lookup_tables.sparse import Sparse
from intaglio.graph_passes.quantize_dequantize.quantized import Writer
from intaglio.graph_passes.weights.transposed import transposed
from intaglio.graph_passes.weights.weight_file import WeightFile
from intaglio.plugins import DOMAIN
from intaglio.plugins.group_matmul.minimums import completes_groups
from intaglio.plugins.nodes import lengths, take_over
from intaglio.plugins.registry import VERSION

PRODUCTS = {"MatMul", "Gemm", "Attention", "Conv", "Shape"}  # beyond which a layer's outputs are other values
FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16}


@dataclass(frozen=True)
class LinearLayer:
    """y = x·Wᵀ (+ bias): a MatMul or Gemm, of the graph or of a branch, whose second factor is a constant matrix.

    `weight` is the initializer in its stored layout: [K, N], or [N, K] where `transposed` (a tied head, Gemm's transB).
    `tied`: the same table is looked up by a Gather, or used by something that is not a linear layer.
    """

    node: ir.Node
    weight: ir.Value
    transposed: bool
    tied: bool

    @property
    def name(self) -> str:
        """The path of the layer in the checkpoint: the weight's name without its ending ".weight"."""
        return layer_name(self.weight)

    @property
    def x(self) -> ir.Value:
        """The activations [..., K]."""
        x = self.node.inputs[0]
        assert x is not None
        return x

    @property
    def bias(self) -> ir.Value | None:
        """The bias of a Gemm; that of a MatMul is a separate Add, which stays."""
        return self.node.inputs[2] if self.node.op_type == "Gemm" and len(self.node.inputs) == 3 else None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K): the layer's outputs and inputs."""
        first, second = _tensor(self.weight).shape.numpy()
        return (first, second) if self.transposed else (second, first)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the stored weight."""
        return _tensor(self.weight).dtype.numpy()

    def matrix(self) -> npt.NDArray[np.float32]:
        """Return a copy of W [N, K] in float32, row-major. Raises `GraphError` for NaN and infinities."""
        tensor = _tensor(self.weight)
        stored = tensor.numpy()
        array = np.array(stored, np.float32, order="C") if self.transposed else transposed(stored, np.float32)
        del stored  # a view of the file, which cannot be closed while a view exists
        release(tensor)
        if not np.isfinite(array).all():
            raise GraphError(
                f"{self.weight.name}: contains NaN or infinity, expected finite weights. Fix the checkpoint."
            )
        return array

    def replace(self, writer: Writer, product: ir.Value) -> None:
        """Replace this layer by `product`, the output of a new node that computes x·Wᵀ before `node`.

        A Gemm's bias is added to it; unused nodes are removed, and the weight is released.
        """
        if self.bias is not None:
            product = writer.node(self.node, "Add", [product, self.bias], f"{self.name}_biased").outputs[0]
        take_over(self.node.outputs[0], product)
        remove_if_dead(self.node)
        if not self.weight.uses() and not self.weight.is_graph_output():
            self.weight.const_value = None


class LayerWriter(Writer):
    """Adds the custom operators that multiply by compressed weights, which a file keeps."""

    def __init__(self, model: ir.Model):
        super().__init__(model)
        self._file = WeightFile()

    def constant(self, array: npt.NDArray[Any], name: str) -> ir.Value:
        """Add an initializer. Raises `StorageError`."""
        value = super().constant(array, name)
        value.const_value = self._file.stored(array, str(value.name))
        return value

    def product(
        self, layer: LinearLayer, op_type: str, inputs: Sequence[ir.Value | None], **attributes: int
    ) -> ir.Value:
        """Insert a custom node before the layer's; return its output, with the dtype of x and the layer's shape.

        `inputs`: the operator's inputs, starting with `layer.x`.
        """
        self.model.graph.opset_imports[DOMAIN] = VERSION
        output = self.node(layer.node, op_type, inputs, f"{layer.name}.{op_type}", DOMAIN, **attributes).outputs[0]
        output.type, output.shape = layer.x.type, layer.node.outputs[0].shape
        return output

    def sparse(self, layer: LinearLayer, matrix: Sparse) -> list[ir.Value]:
        """Add the constants of a sparse matrix, as LutMatMul and CsrMatMul take them."""
        arrays = {"values": matrix.values, "columns": matrix.columns, "row_offsets": matrix.row_offsets}
        return [self.constant(array, f"{layer.name}.sparse.{part}") for part, array in arrays.items()]


def linear_layers(
    model: ir.Model,
    counts: Counts,
    skip: Sequence[str] = (),
    multiple_of: int = 1,
    tied: bool = False,
    branches: bool = False,
) -> list[LinearLayer]:
    """Return the layers that a pass may compress, in the order of the graph; note the others in `counts`.

    1. MatMul(x, W), Gemm(x, W, bias) with alpha = beta = 1; W an initializer of two axes, float32 or float16,
       directly or behind a Transpose, a Cast to another of the two, or an Identity.
    2. Left: layers whose name matches a pattern of `skip` (`lm_head`, `*.mlp.*`), layers with K not a multiple of
       `multiple_of`, without `tied` layers whose weight is an embedding table too, without `branches` those in
       the bodies of If and Loop, whose inputs cannot be observed, and routers, which choose experts.

    Raises `GraphError` for a pattern that matches no layer's name.
    """
    found = list(all_layers(model))
    for pattern in skip:
        if not any(fnmatchcase(layer.name, pattern) for layer in found):
            names = ", ".join(layer.name for layer in found[:6])
            raise GraphError(f"skip: no linear layer's name matches {pattern!r}. The layers: {names or 'none'}, …")
    layers = []
    for layer in found:
        inputs = layer.shape[1]
        if any(fnmatchcase(layer.name, pattern) for pattern in skip):
            counts.skip_requested(layer.name, "skipped as asked")
        elif inputs % multiple_of:
            counts.leave(f"{layer.name}: {inputs} inputs are not a multiple of {multiple_of}")
        elif layer.tied and not tied:
            counts.leave(f"{layer.name}: its weight is an embedding table too, left without tied: true")
        elif chooses_experts(layer.node):
            counts.leave(f"{layer.name}: chooses experts, and with few bits would choose others")
        elif not branches and layer.node.graph is not model.graph:
            counts.leave(f"{layer.name}: is in a branch, where this pass cannot observe its inputs")
        else:
            layers.append(layer)
    if not found:
        counts.leave("no MatMul or Gemm with a constant matrix")
    return layers


def chooses_experts(layer: ir.Node) -> bool:
    """Whether the outputs of a layer are scores of which the largest are chosen, before any other product."""
    waiting, seen = [layer], {layer}
    while waiting:
        for value in waiting.pop().outputs:
            for user, _ in value.uses():
                if user.op_type in ("TopK", "ArgMax"):
                    return True
                if user.domain == "" and user.op_type not in PRODUCTS and user not in seen:
                    seen.add(user)
                    waiting.append(user)
    return False


def by_weight(layers: Sequence[LinearLayer]) -> list[list[LinearLayer]]:
    """Group the layers that multiply by the same matrix."""
    groups: dict[tuple[ir.Value, bool], list[LinearLayer]] = {}
    for layer in layers:
        groups.setdefault((layer.weight, layer.transposed), []).append(layer)
    return list(groups.values())


def release(tensor: ir.TensorProtocol) -> None:
    """Release the memory-mapped pages of a tensor; reading it again maps them again."""
    if isinstance(tensor, ir.ExternalTensor):
        tensor.release()


def layer_name(weight: ir.Value) -> str:
    """Return the path of the module of `weight` in the checkpoint."""
    return str(weight.name).removesuffix("_transposed").removesuffix(".weight")


def all_layers(model: ir.Model) -> Iterator[LinearLayer]:
    """Return every layer of the graph and its branches, in the order of the graph, except those of a front end."""
    computing_features = front_end(model)
    for node in all_nodes(model):
        if node.domain != "" or node.op_type not in ("MatMul", "Gemm") or not _is_plain(node):
            continue
        if node in computing_features:
            continue
        x, factor = node.inputs[:2]
        if x is None or constant(x) is not None:
            continue
        weight, transposed = stored(factor)
        if weight is None or completes_groups(weight.name):
            continue
        if node.op_type == "Gemm" and "transB" in node.attributes and node.attributes["transB"].as_int():
            transposed = not transposed
        yield LinearLayer(node, weight, transposed, _has_other_uses(weight))


def _is_plain(node: ir.Node) -> bool:
    """Whether a Gemm is exactly x·W + bias."""
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    return not given.get("transA") and given.get("alpha", 1.0) == 1.0 and given.get("beta", 1.0) == 1.0


def stored(factor: ir.Value | None) -> tuple[ir.Value | None, bool]:
    """Return the floating-point initializer, 2-D, that `factor` is computed from, and whether it is transposed.

    Only Transpose, Cast to another floating-point dtype and Identity may be in between; None for anything else.
    """
    transposed = False
    while factor is not None and not factor.is_initializer():
        producer = factor.producer()
        if producer is None or not _keeps_numbers(producer):
            return None, False
        transposed ^= producer.op_type == "Transpose"
        factor = producer.inputs[0]
    tensor = constant(factor)
    if factor is None or tensor is None or tensor.dtype not in FLOATS or len(tensor.shape) != 2:
        return None, False
    return factor, transposed


def _keeps_numbers(node: ir.Node) -> bool:
    """Whether a node only transposes a matrix or casts it to another floating-point dtype."""
    if node.domain != "":
        return False
    if node.op_type == "Transpose":
        return lengths(node.outputs[0]) is None or len(lengths(node.outputs[0]) or ()) == 2
    return node.op_type == "Identity" or (node.op_type == "Cast" and node.attributes["to"].as_int() in FLOATS)


def _has_other_uses(weight: ir.Value) -> bool:
    """Whether the weight has uses other than linear layers."""
    if weight.is_graph_output():
        return True
    for node, index in weight.uses():
        if node.domain == "" and node.op_type in ("MatMul", "Gemm") and index == 1:
            continue
        if not _keeps_numbers(node) or _has_other_uses(node.outputs[0]):
            return True
    return False


def _tensor(weight: ir.Value) -> ir.TensorProtocol:
    tensor = weight.const_value
    assert tensor is not None
    return tensor
