"""Weights that the checkpoint stores in tables: products are LutMatMul, of the sparse numbers too."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from intaglio.exporters.checkpoints.quantized.tabled_weight import SparseRows, TabledWeight, Tables
from intaglio.exporters.decoders.traced.grouped import (
    FLOATS,
    WORDS,
    import_operators,
    initializer,
    products_by,
    read_later,
    replace_product,
)
from intaglio.plugins.bit_packing import WORD
from intaglio.plugins.registry import DOMAIN


def keep_tables(model: ir.Model, weights: Mapping[ir.Value, TabledWeight]) -> None:
    """Replace each MatMul by a weight of `weights`, stored [K, N], by LutMatMul.

    Raises `SourceError` for a weight that the graph also uses otherwise.
    """
    for value, weight in weights.items():
        name = str(value.name).removesuffix("_transposed")
        for node in products_by(value, weight.shape):
            _replace(model.graph, node, weight, _constants(model.graph, name, weight))
        del model.graph.initializers[str(value.name)]
    import_operators(model.graph)


def _replace(graph: ir.Graph, node: ir.Node, weight: TabledWeight, constants: Mapping[str, ir.Value]) -> None:
    attributes = {"bits": weight.bits, "K": weight.shape[1], "activation_bits": weight.activation_bits}
    parts = Tables._fields if weight.sparse is None else Tables._fields + SparseRows._fields
    product = ir.node("LutMatMul", [node.inputs[0], *(constants[part] for part in parts)], attributes, domain=DOMAIN)
    replace_product(graph, node, product, [product])


def _constants(graph: ir.Graph, name: str, weight: TabledWeight) -> dict[str, ir.Value]:
    """The inputs of the operator by their names; tables are read from the checkpoint when the graph is written."""
    channels, inputs = weight.shape
    packed, lut = [channels, inputs * weight.bits // WORD], [channels, 1 << weight.bits]
    made = {
        "packed": read_later(graph, f"{name}.packed", WORDS, packed, lambda: weight.read().packed),
        "lut": read_later(graph, f"{name}.lut", FLOATS, lut, lambda: weight.read().lut),
    }
    if weight.sparse is not None:
        for part, array in weight.sparse._asdict().items():
            made[part] = initializer(graph, ir.Tensor(array, name=f"{name}.sparse.{part}"))
    return made
